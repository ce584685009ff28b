"""Weights, gradients and moments in shards (FSDP2 on gloo processes): the numbers of one process, any checkpoint."""

import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from equipoise.policy import decoder
from equipoise.train import ConfigError, RunFolder, Trainer, checkpoint

from .conftest import ENVIRONMENT, ROOT
from .test_split import ROUNDING, assert_same_curve, distance, first_gradient, free_port, weights
from .tiny import make_model, metrics, overrides, settings

# Three prompts for two processes and one response a pass: one process has twice as many passes to make.
UNEVEN = {
    "train__shard": True, "rollout__prompts": 3, "train__micro_batch": 1, "objective__preset": "dapo",
    "train__checkpoint_every": 1, "train__keep": 9, "eval__every": 0,
}  # fmt: skip
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """With two layers: each is gathered by itself."""
    return make_model(tmp_path_factory.mktemp("model") / "two-layers", layers=2)


@pytest.fixture
def run(server, model, tmp_path):
    """run("name", ranks=2, train__steps=3, …) trains into tmp_path/name, and goes on where a run is there."""
    file = tmp_path / "empty.toml"
    file.touch()

    def start(name: str, ranks: int = 1, **options):
        out, options = tmp_path / name, UNEVEN | options
        resume = RunFolder(out).config.exists()
        if ranks == 1:
            Trainer(settings(model, out, log__terminal=False, **options), resume=resume).run()
            return out
        arguments = ["train", str(file), *(["--resume"] if resume else []), *overrides(model, out, **options)]
        shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        each = [shared | {"RANK": str(k), "LOCAL_RANK": str(k)} for k in range(ranks)]
        for ended in [child.end() for child in [server.start(arguments, environment=e) for e in each]]:
            assert ended.code == 0, ended.stderr
        return out

    return start


def step(out, k: int):
    return RunFolder(out).checkpoints / f"step-{k}"


def state(out, k: int) -> dict:
    return torch.load(step(out, k) / checkpoint.STATE, weights_only=False)["optimizer"]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_shards_change_nothing(run, ranks):
    options = {"train__steps": 2, "objective__kl": 0.05, "rollout__exact": True, "rollout__top_p": 0.9}
    options |= {"eval__every": 2}
    one, many = run("one", **options), run("many", ranks, **options)
    assert distance(first_gradient(many), first_gradient(one)) < 1e-6
    assert_same_curve(many, one)
    assert metrics(one)[-1]["kl"] > 0
    assert distance(weights(many), weights(one)) < ROUNDING
    assert {p.relative_to(one) for p in one.rglob("*")} == {p.relative_to(many) for p in many.rglob("*")}
    shapes = [[s["exp_avg_sq"].shape for s in state(out, 2)["state"].values()] for out in (one, many)]
    assert shapes[0] == shapes[1]
    opened = AutoModelForCausalLM.from_pretrained(step(many, 2)).state_dict()
    assert all(torch.equal(opened[k], v) for k, v in load_file(step(many, 2) / WEIGHTS).items())


@pytest.mark.parametrize(
    ("dtype", "recompute"),
    [
        pytest.param("bfloat16", True, marks=pytest.mark.long),
        *(pytest.param(d, False, marks=pytest.mark.slow) for d in ("float32", "bfloat16")),
    ],
)
def test_a_checkpoint_resumes_on_any_number_of_processes(run, tmp_path, dtype, recompute):
    """On as many bit for bit; on another number from the same masters and moments, with the numbers of that step."""
    options = {"model__dtype": dtype, "optim__state": "8bit", "optim__lr": 1e-3}
    options |= {"model__gradient_checkpointing": recompute}
    out = run("run", 2, train__steps=2, **options)
    shutil.copytree(out, tmp_path / "alone")
    run("run", 2, train__steps=3, **options)
    whole = run("whole", 2, train__steps=3, **options)
    for k in (2, 3):
        assert (step(whole, k) / WEIGHTS).read_bytes() == (step(out, k) / WEIGHTS).read_bytes()
        for a, b in zip(tensors(state(whole, k)), tensors(state(out, k)), strict=True):
            assert torch.equal(a, b)
    alone = run("alone", train__steps=3, **options)
    bound = 0.02 if dtype == "bfloat16" else 1e-4
    assert metrics(alone)[2]["grad_norm"] == pytest.approx(metrics(out)[2]["grad_norm"], rel=bound)
    kept, other = state(out, 3), state(alone, 3)
    assert [t.shape for t in tensors(kept)] == [t.shape for t in tensors(other)]
    trained = list(AutoModelForCausalLM.from_pretrained(step(out, 3), dtype=getattr(torch, dtype)).parameters())
    assert len(kept["masters"]) == (len(trained) if dtype == "bfloat16" else 0)
    for master, rounded in zip(kept["masters"], trained, strict=False):
        assert torch.equal(master.bfloat16(), rounded)
    moved = [float((a - b).abs().max()) for a, b in zip(kept["masters"], other["masters"], strict=True)]
    assert max(moved, default=0.0) < 3e-3  # a step of at most 1e-3 either way
    # One step on, the averages still tell whose they were: nine tenths are the checkpoint's.
    for a, b in zip(kept["state"].values(), other["state"].values(), strict=True):
        assert distance(a["exp_avg"], b["exp_avg"]) < 0.1


def tensors(state: dict) -> list[torch.Tensor]:
    moments = [t for s in (*state["state"].values(), *state["coded"]) for t in s.values() if t.dim()]
    return [*moments, *state["masters"]]


@pytest.mark.slow
def test_one_process_resumes_in_shards(run):
    """What one process began, two go on with."""
    options = {"optim__state": "8bit", "model__dtype": "bfloat16", "optim__lr": 1e-3}
    out = run("run", train__steps=1, **options)
    before = state(out, 1)
    run("run", 2, train__steps=2, **options)
    for a, b in zip(before["masters"], state(out, 2)["masters"], strict=True):
        assert 0 < float((a - b).abs().max()) < 3e-3
    assert [r["step"] for r in metrics(out)] == [1, 2]


@pytest.mark.parametrize("option", [{"model__lora_rank": 2}, {"train__micro_batch": 0}, {"rollout__engine": "vllm"}])
def test_what_cannot_be_sharded_is_refused(model, tmp_path, option):
    with pytest.raises(ConfigError, match=r"train\.shard = true: must go without LoRA"):
        settings(model, tmp_path, **UNEVEN | option)


def test_a_model_of_another_kind_is_refused_before_anything_is_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(decoder, "is_llama_like", lambda core: False)
    with pytest.raises(ConfigError, match=r"needs a Llama-like model, and .* is none"):
        Trainer(settings(model, tmp_path / "run", **UNEVEN))
    assert not RunFolder(tmp_path / "run").config.exists()


@pytest.mark.slow
def test_families_have_the_gradients_of_whole_models():
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command = [sys.executable, "-m", "tests.train.shard_families"]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT | shared | {"RANK": str(k)}, stdout=subprocess.PIPE)
        for k in (0, 1)
    ]
    assert [p.communicate()[0] for p in both] == [b"the same\n"] * 2
