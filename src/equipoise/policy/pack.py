"""Several responses in one row without padding, in which every distinct prefix stands once.

The row holds the tokens of the prompts and then those of the responses; responses to one prompt that begin alike share
the entries of their common beginning (a tree of prefixes, flattened). Equal prefixes have equal hidden states, so this
changes no number, only how often it is computed. The last token of a response is predicted but never an input, so it is
left out. Everything in the model that works token by token (projections, norms, the MLP) runs over this row.
Attention is the one place that needs sequences: `gather` lays them out in buckets of similar length, right-padded,
where plain causal attention is exact (a real token never looks right), and `scatter` picks each result back out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pack:
    """inputs, positions [U]; targets, predict [N]: target token and the row entry whose output predicts it.

    gather [M]: row entries of the buckets, flattened one after the other; shapes: their (b, l), Σ b·l = M.
    scatter [U]: the place among the M where each row entry is.
    """

    inputs: Tensor
    positions: Tensor
    targets: Tensor
    predict: Tensor
    gather: Tensor
    shapes: tuple[tuple[int, int], ...]
    scatter: Tensor


def pack(prompts: Sequence[Sequence[int]], tokens: Tensor, lengths: Tensor, prompt: Tensor) -> Pack:
    """Lay out responses (flat `tokens` [N], `lengths` [B], all ≥ 1), each after `prompts[prompt[i]]`; `prompt` [B].

    Prompts without a response are left out. The result lies on the device of `tokens`.
    """
    device = tokens.device
    lengths, prompt, tokens = lengths.cpu(), prompt.cpu(), tokens.cpu()
    if len(lengths) == 0 or int(lengths.min()) < 1:
        raise ValueError("pack needs at least one response, and each response at least one token")
    used, prompt = prompt.unique(return_inverse=True)
    rows = [prompts[i] for i in used.tolist()]
    prompt_length = torch.tensor([len(row) for row in rows])
    prompt_start = _starts(prompt_length)
    n_prompt = int(prompt_length.sum())
    before = prompt_length[prompt]
    start = _starts(lengths - 1)

    is_last = torch.zeros(len(tokens), dtype=torch.bool)
    is_last[lengths.cumsum(0) - 1] = True
    entry, size = _entries(tokens[~is_last], lengths - 1, prompt)
    entry += n_prompt
    inputs, positions = torch.empty(n_prompt + size, dtype=torch.long), torch.empty(n_prompt + size, dtype=torch.long)
    inputs[:n_prompt] = torch.tensor([t for row in rows for t in row])
    positions[:n_prompt] = _ramp(prompt_length)
    inputs[entry] = tokens[~is_last]
    positions[entry] = _ramp(lengths - 1) + before.repeat_interleave(lengths - 1)

    # Token t of a response is predicted by the entry before it; the first one by the prompt's last token.
    is_first = _ramp(lengths) == 0
    predict = torch.empty(len(tokens), dtype=torch.long)
    predict[~is_first] = entry
    predict[is_first] = (prompt_start + prompt_length)[prompt] - 1

    # Attention runs over the paths to the tree's leaves; a response that is the beginning of another lies on its path.
    goes_on = torch.zeros(len(inputs), dtype=torch.bool)
    goes_on[predict[~is_last]] = True
    leaf, path = np.unique(predict[is_last].numpy(), return_index=True)
    paths = torch.from_numpy(path[~goes_on[torch.from_numpy(leaf)].numpy()])

    gather, shapes, scatter, filled = [], [], torch.empty(len(inputs), dtype=torch.long), 0
    total = before + lengths - 1
    for chosen in _by_length(total, paths):
        column = torch.arange(int(total[chosen].max()))
        c = torch.minimum(column, total[chosen, None] - 1)
        p = prompt[chosen, None]
        in_prompt = c < prompt_length[p]
        own = (start[chosen, None] + c - prompt_length[p]).clamp_min(0)
        index = torch.where(in_prompt, prompt_start[p] + c, entry[own] if len(entry) else own)
        # Shared entries are written several times, always with a place that holds the same value.
        valid = column < total[chosen, None]
        scatter[index[valid]] = torch.arange(filled, filled + index.numel()).view_as(index)[valid]
        filled += index.numel()
        gather.append(index.flatten())
        shapes.append(tuple(index.shape))
    return Pack(
        inputs.to(device),
        positions.to(device),
        tokens.to(device),
        predict.to(device),
        torch.cat(gather).to(device),
        tuple(shapes),
        scatter.to(device),
    )


def _entries(tokens: Tensor, lengths: Tensor, prompt: Tensor) -> tuple[Tensor, int]:
    """Number the distinct prefixes of the responses (flat `tokens` [n], `lengths` [B]): the number of the prefix that
    ends at each token [n], and how many there are. Walks down the tree as long as any two responses are together.

    In numpy, whose small operations cost a third of torch's; there are a dozen of them at every depth.
    """
    token, length, start, node = (t.numpy() for t in (tokens, lengths, _starts(lengths), prompt.clone()))
    entry = np.empty(len(token), dtype=np.int64)
    base = int(token.max(initial=0)) + 1
    together = np.arange(len(length))
    depth = count = 0
    while len(together := together[length[together] > depth]):
        at = start[together] + depth
        branch, inverse, size = np.unique(node[together] * base + token[at], return_inverse=True, return_counts=True)
        entry[at] = node[together] = count + inverse
        count += len(branch)
        depth += 1
        # A response alone on its branch stays alone: its remaining tokens are numbered in one go.
        alone = size[inverse] == 1
        for i in together[alone]:
            rest = length[i] - depth
            entry[start[i] + depth : start[i] + length[i]] = np.arange(count, count + rest)
            count += rest
        together = together[~alone]
    # In order of first appearance: where nothing is shared the row is the tokens as they came, to the last bit.
    first = np.unique(entry, return_index=True)[1]
    rank = np.empty(int(count), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(int(count))
    return torch.from_numpy(rank[entry]), int(count)


def _starts(lengths: Tensor) -> Tensor:
    return lengths.cumsum(0) - lengths


def _ramp(lengths: Tensor) -> Tensor:
    """0 … l−1 for each length, one after the other."""
    return torch.arange(int(lengths.sum())) - _starts(lengths).repeat_interleave(lengths)


def _by_length(total: Tensor, rows: Tensor) -> list[Tensor]:
    """`rows` grouped so that the padding inside a group is at most an eighth of the longest length."""
    step = max(8, -(-int(total.max()) // 8))
    order = rows[torch.argsort(total[rows], stable=True)]
    _, counts = torch.unique_consecutive((total[order] - 1) // step, return_counts=True)
    return list(order.split(counts.tolist()))
