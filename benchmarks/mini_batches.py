"""Seconds of a step by its number of mini-batches: `python benchmarks/mini_batches.py` on a GPU, about a minute.

    python benchmarks/mini_batches.py --model Qwen3-4B --prompts 64 --group 8 --longest 4096 --decoded 0.0625 # HA-DW's
    python benchmarks/mini_batches.py --model toy --prompts 8 --group 4 --longest 48 --counts 1 2 8 --out toy # on a CPU

One trainer, whose steps are cut into 1, 4 and 16 mini-batches in turn, an optimizer step on each: random weights in
bfloat16 with float32 masters, the same lengths at every step (lognormal, mean 0.4 of `--longest`, coefficient of
variation 0.6), every other response right. The first round is short: it compiles, and plans the passes for the batch
in one piece. Medians over the other rounds of the training part and of the whole step, and how many times those of
the first number they are. No round is begun after `--seconds`. Of each response `--decoded` is sampled, the rest drawn
uniformly, as in benchmarks/large.py: whole steps are then shorter than real ones. Writes benchmarks/results/OUT.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import shapes
import torch
from given_lengths import GivenLengths  # benchmarks/given_lengths.py
from large import CV, GIB, MEAN, PROMPT, every_other, lengthened, peak
from lengths import lognormal
from report import write

from equipoise.train import Config, Trainer, read_lines

WARM = 16  # the first round's responses are so many times shorter
PARTS = ("rollout", "train", "step")


class Turns(GivenLengths):
    """Before each step, how many mini-batches it has; short responses in the first round."""

    config: Config
    counts: Sequence[int]
    decoded: float
    calls = 0

    def sample(self, prompts: Any, n: int, params: Any, **more: Any) -> Any:
        self.config.train.mini_batch = len(prompts) // self.counts[self.calls % len(self.counts)]
        longest = max(2, params.max_tokens // WARM) if self.calls < len(self.counts) else params.max_tokens
        whole = lognormal(len(prompts) * n, MEAN * longest, CV, longest).to(self.policy.device)
        self.lengths = (self.decoded * whole).long().clamp(min=1)
        self.calls += 1
        return lengthened(super().sample(prompts, n, params, **more), whole, self.policy.core.config.vocab_size)


class Until:
    """Ends the run with the round in which the seconds are over, and not with the first."""

    def __init__(self, seconds: float, counts: int) -> None:
        self.end, self.counts = time.monotonic() + seconds, counts

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        return step > self.counts and step % self.counts == 0 and time.monotonic() > self.end


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """The records of all steps."""
    cuda, counts = torch.cuda.is_available(), len(options.counts)
    model = shapes.build(
        options.model, device="cuda" if cuda else "cpu", dtype=torch.bfloat16 if cuda else torch.float32
    )
    config = {
        "rollout.prompts": options.prompts, "rollout.group_size": options.group, "rollout.max_tokens": options.longest,
        "objective.preset": "dapo", "optim.lr": 1e-6, "train.steps": (1 + options.rounds) * counts,
        "train.out": str(folder / "run"), "train.checkpoint_every": 10**6, "task.dedupe": False, "eval.every": 0,
        "log.rollouts_every": 0, "log.terminal": False,
    }  # fmt: skip
    trainer = Trainer(
        config,
        model=model,
        tokenizer=shapes.tokenizer(model.config.vocab_size),
        dataset=[{"problem": text, "answer": "1"} for text in shapes.prompts(options.prompts, PROMPT)],
        rewards=[every_other],
        callbacks=[Until(options.seconds, counts)],
    )
    trainer._checkpoint = lambda: None  # what is measured are steps
    trainer.collector.sampler = turns = Turns(trainer.policy)
    turns.config, turns.counts, turns.decoded = trainer.config, options.counts, options.decoded
    trainer.run()
    return read_lines(trainer.folder.metrics)


def compared(records: Sequence[dict[str, float]], counts: Sequence[int]) -> dict[str, Any]:
    """By the number of mini-batches: medians of the rounds after the first, and against those of the first number."""
    found: dict[str, Any] = {}
    for i, count in enumerate(counts):
        done = records[i]["optimizer_steps"] - (records[i - 1]["optimizer_steps"] if i else 0)
        if done != count:
            raise RuntimeError(f"{done:.0f} optimizer steps with {count} mini-batches")
        steps = records[len(counts) + i :: len(counts)]
        seconds = {part: statistics.median(step[f"timing_s/{part}"] for step in steps) for part in PARTS}
        first = found[str(counts[0])]["seconds"] if found else seconds
        ratio = {part: seconds[part] / first[part] for part in ("train", "step")}
        every = [step["timing_s/train"] for step in steps]
        found[str(count)] = {"seconds": seconds, "ratio": ratio, "train": every}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["toy", *shapes.SHAPES], default="Qwen3-0.6B")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--longest", type=int, default=1000, help="tokens of the longest response")
    parser.add_argument("--decoded", type=float, default=1.0, help="share of each response that is sampled")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 4, 16], help="mini-batches of a step")
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--out", default="mini_batches", help="benchmarks/results/OUT.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        records = run(options, Path(temporary))
    found = compared(records, options.counts)
    for count, row in found.items():
        words = ", ".join(f"{part} {row['seconds'][part]:.2f} s ({row['ratio'][part]:.3f} ×)" for part in row["ratio"])
        print(f"{count} mini-batches: {words}")
    length = records[-1]["completions/mean_length"]
    write(
        options.out,
        {"options": vars(options), "mean_length": length, "peak_gib": peak() / GIB, "results": found},
    )


if __name__ == "__main__":
    main()
