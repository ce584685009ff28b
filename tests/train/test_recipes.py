"""The papers' settings as files: every field against the papers' tables, and two steps on the embedded model."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.study.compare import variants
from equipoise.tasks.templates import PROMPTS
from equipoise.train import load

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes" / "papers"
SWEEPS = ROOT / "recipes" / "sweeps"

# HA-DW, arXiv 2601.08521, Table 8, and its best λ. 3 epochs (DAPO 9) of 7,500 prompts, 7500 // 256 batches each.
TABLE_8 = {
    "rollout.prompts": 256, "train.mini_batch": 16, "train.micro_batch": 4, "rollout.group_size": 8, "optim.lr": 1e-6,
    "optim.warmup": 10, "optim.weight_decay": 0.1, "optim.clip_norm": 1.0, "objective.kl": 0.0,
    "task.max_prompt_tokens": 1024, "rollout.max_tokens": 4096, "rollout.dynamic_sampling": False, "train.updates": 1,
    "eval.every": 5, "eval.samples": 16, "task.template": "hadw",
}  # fmt: skip
CLIPS = {"grpo": (0.2, 0.2), "gspo": (3e-4, 4e-4), "dapo": (0.2, 0.28)}
EPOCHS = {"grpo": 3, "gspo": 3, "dapo": 9}
# Balanced Aggregation, arXiv 2605.04077, its set-up.
BALANCED = {
    "rollout.group_size": 16, "rollout.prompts": 128, "optim.lr": 1e-6, "train.steps": 500,
    "rollout.temperature": 1.0, "eval.samples": 8, "objective.preset": "dapo",
}  # fmt: skip
TOKENS = {"qwen2.5_math_7b": 2048, "qwen3_1.7b": 8192}
SMALL = {
    "model.name": "abacus", "model.dtype": "float32", "model.device": "cpu", "model.gradient_checkpointing": "false",
    "task.name": "arithmetic", "task.held_out": "", "task.template": "", "rollout.prompts": 4, "rollout.group_size": 4,
    "rollout.max_tokens": 32, "train.mini_batch": 2, "train.steps": 2, "train.micro_tokens": 0, "eval.samples": 2,
    "eval.per_level": 1, "eval.every": 2, "log.terminal": "false", "train.threads": 1,
}  # fmt: skip


def field(config, name):
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


@pytest.mark.parametrize("base", CLIPS)
def test_hadw_is_table_8(base):
    config = load(RECIPES / f"hadw_{base}.toml")
    assert {name: field(config, name) for name in TABLE_8} == TABLE_8
    assert config.train.steps == EPOCHS[base] * (7500 // 256)
    objective = config.build_objective()
    assert (objective.surrogate.options["low"], objective.surrogate.options["high"]) == CLIPS[base]
    assert objective.difficulty.lam == 1.3
    assert config.optimizer_steps == 16 * config.train.steps
    assert PROMPTS["hadw"].endswith(r"Let's think step by step and output the final answer within \boxed{}.")


@pytest.mark.parametrize("data", ["dapo17k", "polaris"])
@pytest.mark.parametrize("model", TOKENS)
def test_balanced_is_the_papers_setup(model, data):
    config = load(RECIPES / f"balanced_{model}_{data}.toml")
    assert {name: field(config, name) for name in BALANCED} == BALANCED
    assert config.rollout.max_tokens == TOKENS[model]
    objective = config.build_objective()
    assert objective.aggregation.name == "balanced"
    assert (objective.surrogate.options["low"], objective.surrogate.options["high"]) == (0.2, 0.28)
    assert data in config.task.name


def test_every_recipe_is_checked():
    names = {path.stem for path in RECIPES.glob("*.toml")}
    wanted = {f"hadw_{base}" for base in CLIPS} | {f"balanced_{m}_{d}" for m in TOKENS for d in ("dapo17k", "polaris")}
    assert names == wanted


# Those on Polaris are those on DAPO's data but for the data, and those of HA-DW differ in what they clip.
TRIED = [f"balanced_{model}_dapo17k" for model in TOKENS] + ["hadw_grpo"]
NAMES = [
    pytest.param(path.stem, marks=() if path.stem in TRIED else pytest.mark.long)
    for path in sorted(RECIPES.glob("*.toml"))
]


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_on_the_embedded_model(name, tmp_path):
    """The recipe as it stands, with the model and the sizes replaced: several optimizer steps of each batch."""
    overrides = [part for key, value in SMALL.items() for part in (f"--{key}", str(value))]
    main(["train", str(RECIPES / f"{name}.toml"), *overrides, "--train.out", str(tmp_path / "run")])
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 2
    assert 2 < steps[-1]["optimizer_steps"] <= 4  # two of each batch, but for parts that nothing pulls on
    assert all(step["grad_norm"] > 0 for step in steps)
    assert ("difficulty/anchor" in steps[0]) == name.startswith("hadw")
    # What was run is the recipe, but for what had to be smaller.
    ran, recipe = load(tmp_path / "run" / "config.toml").flat(), load(RECIPES / f"{name}.toml").flat()
    assert {key for key in recipe if ran[key] != recipe[key]} <= {*SMALL, "train.out", "task.chat"}
    assert (recipe["task.chat"], ran["task.chat"]) == ("auto", False)  # the embedded model has no chat template


def test_verls_recipe_of_hadw_is_table_8_too():
    script = (ROOT / "recipes" / "verl" / "hadw_qwen3_4b_math.sh").read_text()
    assert "MINI_BATCH:-16" in script
    assert "DYNAMIC=False" in script
    assert "DYNAMIC=True" not in script
    assert "trainer.test_freq=5" in script
    assert re.findall(r"STEPS:-(\d+)", script) == ["87", "87", "261"]


@pytest.mark.parametrize(("name", "count"), [("lambda", 7), ("group", 8), ("anchors", 5)])
def test_sweeps_are_what_compare_takes(name, count, tmp_path):
    """The script with a stand-in for the command, which writes its arguments down; every variant can be loaded."""
    said = tmp_path / "said"
    stand_in = tmp_path / "equipoise"
    stand_in.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" > "{said}"\n')
    stand_in.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([SWEEPS / f"{name}.sh"], check=True, cwd=ROOT, env=environment)
    words = said.read_text().splitlines()
    assert words[:2] == ["compare", "examples/abacus.toml"]
    found = variants([words[i + 1] for i, word in enumerate(words) if word == "--vary"])
    assert len(found) == count
    for settings in found.values():
        overrides = [part for key, value in settings.items() for part in (f"--{key}", value)]
        load(ROOT / words[1], overrides)
        load(None, overrides)  # nor does a sweep lean on a choice of its configuration's
