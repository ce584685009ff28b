"""Run directories made by hand: any number of steps in milliseconds, and whatever a response could say."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.objective import Objective

CONFIG = """\
[model]
name = "abacus"

[objective]
preset = "dapo"
aggregation = {aggregation}
{difficulty}
kl = 0.0

[train]
steps = {steps}
seed = {seed}
out = "elsewhere"
"""


def make_run(
    path: Path, *, steps: int = 20, seed: int = 0, aggregation: str = "balanced", difficulty: str | None = None,
    every: int = 5, groups: int = 3, size: int = 4, texts: list[str] | None = None,
) -> Path:  # fmt: skip
    """A run of an imagined policy that gets better; its bias metrics and coefficients are the objective's own."""
    rng = np.random.default_rng(seed)
    objective = Objective.preset("dapo", aggregation=aggregation, difficulty=difficulty or "none")
    (path / "rollouts").mkdir(parents=True)
    chosen = f'difficulty = "{difficulty}"' if difficulty else ""
    config = CONFIG.format(aggregation=json.dumps(aggregation), difficulty=chosen, steps=steps, seed=seed)
    (path / "config.toml").write_text(config)
    evaluations = []
    with open(path / "metrics.jsonl", "w") as log:
        for step in range(1, steps + 1):
            p = 0.3 + 0.5 * step / steps
            reward = (rng.random(groups * size) < p).astype(float)
            length = rng.integers(5, 40, groups * size) + 10 * (reward == 0)
            group = np.repeat(np.arange(groups), size)
            credit = objective.assign(reward, group, length)
            pull = float((credit.coefficient * credit.lengths).sum())
            record = {"step": step, "reward/mean": reward.mean(), "policy_loss": -pull, "clip_ratio/high": 0.0,
                      "entropy": 1 - step / (2 * steps), "completions/mean_length": length.mean(),
                      "timing_s/step": 2.0, **{k: float(v) for k, v in credit.metrics.items()}}  # fmt: skip
            log.write(json.dumps(record) + "\n")
            if step == 1 or step % every == 0:
                write_rollouts(path, step, reward, length, group, credit, texts)
            if step % every == 0:
                evaluations.append(evaluation(step, p))
    (path / "eval.jsonl").write_text("".join(json.dumps(e) + "\n" for e in [evaluation(0, 0.3), *evaluations]))
    return path


def evaluation(step: int, p: float) -> dict:
    values = {"acc@8": p, "best@8": min(p + 0.1, 1.0), "greedy": p}
    interval = {k: [max(v - 0.05, 0), min(v + 0.05, 1)] for k, v in values.items()}
    return {
        "step": step,
        **values,
        "length": 20.0,
        "interval": interval,
        "by_level": {"1": {"acc@8": p}, "2": {"acc@8": p / 2}},
    }


def write_rollouts(path: Path, step: int, reward, length, group, credit, texts: list[str] | None = None) -> None:
    n = len(reward)
    texts = texts or ["a plain response"]
    table = {
        "prompt_id": [f"p{g}" for g in group],
        "prompt": [f"prompt {g}: {texts[0]}" for g in group],
        "response": [texts[i % len(texts)] for i in range(n)],
        "length": length.tolist(),
        "finish": ["stop"] * n,
        "reward": reward.tolist(),
        "verdict": ["correct" if r else "wrong" for r in reward],
        "group": group.tolist(),
        "level": ["1"] * n,
        "advantage": credit.advantage.tolist(),
        "weight": credit.weight.tolist(),
        "accuracy": reward.tolist(),
        **{f"past_{name}": [0.0] * n for name in ("successes", "attempts", "age")},
        "coefficient": credit.coefficient.tolist(),
    }
    pq.write_table(pa.table(table), path / "rollouts" / f"step-{step}.parquet")
