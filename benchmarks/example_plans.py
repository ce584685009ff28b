"""The memory plans of examples/*.toml against what their runs take: planned and measured peaks, as JSON.

    python benchmarks/example_plans.py                              # all of them, the largest model last
    python benchmarks/example_plans.py qwen3_0.6b_gsm8k --limit 90  # one, for at most 90 seconds
    python benchmarks/example_plans.py qwen2.5_7b_lora_math --card 74 --out 80gb.json  # with 74 GiB free, as on 80 GB

Each example trains two steps as it stands, but for its model, which has the same shape with random weights and a word
for every token (nothing is downloaded), its data, which is random words, and its rewards, which differ at random. No
response ends by itself: every one is as long as `rollout.max_tokens` lets it be, the worst case of the memory. The
peaks are those of torch's allocator: of the update, which is what is planned, and of the whole step, sampling included.

Each runs in a process of its own, for at most --limit seconds. The file is written anew, whole, when an example begins
and after each of its steps: whatever is cut off, and whenever, leaves what was measured until then. Results of other
examples in the file stay, so that the rest can be measured by a second call.
Not covered: the time of a real run, whose responses are shorter.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import shapes
import torch

from equipoise.files import whole
from equipoise.train import Trainer, TrainerCallback, load

RESULTS = Path(__file__).parent / "results" / "example_plans.json"
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SHAPE_OF = {
    "smollm": "SmolLM2-135M",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": "Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B": "Qwen3-0.6B",
    "Qwen/Qwen2.5-1.5B": "Qwen2.5-1.5B",
    "Qwen/Qwen3-1.7B": "Qwen3-1.7B",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen2.5-7B",
}
PROMPT_WORDS = 256
STEPS = 2
GIB = 2**30
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {{ eos_token }} {% endfor %}"
REWARD = "def spread(prompt, response, row):\n    return sum(map(ord, response)) % 7 / 6\n"


def main() -> None:
    # what ends this process ends the example under way: a GPU is not left to a child that nobody waits for
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = _options()
    if options.inside is not None:
        _inside(options.names[0], options.inside, options.out)
        return
    if not torch.cuda.is_available():
        raise SystemExit("example_plans.py measures the memory of a GPU, and torch finds none here")
    taken = ballast(options.card)
    for name in sorted(options.names, key=lambda name: (size(name), name)):
        forget(options.out, name)
        with tempfile.TemporaryDirectory() as folder:
            trouble = bounded(child(name, Path(folder), options.out), options.limit)
        if trouble:
            note(options.out, {"example": name, "error": trouble})
        print(json.dumps(noted(options.out)[name]), flush=True)
    del taken


def ballast(free_gib: float | None) -> torch.Tensor | None:
    """Held here while the examples run in processes of their own, so that they find so much free and no more."""
    if free_gib is None:
        return None
    surplus = torch.cuda.mem_get_info()[0] - round(free_gib * GIB)
    if surplus < 0:
        raise SystemExit(f"--card {free_gib:g}: the GPU has {surplus / GIB + free_gib:.1f} GiB free")
    return torch.empty(surplus, dtype=torch.uint8, device="cuda")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.stem for path in EXAMPLES.glob("*.toml") if _shape(path) is not None)
    names = f"which examples (default: all that need a GPU): {', '.join(known)}"
    parser.add_argument("names", nargs="*", default=known, metavar="NAME", help=names)
    limit = "each example is ended after so many seconds, and what it had measured stays (default: %(default)s)"
    parser.add_argument("--limit", type=float, default=180, metavar="SECONDS", help=limit)
    card = "leave so much of the GPU free, to see the plan of a smaller one (default: all that is free)"
    parser.add_argument("--card", type=float, metavar="GIB", help=card)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help="the JSON (default: %(default)s)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # in the example's own process: its folder
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"{unknown[0]!r} is none of the examples for a GPU: {', '.join(known)}")
    return options


def size(name: str) -> int:
    """Weights of the example's model: the order of what is measured, and of what a cut-off costs."""
    shape = shapes.SHAPES[_shape(EXAMPLES / f"{name}.toml") or ""]
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    layer = shape.hidden * (attention + 3 * shape.intermediate)
    return shape.layers * layer + shape.hidden * shape.vocabulary * (1 if shape.tied else 2)


def child(name: str, folder: Path, out: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), name, "--inside", str(folder), "--out", str(out)]


def bounded(command: Sequence[str], limit: float) -> str:
    """Run it for at most `limit` seconds; why it did not come to its end, or nothing."""
    process = subprocess.Popen(command)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"ended after {limit:g} s (--limit)"
    finally:
        process.kill()
        process.wait()
    return f"its process ended with code {code}" if code else ""


def _inside(name: str, folder: Path, out: Path) -> None:
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    note(out, {"example": name, "device": card, "torch": torch.__version__, "python": sys.version.split()[0]})
    try:
        measured(name, folder, tell=lambda found: note(out, found))
    except (RuntimeError, ValueError) as error:  # memory that ran out is a result too
        note(out, {"example": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})


