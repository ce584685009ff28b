"""What packing and prompts computed once are worth: a training pass (forward and backward) on one GPU.

512 responses of lognormal lengths (mean about 400, CV 0.8) to prompts of 100 tokens, 16 to each; random
weights in bfloat16, DAPO's loss. Everyone uses our fused head on the response tokens alone, so that only the layers
differ, in micro-batches of at most as many entries, padding included:
- transformers padded: its own forward pass with an attention mask (sdpa), to the longest of each micro-batch and to the
  longest of all;
- ours padded: our layers, each response padded to the longest of its micro-batch;
- packed: no padding, a prompt for each response;
- packed and shared: no padding, each prompt once.
Then sharing alone, 128 responses to prompts of 100, 500 and 2,000 tokens: its speed-up beside the ratio of the entries
computed; for this Qwen3-0.6B's shape as well.
Writes benchmarks/results/packing.json.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from lengths import lognormal  # benchmarks/lengths.py
from report import write
from shapes import build, tokenizer
from torch import Tensor

import equipoise as eq
from equipoise import policy as models
from equipoise.kernels import fused_loss
from equipoise.train.micro import cuts

RESPONSES, GROUP, MEAN, CV, LONGEST = 512, 16, 400, 0.8, 4096
SHARING = 128  # responses where only sharing is measured
VOCABULARY = 40_000  # of the prompts and responses
BUDGET = 32_768  # entries of a micro-batch


class Batch(NamedTuple):
    prompts: list[list[int]]
    tokens: Tensor
    lengths: Tensor
    prompt: Tensor
    objective: eq.Objective
    credit: Any
    old: Tensor


def batch(lengths: Tensor, prompt_tokens: int, group: int, vocabulary: int, device: str = "cuda") -> Batch:
    g = torch.Generator().manual_seed(0)
    count = len(lengths) // group
    prompts = torch.randint(3, vocabulary, (count, prompt_tokens), generator=g).tolist()
    tokens = torch.randint(3, vocabulary, (int(lengths.sum()),), generator=g).to(device)
    prompt = torch.arange(count).repeat_interleave(group)
    objective = eq.Objective.preset("dapo")
    credit = objective.assign(torch.arange(len(lengths)) % 2.0, prompt, lengths).to(torch.device(device))
    old = torch.full((len(tokens),), -10.0, device=device)
    return Batch(prompts, tokens, lengths, prompt, objective, credit, old)


def parts(ends: list[int], b: Batch) -> list[tuple[slice, slice]]:
    """Responses and tokens of micro-batches that begin at `ends`."""
    total = [0, *b.lengths.cumsum(0).tolist()]
    pairs = zip([0, *ends], [*ends, len(b.lengths)], strict=True)
    return [(slice(i, j), slice(total[i], total[j])) for i, j in pairs]


def loss_of(b: Batch, hidden: Tensor, weight: Tensor, rows: slice, at: slice) -> Tensor:
    response = torch.arange(rows.start, rows.stop).repeat_interleave(b.lengths[rows]).to(hidden.device)
    return fused_loss(hidden, weight, b.tokens[at], b.objective, b.old[at], b.credit, response).loss


def passes(
    policy: models.Policy, b: Batch, work: list[tuple[models.Pack, slice, Tensor]]
) -> tuple[Callable[[], None], int]:
    """Forward and backward over (pack, its tokens, their responses) each, and how many entries that computes."""

    def run() -> None:
        for packed, at, response in work:
            models.token_loss(policy, packed, b.objective, b.old[at], b.credit, response).loss.backward()

    return run, sum(len(packed.inputs) for packed, _, _ in work)


def packed_passes(policy: models.Policy, b: Batch, share: str) -> tuple[Callable[[], None], int]:
    sizes = torch.tensor([len(p) for p in b.prompts])[b.prompt]
    group = b.prompt if share == "prompt" else torch.arange(len(b.prompt))
    work = []
    for rows, at in parts(cuts(group, sizes, b.lengths, 0, BUDGET, False), b):
        packed = models.pack(b.prompts, b.tokens[at], b.lengths[rows], b.prompt[rows], share=share)
        response = torch.arange(rows.start, rows.stop).repeat_interleave(b.lengths[rows]).cuda()
        work.append((packed, at, response))
    return passes(policy, b, work)


def padded_cuts(b: Batch, to_longest_of_all: bool) -> list[int]:
    total = b.lengths + torch.tensor([len(p) for p in b.prompts])[b.prompt] - 1
    ends, begin, longest = [], 0, 0
    for i, n in enumerate(total.tolist()):
        longest = max(longest, n if not to_longest_of_all else int(total.max()))
        if i > begin and (i + 1 - begin) * longest > BUDGET:
            ends.append(i)
            begin, longest = i, n if not to_longest_of_all else int(total.max())
    return ends


def ours_padded(policy: models.Policy, b: Batch) -> tuple[Callable[[], None], int]:
    """Our layers over sequences that all have the micro-batch's longest length."""
    work = []
    for rows, at in parts(padded_cuts(b, False), b):
        lengths = b.lengths[rows]
        longest = int(lengths.max())
        padded = torch.zeros(len(lengths), longest, dtype=torch.int64)
        real = torch.arange(longest) < lengths[:, None]
        padded[real] = b.tokens[at].cpu()
        packed = models.pack(
            b.prompts, padded.flatten().cuda(), torch.full_like(lengths, longest), b.prompt[rows], share="nothing"
        )
        keep = real.flatten().cuda()
        packed = dataclasses.replace(packed, targets=packed.targets[keep], predict=packed.predict[keep], firsts=None)
        response = torch.arange(rows.start, rows.stop).repeat_interleave(lengths).cuda()
        work.append((packed, at, response))
    return passes(policy, b, work)


