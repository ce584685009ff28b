"""`rollout.engine = "vllm"` where the engine and the trainer share one GPU: do the weights arrive, how far do the two
disagree, and does sleep give the memory back?

    python benchmarks/vllm_engine.py [--models SmolLM2-135M Qwen3-1.7B] [--parts engine train] [--out FOLDER]

For each shape, random weights in bfloat16, in a child process: the engine is opened; every one of its weights is held
against the policy's, bit for bit, after a call; the policy is moved by a hundredth of each weight's spread and all is
done again, with the trainer's log-probabilities of the new responses beside the engine's. GiB of the card are read
before the engine, asleep, awake and asleep again, and seconds of waking with all weights sent, of drawing, and of
falling asleep. One shape has a tied head, the known way for vLLM to keep old weights. Then both engines train a few
steps from the same configuration. Writes FOLDER/vllm_engine.json. `--toy`: a tiny model on the CPU, where nothing
sleeps; run it in the environment that has vLLM.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children  # benchmarks/children.py
import report
import shapes
import torch
from step_gpu import with_coins  # benchmarks/step_gpu.py
from torch import Tensor

GROUP, PROMPT = 16, 128
MOVED = 0.01  # of a weight's standard deviation
EACH = 240.0  # seconds of a child
PARTS = ("engine", "train")


def stacked(policy: Any) -> dict[str, Tensor]:
    """The policy's weights as vLLM keeps them: projections that share an input in one matrix."""
    from equipoise.rollout.vllm import weights

    named = dict(weights(policy))
    groups = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    found: dict[str, Tensor] = {}
    for name, tensor in named.items():
        together = next((group for group, parts in groups.items() if any(f".{p}." in name for p in parts)), None)
        if together is None:
            found[name] = tensor
        elif f".{groups[together][0]}." in name:
            first = groups[together][0]
            parts = [named[name.replace(f".{first}.", f".{part}.")] for part in groups[together]]
            found[name.replace(f".{first}.", f".{together}.")] = torch.cat(parts)
    return found


def differing(policy: Any, model: Any) -> dict[str, Any]:
    """How many of the engine's weights are not the policy's, bit for bit; what only one of them has is named."""
    ours, theirs = stacked(policy), dict(model.named_parameters())
    different, repacked = [], []
    for name in ours.keys() & theirs.keys():
        # vLLM pads the vocabulary to a multiple of 64; what is behind is never drawn.
        held = theirs[name].data[: len(ours[name])]
        if held.shape != ours[name].shape:
            repacked.append(name)  # linear layers on the CPU lie in the order its kernels want
        elif not torch.equal(held, ours[name].to(held.device)):
            different.append(name)
    return {
        "compared": len(ours.keys() & theirs.keys()),
        "different": sorted(different),
        "repacked": sorted(repacked),
        "only_one_has": sorted(ours.keys() ^ theirs.keys()),
    }


class Clock:
    """Seconds and GiB of the card at the moments of a call, read by wrapping the engine's own methods."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.gib: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.weights: dict[str, Any] = {}
        for name in ("wake_up", "collective_rpc", "sleep"):
            setattr(sampler.llm, name, self._timed(name, getattr(sampler.llm, name)))
        sampler._check_weights = self._awake(sampler._check_weights)

    def _timed(self, name: str, call: Any) -> Any:
        @functools.wraps(call)
        def wrapped(*arguments: Any, **more: Any) -> Any:
            start = now(self.sampler)
            found = call(*arguments, **more)
            self.seconds[name] = self.seconds.get(name, 0.0) + now(self.sampler) - start
            return found

        return wrapped

    def _awake(self, check: Any) -> Any:
        def wrapped(prompts: list[list[int]]) -> None:
            self.gib["awake"] = gib(self.sampler.policy.device)
            self.sampler.llm.apply_model(self._compare)
            check(prompts)

        return wrapped

    def _compare(self, model: Any) -> None:
        self.weights = differing(self.sampler.policy, model)


def now(sampler: Any) -> float:
    if sampler.policy.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def gib(device: torch.device) -> float:
    """Of the whole card, every process counted; 0 without one."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**30


