"""Several responses in one row without padding, in which what they share stands once.

The row holds the tokens of the prompts and then those of the responses. Equal prefixes have equal
hidden states, so sharing them changes no number, only how often it is computed. How much is shared:
- `prefix`: responses to one prompt also share the entries of their common beginning (a tree of prefixes, flattened);
- `prompt`: the prompt only, so that every response is one contiguous segment of the row, and so is every group;
- `nothing`: every response has its prompt right before it.
The last token of a response is predicted but never an input, so it is left out. Everything in the
model that works token by token (projections, norms, the MLP) runs over this row. Attention is the
one place that needs sequences: as `Segments` of the row (attention of variable length, without
padding), or as `Buckets`, which lay them out by similar length, right-padded, where plain causal
attention is exact (a real token never looks right).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels.segments import Segments, sent

Share = Literal["prefix", "prompt", "nothing"]


class Buckets(NamedTuple):
    """gather [M]: row entries of the buckets, one after the other; shapes: their (b, l).

    scatter [U]: a place among the M where each row entry is. places: all of them, entry by entry,
    without padding; counts [U]: how many each entry has.
    """

    gather: Tensor
    shapes: tuple[tuple[int, int], ...]
    scatter: Tensor
    places: Tensor
    counts: Tensor


class Firsts(NamedTuple):
    """The first tokens of responses, b of them, which the last entries of the P prompts predict.

    targets [b]: their places among the targets; entries [P]: their predicting entries; prompt [b]:
    which of them.
    """

    targets: Tensor
    entries: Tensor
    prompt: Tensor


class _Paths(NamedTuple):
    """Where each sequence lies, on the CPU: all [b]. Its prompt's entries begin at `prompt` and are
    `before` many; then come `length` entries, which are entry[start], entry[start + 1] …, or, where
    entry is None, start, start + 1 …
    """

    prompt: Tensor
    before: Tensor
    start: Tensor
    length: Tensor
    entry: Tensor | None


@dataclass(frozen=True, eq=False)
class Pack:
    """inputs, positions [U]; targets, predict [N]: a target, and the entry that predicts it.

    segments: None where prefixes inside responses are shared.
    firsts: which targets one entry predicts together; None where those are not only first tokens.
    """

    inputs: Tensor
    positions: Tensor
    targets: Tensor
    predict: Tensor
    segments: Segments | None
    firsts: Firsts | None
    paths: _Paths

    @cached_property
    def longest(self) -> int:
        """Inputs of the longest sequence, its prompt included."""
        return int((self.paths.before + self.paths.length).max())

    @cached_property
    def buckets(self) -> Buckets:
        return _buckets(self.paths, len(self.inputs), self.inputs.device)


def pack(
    prompts: Sequence[Sequence[int]],
    tokens: Tensor,
    lengths: Tensor,
    prompt: Tensor,
    *,
    share: Share | None = None,
) -> Pack:
    """Lay out responses (`tokens` [N], `lengths` [B] ≥ 1), each after `prompts[prompt[i]]`.

    Prompts without a response are left out. The result lies on the device of `tokens`; for CUDA
    `share` is `prompt` if not given, elsewhere `prefix`. With `lengths` and `prompt` on the CPU
    nothing waits for the device.
    """
    # The layout is made of few numbers, on the CPU, where asking for one does not stop the device.
    lengths, prompt = lengths.cpu(), prompt.cpu()
    if len(lengths) == 0 or int(lengths.min()) < 1:
        raise ValueError("pack needs at least one response, and each response at least one token")
    used, prompt = prompt.unique(return_inverse=True)
    rows = [prompts[i] for i in used.tolist()]
    # Prefixes shared inside responses save arithmetic, which a CPU is short of; the kernels of a
    # GPU want contiguous segments more.
    share = share or ("prompt" if tokens.is_cuda else "prefix")
    if share == "prefix":
        return _tree(rows, tokens, lengths, prompt)
    return _segmented(rows, tokens, lengths, prompt, shared=share == "prompt")


class _Pieces(NamedTuple):
    """The S contiguous pieces of a row, in their order: how long each is, where its tokens begin
    among all prompts and responses, and the position of its first token. And where, in the row, the
    prompt of each response begins, and the response itself [B].
    """

    length: Tensor
    source: Tensor
    position: Tensor
    prompt_at: Tensor
    response_at: Tensor


class _Numbers(NamedTuple):
    """The few numbers that the entries of a row are made from, on its device. An offset is added to
    a place in the row (or, for `predict_offset`, among the targets) to find what belongs there.
    """

    text: Tensor  # tokens of all prompts
    length: Tensor  # [S] of each piece
    source_offset: Tensor  # [S] to where the token is among text and tokens
    position_offset: Tensor  # [S] to the token's position
    targets: Tensor  # [B] of each response
    predict_offset: Tensor  # [B] to the entry that predicts a target
    first_target: Tensor  # [B]
    prompt_end: Tensor  # [P] last entry of each prompt
    prompt: Tensor  # [B] which of these comes before each response

    def to(self, device: torch.device) -> _Numbers:
        """In one transfer."""
        sizes = [len(part) for part in self]
        return _Numbers(*sent(torch.cat(self), device).split(sizes))


def _segmented(
    rows: list[Sequence[int]], tokens: Tensor, lengths: Tensor, prompt: Tensor, *, shared: bool
) -> Pack:
    """Contiguous pieces of the row; only numbers per piece are made on the host and sent."""
    device = tokens.device
    prompt_length = torch.tensor([len(row) for row in rows])
    text = torch.from_numpy(
        np.fromiter(chain.from_iterable(rows), np.int64, int(prompt_length.sum()))
    )
    lay_out = _prompts_once if shared else _prompts_repeated
    pieces, segments = lay_out(prompt_length, lengths, prompt, device)
    start, first_target = _starts(pieces.length), _starts(lengths)
    before = prompt_length[prompt]
    numbers = _Numbers(
        text=text,
        length=pieces.length,
        source_offset=pieces.source - start,
        position_offset=pieces.position - start,
        targets=lengths,
        predict_offset=pieces.response_at - 1 - first_target,
        first_target=first_target,
        # Prompts that stand once come first, in the order of `text`.
        prompt_end=prompt_length.cumsum(0) - 1 if shared else pieces.prompt_at + before - 1,
        prompt=prompt if shared else torch.arange(len(lengths)),
    ).to(device)
    U, N = int(pieces.length.sum()), int(lengths.sum())
    row, target = torch.arange(U, device=device), torch.arange(N, device=device)
    source = row + numbers.source_offset.repeat_interleave(numbers.length, output_size=U)
    predict = target + numbers.predict_offset.repeat_interleave(numbers.targets, output_size=N)
    # The one target of a response that is not predicted by the entry before it in the row.
    predict[numbers.first_target] = numbers.prompt_end[numbers.prompt]
    return Pack(
        inputs=torch.cat([numbers.text, tokens])[source],
        positions=row + numbers.position_offset.repeat_interleave(numbers.length, output_size=U),
        targets=tokens,
        predict=predict,
        segments=segments,
        firsts=Firsts(numbers.first_target, numbers.prompt_end, numbers.prompt),
        paths=_Paths(pieces.prompt_at, before, pieces.response_at, lengths - 1, None),
    )


def _prompts_once(
    prompt_length: Tensor, lengths: Tensor, prompt: Tensor, device: torch.device
) -> tuple[_Pieces, Segments]:
    """The prompts, then the responses group by group."""
    inputs, prompts = lengths - 1, len(prompt_length)
    text = int(prompt_length.sum())
    order = torch.argsort(prompt, stable=True)
    length = torch.cat([prompt_length, inputs[order]])
    start = _starts(length)
    response_at = torch.empty_like(lengths)
    response_at[order] = start[prompts:]
    pieces = _Pieces(
        length=length,
        source=torch.cat([_starts(prompt_length), text + _starts(lengths)[order]]),
        position=torch.cat([torch.zeros_like(prompt_length), prompt_length[prompt][order]]),
        prompt_at=start[:prompts][prompt],
        response_at=response_at,
    )
    group = torch.zeros_like(prompt_length).index_add_(0, prompt, inputs)
    return pieces, Segments(
        _cuts(length[length > 0]), _cuts(prompt_length), text + _cuts(group), device
    )


def _prompts_repeated(
    prompt_length: Tensor, lengths: Tensor, prompt: Tensor, device: torch.device
) -> tuple[_Pieces, Segments]:
    """Prompt, response, prompt, response, …"""
    before, inputs = prompt_length[prompt], lengths - 1
    text = int(prompt_length.sum())
    length = _alternating(before, inputs)
    prompt_at, response_at = _starts(length).view(-1, 2).unbind(1)
    pieces = _Pieces(
        length=length,
        source=_alternating(_starts(prompt_length)[prompt], text + _starts(lengths)),
        position=_alternating(torch.zeros_like(before), before),
        prompt_at=prompt_at,
        response_at=response_at,
    )
    return pieces, Segments(_cuts(before + inputs), None, None, device)


def _alternating(first: Tensor, second: Tensor) -> Tensor:
    """first[0], second[0], first[1], …"""
    return torch.stack([first, second], 1).flatten()


def _tree(rows: list[Sequence[int]], tokens: Tensor, lengths: Tensor, prompt: Tensor) -> Pack:
    device, tokens = tokens.device, tokens.cpu()
    prompt_length = torch.tensor([len(row) for row in rows])
    prompt_start = _starts(prompt_length)
    n_prompt = int(prompt_length.sum())
    before = prompt_length[prompt]

    is_last = torch.zeros(len(tokens), dtype=torch.bool)
    # The last token of a response predicts nothing, so it is a target and no input.
    is_last[lengths.cumsum(0) - 1] = True
    entry, size = _entries(tokens[~is_last], lengths - 1, prompt)
    entry += n_prompt
    inputs = torch.empty(n_prompt + size, dtype=torch.long)
    positions = torch.empty(n_prompt + size, dtype=torch.long)
    inputs[:n_prompt] = torch.tensor([t for row in rows for t in row])
    positions[:n_prompt] = _ramp(prompt_length)
    inputs[entry] = tokens[~is_last]
    positions[entry] = _ramp(lengths - 1) + before.repeat_interleave(lengths - 1)

    # Token t of a response is predicted by the entry before it;
    # the first one by the prompt's last token.
    is_first = _ramp(lengths) == 0
    predict = torch.empty(len(tokens), dtype=torch.long)
    predict[~is_first] = entry
    predict[is_first] = (prompt_start + prompt_length)[prompt] - 1

    # Attention runs over the paths to the tree's leaves;
    # a response that is the beginning of another lies on its path.
    goes_on = torch.zeros(len(inputs), dtype=torch.bool)
    goes_on[predict[~is_last]] = True
    leaf, path = np.unique(predict[is_last].numpy(), return_index=True)
    chosen = torch.from_numpy(path[~goes_on[torch.from_numpy(leaf)].numpy()])
    paths = _Paths(
        prompt=prompt_start[prompt][chosen],
        before=before[chosen],
        start=_starts(lengths - 1)[chosen],
        length=(lengths - 1)[chosen],
        entry=entry,
    )
    return Pack(
        inputs=inputs.to(device),
        positions=positions.to(device),
        targets=tokens.to(device),
        predict=predict.to(device),
        segments=None,
        firsts=None,
        paths=paths,
    )


def _buckets(paths: _Paths, size: int, device: torch.device) -> Buckets:
    gather = []
    shapes = []
    scatter = torch.empty(size, dtype=torch.long)
    filled = 0
    is_real = []
    total = paths.before + paths.length
    for chosen in _by_length(total):
        column = torch.arange(int(total[chosen].max()))
        c = torch.minimum(column, total[chosen, None] - 1)
        before = paths.before[chosen, None]
        own = paths.start[chosen, None] + (c - before).clamp_min(0)
        if paths.entry is not None and len(paths.entry):
            own = paths.entry[own.clamp_max(len(paths.entry) - 1)]
        index = torch.where(c < before, paths.prompt[chosen, None] + c, own)
        # Shared entries are written several times, always with a place that holds the same value.
        valid = column < total[chosen, None]
        scatter[index[valid]] = torch.arange(filled, filled + index.numel()).view_as(index)[valid]
        filled += index.numel()
        gather.append(index.flatten())
        is_real.append(valid.flatten())
        shapes.append((len(index), index.shape[1]))
    entries = torch.cat(gather)
    real = torch.cat(is_real).nonzero()[:, 0]
    places = real[torch.argsort(entries[real], stable=True)]
    counts = torch.bincount(entries[real], minlength=size)
    return Buckets(
        gather=entries.to(device),
        shapes=tuple(shapes),
        scatter=scatter.to(device),
        places=places.to(device),
        counts=counts.to(device),
    )


def _entries(tokens: Tensor, lengths: Tensor, prompt: Tensor) -> tuple[Tensor, int]:
    """Number the distinct prefixes of the responses (flat `tokens` [n], `lengths` [B]): the number
    of the prefix that ends at each token [n], and how many there are. Walks down the tree as long
    as any two responses are together.

    In numpy, whose small operations cost a third of torch's;
    there are a dozen of them at every depth.
    """
    token, length, start, node = (
        t.numpy() for t in (tokens, lengths, _starts(lengths), prompt.clone())
    )
    entry = np.empty(len(token), dtype=np.int64)
    base = int(token.max(initial=0)) + 1
    together = np.arange(len(length))
    depth = count = 0
    while len(together := together[length[together] > depth]):
        at = start[together] + depth
        branch, inverse, size = np.unique(
            node[together] * base + token[at], return_inverse=True, return_counts=True
        )
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
    # In order of first appearance: where nothing is shared the row is the tokens as they came,
    # to the last bit.
    first = np.unique(entry, return_index=True)[1]
    rank = np.empty(int(count), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(int(count))
    return torch.from_numpy(rank[entry]), int(count)


def _cuts(lengths: Tensor) -> NDArray[np.int64]:
    """Where each begins, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), lengths.numpy().cumsum()])


def _starts(lengths: Tensor) -> Tensor:
    return lengths.cumsum(0) - lengths


def _ramp(lengths: Tensor) -> Tensor:
    """0 … l−1 for each length, one after the other."""
    return torch.arange(int(lengths.sum())) - _starts(lengths).repeat_interleave(lengths)


def _by_length(total: Tensor) -> list[Tensor]:
    """Sequences grouped so that padding is at most an eighth of the longest length."""
    step = max(8, -(-int(total.max()) // 8))
    order = torch.argsort(total, stable=True)
    _, counts = torch.unique_consecutive((total[order] - 1) // step, return_counts=True)
    return list(order.split(counts.tolist()))
