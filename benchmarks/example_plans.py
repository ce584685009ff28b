"""The memory plans of examples/*.toml against what their runs take: planned and measured peaks, as JSON.

    python benchmarks/example_plans.py [NAME …] [--out FILE]

Each example trains two steps as it stands, but for its model, which has the same shape with random weights and a word
for every token (nothing is downloaded), its data, which is random words, and its rewards, which differ at random. No
response ends by itself: every one is as long as `rollout.max_tokens` lets it be, the worst case of the memory. The
peaks are those of torch's allocator: of the update, which is what is planned, and of the whole step, sampling included.
Not covered: the time of a real run, whose responses are shorter.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shapes
import torch

from equipoise.train import Trainer, load

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.stem for path in EXAMPLES.glob("*.toml") if _shape(path) is not None)
    parser.add_argument("names", nargs="*", default=known, help="examples (default: all that need a GPU)")
    parser.add_argument("--out", type=Path, default=None, help="a file for the JSON, beside printing it")
    options = parser.parse_args()
    found = []
    for name in options.names:
        try:
            found.append(measured(name))
        except (RuntimeError, ValueError) as error:  # memory that ran out is a result too
            found.append({"example": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
        print(json.dumps(found[-1]), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        if options.out is not None:
            options.out.write_text(json.dumps(_record(found), indent=2) + "\n")


def _shape(path: Path) -> str | None:
    table = tomllib.loads(path.read_text())
    return None if "sft" in table else SHAPE_OF.get(table.get("model", {}).get("name", ""))


def _record(found: list[dict[str, Any]]) -> dict[str, Any]:
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": card, "torch": torch.__version__, "python": sys.version.split()[0], "examples": found}


def measured(
    name: str, shape: str | None = None, device: str = "cuda", words: int = PROMPT_WORDS, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Two steps of an example with random weights of its model's shape, or of another one; `more` overrides."""
    shape = shape or _shape(EXAMPLES / f"{name}.toml")
    assert shape is not None, f"{name}: its model has no shape here"
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*_overrides(Path(folder), shape, device, words), *more]
        trainer = Trainer(load(EXAMPLES / f"{name}.toml", overrides))
        peaks = _watched(trainer)
        begun = time.perf_counter()
        trainer.run()
        seconds = time.perf_counter() - begun
        steps = [json.loads(line) for line in trainer.folder.metrics.read_text().splitlines()]
        plan, parameters = trainer.updater.plan, sum(p.numel() for p in trainer.policy.model.parameters())
    assert plan is not None
    first, *_, last = (peak["update"] for peak in peaks)  # the first one measures passes of several sizes
    return {
        "example": name,
        "shape": shape,
        "parameters": parameters,
        "tokens_a_pass": plan.tokens,
        "gradient_checkpointing": plan.checkpointing,
        "planned_peak_gib": round(plan.peak / GIB, 2),
        "measured_update_gib": round(last / GIB, 2),
        "measured_first_update_gib": round(first / GIB, 2),
        "measured_step_gib": round(max(peak["step"] for peak in peaks) / GIB, 2),
        "planned_to_measured": round(plan.peak / last, 3) if plan.peak and last else None,
        "seconds": round(seconds, 1),
        "last_step_s": round(steps[-1]["timing_s/step"], 2),
        "last_step_sampling_s": round(steps[-1]["timing_s/rollout"], 2),
        "optimizer_steps": steps[-1]["optimizer_steps"],
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


def _watched(trainer: Trainer) -> list[dict[str, int]]:
    """The peaks of every step, filled in as the run goes."""
    peaks: list[dict[str, int]] = []
    update, step = trainer.updater.update, trainer._step

    def watched_update(*arguments: Any, **more: Any) -> Any:
        before = _peak()
        _reset()
        found = update(*arguments, **more)
        peaks.append({"update": _peak(), "step": max(before, _peak())})
        return found

    def watched_step() -> None:
        _reset()
        step()

    trainer.updater.update, trainer._step = watched_update, watched_step  # type: ignore[method-assign]
    trainer._checkpoint = lambda: None  # type: ignore[method-assign]  # nobody wants these weights
    return peaks


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _reset() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
