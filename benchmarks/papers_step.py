"""A whole step at the papers' settings, ours against TRL with vLLM colocated, and the GPU-hours of their runs.

    python benchmarks/papers_step.py [--share 0.125] [--seconds 600] [--out FOLDER] [--settings NAME …]
    python benchmarks/papers_step.py --share 1 --engines equipoise --each 600 --set rollout.cache_dtype fp8
    python benchmarks/papers_step.py --settings --shape Qwen3-0.6B 32 16 512 --shape Qwen3-1.7B 16 16 4096

The settings are the recipes': Balanced Aggregation's (Qwen3-1.7B, 128 prompts × 16 responses of up to 8,192 tokens,
4 mini-batches, 500 steps) and HA-DW's (Qwen3-4B, 256 × 8 × 4,096, 16 mini-batches, 87 steps: 3 epochs of MATH). Random
weights; lengths are lognormal, mean 0.4 of the limit, coefficient of variation 0.6, the same for both. Random weights
are never right: rewards are coins beside a verifier's, and a batch is drawn once (no dynamic sampling). `--share` of
the prompts are taken, with as many mini-batches: a whole batch keeps an H200 busy for minutes. Of ours, `drawn_again`
is the share of tokens of rows that the cache had no room for, which are drawn a second time. Seconds are given as
measured and, divided by the share, for the whole batch: sampling is then counted too high, because fewer rows are
decoded together.

`--shape`: a whole batch of another model and size, one mini-batch, by Balanced Aggregation's recipe; no run's hours.

Each is a child process that does a short step first, then the measured one, and is bounded. TRL runs with bfloat16
weights and optimizer, sdpa, passes of some 32,768 tokens (from 7B on of half as many), gradient checkpointing (with
`--shape` only from 4B or 2,048 tokens on), vLLM asleep while it trains. equipoise keeps float32 master weights and
follows the recipe, but for the size of its passes, which it plans itself. Peak GiB are torch's, which counts what a
sleeping vLLM gave back. Written after every row to FOLDER/papers_step.json. `--toy`: tiny models on the CPU, which
shows that it runs and no more; TRL with vLLM may live in another environment (`--trl-python`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import children  # benchmarks/children.py
import lengths as spread
import report
import shapes
import torch

RECIPES = Path(__file__).resolve().parents[1] / "recipes" / "papers"
MEAN, CV = 0.4, 0.6
PROMPT = 128
WARM = 16  # the first step's responses are so many times shorter
PASS = 32_768  # tokens of a pass of TRL's
LARGEST = ("Qwen3-8B", "Qwen2.5-7B")
LARGE = ("Qwen3-4B", *LARGEST)
FIRST_RECIPE = "balanced_qwen3_1.7b_dapo17k.toml"
PARTS = ("rollout", "reward", "assign", "train", "log")
GIB = 2**30


class Setting(NamedTuple):
    """`steps`: 0 if nobody's run. TRL's: `micro`, responses of a pass, and `checkpointing`, of its gradients."""

    recipe: str
    model: str
    prompts: int
    group: int
    tokens: int
    mini_batches: int
    steps: int
    micro: int
    checkpointing: bool = True


SETTINGS = {
    "Balanced Aggregation": Setting(FIRST_RECIPE, "Qwen3-1.7B", 128, 16, 8192, 4, 500, 4),
    "HA-DW": Setting("hadw_grpo.toml", "Qwen3-4B", 256, 8, 4096, 16, 87, 4),
}
TOY = {
    "Balanced Aggregation": Setting(FIRST_RECIPE, "toy", 8, 4, 48, 2, 500, 4),
    "HA-DW": Setting("hadw_grpo.toml", "toy", 8, 4, 24, 4, 87, 4),
}


def of_shape(model: str, prompts: int, group: int, tokens: int) -> tuple[str, Setting]:
    """A batch that is no paper's, and its name."""
    rows, together = prompts * group, PASS // 2 if model in LARGEST else PASS
    micro = next(m for m in range(max(1, min(rows, together // tokens)), 0, -1) if rows % m == 0)
    checkpointing = tokens >= 2048 or model in LARGE
    setting = Setting(FIRST_RECIPE, model, prompts, group, tokens, 1, 0, micro, checkpointing)
    return f"{model}, {prompts} × {group} × {tokens}", setting


def drawn(setting: Setting, rows: int, call: int) -> list[int]:
    """Lengths of the responses of a call; the first call is short and warms up."""
    longest = max(2, setting.tokens // WARM) if call == 0 else setting.tokens
    found: list[int] = spread.lognormal(rows, MEAN * longest, CV, longest).tolist()
    return found


def drawn_again() -> list[int]:
    """Of every row that the cache has no room for from now on, the tokens it had."""
    from equipoise.rollout.blocks import Scheduler

    lost: list[int] = []
    send_back = Scheduler._send_back

    def noting(scheduler: Scheduler, row: int) -> None:
        lost.append(int(scheduler.drawn[row]))
        send_back(scheduler, row)

    Scheduler._send_back = noting  # type: ignore[method-assign]
    return lost


def ours(job: dict[str, Any], setting: Setting, folder: Path, data: Path) -> dict[str, Any]:
    from given_lengths import GivenLengths  # benchmarks/given_lengths.py
    from step_gpu import with_coins

    from equipoise.train import Trainer, load, read_lines

    class Sampler(GivenLengths):
        calls = 0

        def sample(self, prompts: Any, n: int, params: Any, **more: Any) -> Any:
            given = drawn(setting, len(prompts) * n, self.calls)
            self.calls += 1
            self.lengths = torch.tensor(given, device=self.policy.device)
            lost.clear()
            rollouts = super().sample(prompts, n, params, **more)
            # What ends before the limit counts as ended, not as cut.
            finish = ["length" if length >= params.max_tokens else "stop" for length in given]
            return dataclasses.replace(rollouts, finish=finish)

    lost = drawn_again()
    asked = {
        "model.name": str(folder), "model.device": job["device"], "model.dtype": job["dtype"],
        "task.name": str(data), "task.template": "", "task.held_out": "", "task.verifier": "math",
        "rollout.dynamic_sampling": False, "rollout.prompts": job["prompts"],
        "rollout.max_tokens": setting.tokens, "rollout.group_size": setting.group,
        "train.mini_batch": job["prompts"] // setting.mini_batches, "train.steps": 2,
        "train.micro_batch": 0, "train.micro_tokens": 0, "model.gradient_checkpointing": False,
        "train.out": str(folder.parent / "run"), "train.checkpoint_every": 10**6, "eval.every": 0,
        "log.rollouts_every": 0, "log.terminal": False,
    }  # fmt: skip
    overrides = [part for key, value in asked.items() for part in (f"--{key}", json.dumps(value))]
    overrides += [part for key, value in job["set"] for part in (f"--{key}", value)]
    trainer = Trainer(load(RECIPES / setting.recipe, overrides))
    trainer._checkpoint = lambda: None  # what is measured are steps
    trainer.collector.sampler = sampler = Sampler(trainer.policy)
    trainer.collector.scorer.settle = with_coins(trainer.collector.scorer.settle)
    if job["device"] == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.run()
    record = read_lines(trainer.folder.metrics)[-1]
    return {
        "seconds": record["timing_s/step"],
        "parts": {part: record[key] for part in PARTS if (key := f"timing_s/{part}") in record},
        "mean_length": float(sampler.lengths.float().mean()),
        **({"set": dict(job["set"])} if job["set"] else {}),
        "drawn_again": sum(lost) / int(sampler.lengths.sum()),
        "peak_gib": _peak(job),
    }


def theirs(job: dict[str, Any], setting: Setting, folder: Path, data: Path) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    texts = [json.loads(line)["problem"] for line in data.read_text().splitlines()]
    rows = job["prompts"] * setting.group
    steps: list[float] = []
    generation: list[float] = []
    count: list[int] = []

    def coins(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return torch.randint(2, (len(completions),)).float().tolist()

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **more: Any) -> None:
            self.start = _now(job)

        def on_step_end(self, *args: Any, **more: Any) -> None:
            steps.append(_now(job) - self.start)

    cuda = job["device"] == "cuda"
    micro = min(setting.micro, rows // setting.mini_batches)
    config = GRPOConfig(
        output_dir=str(data.parent / "out"), use_cpu=not cuda, bf16=cuda, per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // setting.mini_batches // micro, steps_per_generation=rows // micro,
        num_generations=setting.group, max_completion_length=setting.tokens, temperature=1.0, top_p=1.0, top_k=0,
        loss_type="dapo", epsilon_high=0.28, beta=0.0, learning_rate=1e-6, max_steps=2 * setting.mini_batches,
        logging_steps=1, save_strategy="no", report_to="none", optim="adamw_torch_fused" if cuda else "adamw_torch",
        gradient_checkpointing=cuda and setting.checkpointing, disable_dropout=True, shuffle_dataset=False,
        disable_tqdm=True, seed=0, use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=cuda,
        vllm_gpu_memory_utilization=job["memory"], vllm_max_model_length=setting.tokens + 2 * PROMPT,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, job["dtype"])),
        reward_funcs=coins,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[Clock()],
    )
    llm = trainer.vllm_generation.llm
    generate = llm.generate

    def forced(prompts: list[Any], sampling_params: Any, **more: Any) -> Any:
        each = []
        for length in drawn(setting, len(prompts), len(generation)):
            params = sampling_params.clone()
            params.max_tokens, params.ignore_eos = length, True
            each.append(params)
        start = _now(job)
        outputs = generate(prompts, sampling_params=each, **more)
        generation.append(_now(job) - start)
        count.append(sum(len(output.outputs[0].token_ids) for output in outputs))
        return outputs

    llm.generate = forced
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        # vLLM's CPU build repacks its weights, and TRL's way of sending new ones does not find them there.
        trainer.vllm_generation.sync_weights = lambda: None
    trainer.train()
    return {
        "seconds": sum(steps[-setting.mini_batches :]),
        "parts": {"rollout": generation[-1]},
        "mean_length": count[-1] / rows,
        "peak_gib": _peak(job),
    }


def _now(job: dict[str, Any]) -> float:
    if job["device"] == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _peak(job: dict[str, Any]) -> float | None:
    return torch.cuda.max_memory_allocated() / GIB if job["device"] == "cuda" else None


def inside(folder: Path, engine: str) -> None:
    """The child: a model of the shape on the disk, some prompts, and the two steps."""
    if engine == "trl":
        # Imported while another child measures; TRL takes vLLM in process.
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        # Triton's usual folder: vLLM would take another for every model, and compile its sampler's kernels in it.
        os.environ.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
        import trl
        import vllm  # noqa: F401

        trl.GRPOTrainer  # noqa: B018
    job = children.job(folder)
    setting = Setting(*job["setting"])
    with tempfile.TemporaryDirectory() as temporary:
        model, data = Path(temporary) / "model", Path(temporary) / "prompts.jsonl"
        built = shapes.build(setting.model, device=job["device"], dtype=getattr(torch, job["dtype"]))
        built.save_pretrained(model)
        shapes.tokenizer(built.config.vocab_size).save_pretrained(model)
        del built
        words = min(PROMPT, 8) if setting.model == "toy" else PROMPT
        most = 500 if setting.model == "toy" else 40_000
        g = torch.Generator().manual_seed(0)
        ids = torch.randint(3, most, (4 * job["prompts"], words), generator=g).tolist()
        texts = [" ".join(map(shapes.word, row)) for row in ids]
        data.write_text("".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in texts))
        if engine == "equipoise":
            children.found(folder, ours(job, setting, model, data))
        else:
            children.found(folder, theirs(job, setting, same_name(model, setting.model), data))


def same_name(folder: Path, model: str) -> Path:
    """The folder by a name that stays from run to run: it is part of what vLLM finds a compiled model by."""
    link = Path(tempfile.gettempdir()) / f"step-{model}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    return link


def report_row(name: str, engine: str, row: dict[str, Any], setting: Setting, share: float) -> dict[str, Any]:
    """With the whole batch's seconds and a paper's run's hours, from those of a share of it."""
    whole = {"batch_seconds": row["seconds"] / share}
    said = f"a batch {whole['batch_seconds']:.0f} s"
    if setting.steps:
        whole["run_gpu_hours"] = whole["batch_seconds"] * setting.steps / 3600
        said += f", {setting.steps} steps {whole['run_gpu_hours']:.1f} GPU-hours"
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in row["parts"].items())
    parts += f"; {100 * row['drawn_again']:.0f} % drawn again" if "drawn_again" in row else ""
    peak = "" if row["peak_gib"] is None else f", peak {row['peak_gib']:.1f} GiB"
    print(
        f"{name}, {engine}: {row['seconds']:.1f} s for {share:g} of a batch (mean length {row['mean_length']:.0f}; "
        f"{parts}){peak}; {said}",
        flush=True,
    )
    return row | {"share": share} | whole


def jobs_of(options: argparse.Namespace) -> Iterator[tuple[str, str, Setting, dict[str, Any]]]:
    settings = TOY if options.toy else {name: SETTINGS[name] for name in options.settings}
    shapes_asked = [(model, *map(int, sizes)) for model, *sizes in options.shape]
    for name, setting in [*settings.items(), *(of_shape(*shape) for shape in shapes_asked)]:
        share = options.share if setting.steps and not options.toy else 1
        prompts = round(share * setting.prompts)
        # At least one prompt in a mini-batch, and as many in each.
        prompts = max(setting.mini_batches, prompts // setting.mini_batches * setting.mini_batches)
        for engine in options.engines:
            job = {
                "setting": setting,
                "prompts": prompts,
                "device": "cpu" if options.toy else "cuda",
                "dtype": "float32" if options.toy else "bfloat16",
                "memory": 0.2 if options.toy else 0.4,
                "set": options.set,
            }
            yield name, engine, setting, job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.125, help="of a batch's prompts")
    parser.add_argument("--seconds", type=float, default=600.0, help="in all")
    parser.add_argument("--each", type=float, default=240.0, help="of a child at most")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder of the JSON")
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    sizes = ("MODEL", "PROMPTS", "GROUP", "TOKENS")
    parser.add_argument("--shape", nargs=4, action="append", default=[], metavar=sizes, help="another batch")
    parser.add_argument("--engines", nargs="+", choices=["equipoise", "trl"], default=["equipoise", "trl"])
    parser.add_argument("--set", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"), help="in our recipe")
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--trl-python", default=sys.executable, help="the Python that has TRL and vLLM")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        inside(Path(options.inside[1]), options.inside[0])
        return
    children.ended_by_signal()
    report.RESULTS = options.out
    end = time.monotonic() + options.seconds
    jobs = list(jobs_of(options))
    results: dict[str, Any] = {}

    def keep(index: int, row: dict[str, Any]) -> None:
        name, engine, setting, job = jobs[index]
        found = results.setdefault(name, {"setting": setting._asdict()})
        found[engine] = (
            row if "failed" in row else report_row(name, engine, row, setting, job["prompts"] / setting.prompts)
        )
        if all("seconds" in found.get(engine, {}) for engine in ("equipoise", "trl")):
            found["trl_times_as_long"] = found["trl"]["seconds"] / found["equipoise"]["seconds"]
            print(f"{name}: TRL takes {found['trl_times_as_long']:.2f} × our time", flush=True)
        report.write("papers_step", {"results": results})

    with tempfile.TemporaryDirectory() as temporary:
        logs = Path(temporary)
        if options.out != Path(report.__file__).parent / "results":
            logs = options.out / "step-logs"

        def begin(index: int) -> children.Child:
            _, engine, _, job = jobs[index]
            python = sys.executable if engine == "equipoise" else options.trl_python
            command = [python, str(Path(__file__).resolve()), "--inside", engine]
            return children.Child(command, logs / f"{index}-{engine}", job, {"PYTHONUNBUFFERED": "1"})

        started = [functools.partial(begin, index) for index in range(len(jobs))]
        failed = children.in_turn(started, lambda index: min(options.each, end - time.monotonic()), keep)
    for index, why in failed.items():
        keep(index, {"failed": why})
        print(f"{jobs[index][0]}, {jobs[index][1]}: {why}", flush=True)


if __name__ == "__main__":
    main()