def transformers_padded(model: Any, b: Batch, to_longest_of_all: bool) -> tuple[Callable[[], None], int]:
    """transformers' layers on right-padded rows with a mask, our head on the response tokens."""
    total = b.lengths + torch.tensor([len(p) for p in b.prompts])[b.prompt] - 1
    work = []
    for rows, at in parts(padded_cuts(b, to_longest_of_all), b):
        longest = int(total.max() if to_longest_of_all else total[rows].max())
        n = rows.stop - rows.start
        ids, mask = torch.zeros(n, longest, dtype=torch.int64), torch.arange(longest) < total[rows, None]
        predict = []
        for i, own in enumerate(b.tokens[at].cpu().split(b.lengths[rows].tolist())):
            text = torch.cat([torch.tensor(b.prompts[int(b.prompt[rows][i])]), own])
            ids[i, : len(text) - 1] = text[:-1]
            first = i * longest + len(text) - 1 - len(own)
            predict.append(torch.arange(first, first + len(own)))
        work.append((ids.cuda(), mask.cuda(), torch.cat(predict).cuda(), rows, at))

    def run() -> None:
        for ids, mask, predict, rows, at in work:
            hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            loss_of(b, hidden.flatten(0, 1)[predict], model.lm_head.weight, rows, at).backward()

    return run, sum(ids.numel() for ids, *_ in work)


def seconds(run: Callable[[], None], model: Any, repeats: int = 2) -> float:
    best = float("inf")
    for _ in range(repeats + 1):
        model.zero_grad()
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def padding(name: str) -> dict[str, Any]:
    model = build(name)
    b = batch(lognormal(RESPONSES, MEAN, CV, LONGEST), 100, GROUP, VOCABULARY)
    cv = float(b.lengths.double().std() / b.lengths.double().mean())
    print(f"{name}: {RESPONSES} responses, mean length {float(b.lengths.double().mean()):.0f}, CV {cv:.2f}, "
          f"longest {int(b.lengths.max())}")  # fmt: skip
    out: dict[str, Any] = {"length_cv": cv, "ways": {}}

    def timed(way: str, found: tuple[Callable[[], None], int], repeats: int = 1) -> None:
        run, entries = found
        torch.cuda.reset_peak_memory_stats()
        s = seconds(run, model, repeats)
        peak = torch.cuda.max_memory_allocated() / 2**30
        out["ways"][way] = {"seconds": s, "entries": entries, "peak_gib": peak}
        print(f"  {way:42s} {s:6.3f} s  {entries:9,} entries  {peak:5.1f} GiB", flush=True)

    model.config._attn_implementation = "sdpa"
    timed("transformers, padded to the micro-batch's", transformers_padded(model, b, False))
    timed("transformers, padded to the longest of all", transformers_padded(model, b, True), 0)
    policy = opened(model, name)
    timed("ours, padded to the micro-batch's", ours_padded(policy, b))
    timed("packed", packed_passes(policy, b, "nothing"), 2)
    timed("packed, prompts shared", packed_passes(policy, b, "prompt"), 2)
    ways = out["ways"]
    for way in list(ways)[:3]:
        out[f"packed over {way}"] = ways[way]["seconds"] / ways["packed"]["seconds"]
        print(f"  packed is {out[f'packed over {way}']:.1f} × {way}")
    return out


def opened(model: Any, name: str) -> models.Policy:
    policy = models.Policy(model, tokenizer(1000), name)
    assert policy.is_llama_like
    return policy


def sharing(name: str, out: dict[int, dict[str, float]], save: Callable[[], None]) -> None:
    model = build(name)
    policy = opened(model, name)
    for prompt_tokens in (100, 500, 2000):
        b = batch(lognormal(SHARING, MEAN, CV, LONGEST), prompt_tokens, GROUP, VOCABULARY)
        (alone, entries), (shared, fewer) = (packed_passes(policy, b, share) for share in ("nothing", "prompt"))
        speed, tokens = seconds(alone, model, 1) / seconds(shared, model, 1), entries / fewer
        out[prompt_tokens] = {"speed_up": speed, "entries_ratio": tokens}
        print(f"  {name}, prompts of {prompt_tokens:5,}: shared {speed:.2f} × faster, {tokens:.2f} × fewer entries "
              f"({100 * (speed / tokens - 1):+.0f} %)", flush=True)  # fmt: skip
        save()


def main() -> None:
    figures: dict[str, Any] = {"padding": {"SmolLM2-135M": padding("SmolLM2-135M")}, "sharing": {}}
    for name in ("SmolLM2-135M", "Qwen3-0.6B"):
        torch.cuda.empty_cache()
        found = figures["sharing"][name] = {}
        sharing(name, found, lambda: write("packing", figures))  # after each: a run cut short leaves what it has


if __name__ == "__main__":
    main()