def engine(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from equipoise import policy as models
    from equipoise.policy import pack, token_logprobs
    from equipoise.rollout import SamplingParams, VllmSampler

    device, dtype = job["device"], torch.float32 if job["device"] == "cpu" else torch.bfloat16
    model = shapes.build(job["model"], end=0, device=device, dtype=dtype)
    policy = models.Policy(model, shapes.tokenizer(model.config.vocab_size), job["model"])
    row: dict[str, Any] = {"part": "engine", "tied": model.config.tie_word_embeddings}
    row["gib"] = {"before": gib(policy.device)}
    start = time.perf_counter()
    sampler = VllmSampler(policy, memory=job["memory"])
    row["open_seconds"] = now(sampler) - start
    row["gib"]["asleep"] = gib(policy.device)
    prompts = torch.randint(3, model.config.vocab_size, (job["prompts"], PROMPT)).tolist()
    params = SamplingParams(max_tokens=job["tokens"], seed=1)
    for moment in ("first", "moved"):
        clock = Clock(sampler)
        start = now(sampler)
        rollouts = sampler.sample(prompts, GROUP, params)
        seconds = now(sampler) - start
        some = rollouts.lengths[:64]  # as many as fit beside the weights in one pass
        packed = pack(prompts, rollouts.tokens[: some.sum()], some, rollouts.prompt[:64])
        with torch.no_grad():
            ours = token_logprobs(policy, packed).logprobs
        apart = (ours - rollouts.logprobs[: len(ours)]).abs()
        row[moment] = {
            "weights": clock.weights,
            "logprob_difference": {"mean": float(apart.mean()), "max": float(apart.max()), "tokens": len(apart)},
            "seconds": {"call": seconds, **clock.seconds},
            "tokens_per_second": len(rollouts.tokens) / seconds,
        }
        row["gib"] |= {f"{moment} awake": clock.gib["awake"], f"{moment} asleep": gib(policy.device)}
        _move(policy)
    sampler.close()
    yield row


@torch.no_grad()
def _move(policy: Any) -> None:
    for weight in policy.model.parameters():
        weight.add_(MOVED * weight.float().std().nan_to_num().to(weight.dtype) * torch.randn_like(weight))


def train(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A few steps of the trainer with an engine: seconds and mismatch."""
    from equipoise.train import Config, Trainer, read_lines

    with tempfile.TemporaryDirectory() as temporary:
        folder, data = Path(temporary) / "model", Path(temporary) / "prompts.jsonl"
        model = shapes.build(job["model"], device=job["device"], dtype=_dtype(job))
        model.save_pretrained(folder)
        shapes.tokenizer(model.config.vocab_size).save_pretrained(folder)
        del model
        texts = (
            shapes.prompts(400, PROMPT) if job["device"] == "cuda" else [shapes.word(3 + i % 400) for i in range(40)]
        )
        data.write_text("".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in texts))
        c = Config()
        c.model.name, c.model.dtype = str(folder), str(_dtype(job)).removeprefix("torch.")
        c.model.device = job["device"]
        c.task.name, c.task.verifier = str(data), "math"
        c.rollout.prompts, c.rollout.group_size, c.rollout.max_tokens = job["prompts"], GROUP, job["tokens"]
        c.rollout.engine, c.rollout.engine_memory = job["engine"], job["memory"]
        c.objective.preset, c.optim.lr = "dapo", 1e-4
        c.train.steps, c.train.out, c.train.checkpoint_every = 4, f"{temporary}/run", 10**6
        c.eval.every, c.log.rollouts_every, c.log.terminal = 0, 0, False
        trainer = Trainer(c)
        trainer._checkpoint = lambda: None
        # Random weights are never right: coins make groups that teach.
        trainer.collector.scorer.settle = with_coins(trainer.collector.scorer.settle)
        trainer.run()
        records = read_lines(trainer.folder.metrics)[1:]
    kept = ("timing_s/rollout", "timing_s/train", "timing_s/step", "rollout/kl")
    differences = ("rollout/logprob_difference/mean", "rollout/logprob_difference/max")
    yield {
        "part": "train",
        "engine": job["engine"],
        **{key: statistics.median(r[key] for r in records) for key in (*kept, *differences) if key in records[0]},
    }


def _dtype(job: dict[str, Any]) -> torch.dtype:
    return torch.bfloat16 if job["device"] == "cuda" else torch.float32


def inside(folder: Path) -> None:
    job = children.job(folder)
    for row in {"engine": engine, "train": train}[job["part"]](job):
        children.found(folder, row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(shapes.SHAPES), default=["SmolLM2-135M", "Qwen3-1.7B"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="training on the first model alone")
    parser.add_argument("--seconds", type=float, default=300.0, help="in all")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder of the JSON")
    parser.add_argument("--memory", type=float, default=0.4, help="share of the GPU's memory that vLLM may take")
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        inside(options.inside)
        return
    children.ended_by_signal()
    report.RESULTS = options.out
    end = time.monotonic() + options.seconds
    models = ["toy"] if options.toy else options.models
    sizes = {"device": "cpu", "memory": 0.02, "prompts": 4, "tokens": 24} if options.toy else {
        "device": "cuda", "memory": options.memory, "prompts": 32, "tokens": 256,
    }  # fmt: skip
    jobs = [{"part": "engine", "model": model, **sizes} for model in models if "engine" in options.parts]
    if "train" in options.parts:
        # A process each: what is left of a trainer is memory that the next one lacks.
        jobs += [{"part": "train", "engine": name, "model": models[0], **sizes} for name in ("native", "vllm")]
    results: dict[str, list[Any]] = {}

    def heard(index: int, row: dict[str, Any]) -> None:
        results.setdefault(jobs[index]["model"], []).append(row)
        report.write("vllm_engine", {"results": results})
        print(json.dumps(row, indent=1), flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        logs = Path(temporary)
        if options.out != Path(report.__file__).parent / "results":
            logs = options.out / "engine-logs"

        def begin(number: int) -> children.Child:
            command = [sys.executable, str(Path(__file__).resolve()), "--inside"]
            return children.Child(command, logs / str(number), jobs[number], {"PYTHONUNBUFFERED": "1"})

        started = [functools.partial(begin, number) for number in range(len(jobs))]
        failed = children.in_turn(started, lambda index: min(EACH, end - time.monotonic()), heard)
    for index, why in failed.items():
        kept = {key: jobs[index][key] for key in ("part", "engine") if key in jobs[index]}
        heard(index, kept | {"failed": why})


if __name__ == "__main__":
    main()