def noted(out: Path) -> dict[str, dict[str, Any]]:
    """What the file has, by example."""
    if not out.exists():
        return {}
    return {found["example"]: found for found in json.loads(out.read_text(encoding="utf-8"))["examples"]}


def note(out: Path, found: dict[str, Any]) -> None:
    """Add to what the file has of this example."""
    there = noted(out)
    there[found["example"]] = {**there.get(found["example"], {}), **found}
    _write(out, there)


def forget(out: Path, name: str) -> None:
    _write(out, {other: found for other, found in noted(out).items() if other != name})


def _write(out: Path, examples: dict[str, dict[str, Any]]) -> None:
    with whole(out, durable=True) as file:
        file.write_text(json.dumps({"examples": list(examples.values())}, indent=2) + "\n", encoding="utf-8")


def _shape(path: Path) -> str | None:
    table = tomllib.loads(path.read_text())
    return None if "sft" in table else SHAPE_OF.get(table.get("model", {}).get("name", ""))


def measured(
    name: str,
    folder: Path,
    *,
    shape: str | None = None,
    device: str = "cuda",
    words: int = PROMPT_WORDS,
    more: Sequence[str] = (),
    tell: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Two steps of an example with random weights of its model's shape, or of another one; `more` overrides.

    `tell` hears what is known when the model is there, and after each step.
    """
    shape = shape or _shape(EXAMPLES / f"{name}.toml")
    assert shape is not None, f"{name}: its model has no shape here"
    overrides = [*_overrides(folder, shape, device, words), *more]
    watch = Watch()
    trainer = Trainer(load(EXAMPLES / f"{name}.toml", overrides), callbacks=[watch])
    weights = sum(p.numel() for p in trainer.policy.model.parameters())
    found: dict[str, Any] = {"example": name, "shape": shape, "parameters": weights, "steps": 0}
    tell(found)
    watch.look(trainer, lambda metrics: tell(found | _figures(trainer, watch, metrics)))
    trainer.run()
    return found | _figures(trainer, watch, watch.metrics)


def _figures(trainer: Trainer, watch: Watch, metrics: dict[str, Any]) -> dict[str, Any]:
    plan = trainer.updater.plan
    assert plan is not None
    updates = [peak["update"] for peak in watch.peaks]
    last = updates[-1]
    return {
        "steps": trainer.step,
        "tokens_a_pass": plan.tokens,
        "gradient_checkpointing": plan.checkpointing,
        "planned_peak_gib": round(plan.peak / GIB, 2),
        "measured_update_gib": round(last / GIB, 2),
        "measured_first_update_gib": round(updates[0] / GIB, 2),  # which measures passes of several sizes
        "measured_step_gib": round(max(peak["step"] for peak in watch.peaks) / GIB, 2),
        "planned_to_measured": round(plan.peak / last, 3) if plan.peak and last else None,
        "seconds": round(time.perf_counter() - watch.begun, 1),
        "last_step_s": round(metrics["timing_s/step"], 2),
        "last_step_sampling_s": round(metrics["timing_s/rollout"], 2),
        "optimizer_steps": metrics["optimizer_steps"],
        "plan": plan.said,
    }


def _overrides(folder: Path, shape: str, device: str, words: int) -> list[str]:
    """What is not the example's own: its model, its data, its rewards, and how long it goes on."""
    shapes.save(shape, folder / "model", device)
    tokenizer = shapes.tokenizer(shapes.SHAPES[shape].vocabulary)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    rows = [{"question": text, "answer": "#### 7"} for text in shapes.prompts(512, words)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(REWARD)
    asked = {
        "model.name": str(folder / "model"), "model.device": device, "task.name": str(folder / "data.jsonl"),
        "task.held_out": "", "task.chat": True, "reward.functions": [f"{folder / 'reward.py'}:spread"],
        "reward.weights": [1.0], "eval.every": 0, "train.steps": STEPS,
        "train.out": str(folder / "run"), "log.terminal": False,
    }  # fmt: skip
    return [part for key, value in asked.items() for part in (f"--{key}", json.dumps(value))]


class Watch(TrainerCallback):
    """The peaks of every step, filled in as the run goes."""

    def __init__(self) -> None:
        self.peaks: list[dict[str, int]] = []
        self.metrics: dict[str, Any] = {}
        self.begun = time.perf_counter()

    def look(self, trainer: Trainer, after: Callable[[dict[str, Any]], None]) -> None:
        """Watch this trainer's updates, and have `after` called behind each step."""
        update, step = trainer.updater.update, trainer._step
        self.after = after

        def watched_update(*arguments: Any, **more: Any) -> Any:
            before = _peak()
            _reset()
            found = update(*arguments, **more)
            self.peaks.append({"update": _peak(), "step": max(before, _peak())})
            return found

        def watched_step() -> None:
            _reset()
            step()

        trainer.updater.update, trainer._step = watched_update, watched_step  # type: ignore[method-assign]
        trainer._checkpoint = lambda: None  # type: ignore[method-assign]  # nobody wants these weights

    def on_step(self, step: int, metrics: dict[str, Any]) -> None:
        self.metrics = metrics
        self.after(metrics)


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _reset() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
