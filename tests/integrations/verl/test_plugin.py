"""The plug-in inside the real verl 0.9: found by its entry point, exact through its loss, kept with its checkpoints.

verl lives in an environment of its own (`make test-verl`); elsewhere these tests skip.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import itertools
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import types

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager
from verl.utils.config import omega_conf_to_dataclass, validate_config

from equipoise import Objective, audit, doctor
from equipoise.integrations.verl import plugin
from equipoise.objective.surrogate import SEQUENCE_LEVEL
from equipoise.policy import load
from tests.integrations.verl import pipeline
from tests.integrations.verl.pipeline import advantages, configuration, drawn, ours, pad, theirs

TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def _fresh():
    plugin._objective.cache_clear()
    plugin._watch()


def distance(a, b) -> float:
    """The larger relative difference, of gradients or of values; a value near 0 is held to its parts."""
    (x, dx), (y, dy) = a, b
    dx, dy = torch.cat(dx), torch.cat(dy)
    return max(float((x - y).abs() / dy.abs().sum()), float((dx - dy).abs().max() / dy.abs().max()))


# An aggregation, a difficulty and a cancellation each, with every surrogate that may go with them.
STACKS = [
    "{preset: dapo, aggregation: balanced}",
    "{preset: grpo, cancellation: recentre}",
    "{preset: dr_grpo, aggregation: {name: constant, length: 12.0}}",
    "{preset: grpo, aggregation: {name: power, alpha: 0.75}, cancellation: min_replace}",
    "{preset: grpo, aggregation: balanced, cancellation: orthogonal, averaged_groups: informative}",
    "{preset: gspo, aggregation: balanced}",
    "{preset: gmpo}",
    "{preset: cispo, difficulty: {name: hadw, anchor: fixed}}",
    "{preset: sapo, aggregation: {name: token, over: group}}",
    "{preset: luspo}",
    "{preset: vespo}",
    "{preset: aspo, difficulty: {name: hadw, lam: 1.5}, aggregation: balanced}",
    "{preset: dppo}",
    "{preset: rloo}",
    "{preset: maxrl}",
    "{preset: reinforce}",
    "{preset: dfpo, cancellation: none}",
]


@pytest.mark.parametrize("stack", STACKS)
def test_the_loss_is_ours_through_verls_own_code(stack, monkeypatch):
    """Shuffled, ragged, padded; whole batches and mini-batches; one rank and two; random micro-batches.

    A session of several outputs is one response, but for a sequence-level ratio, which the workers take per output.
    """
    config = configuration(f"+algorithm.equipoise={stack}")
    surrogate = plugin.objective_of(config.algorithm.equipoise).surrogate.name
    for seed, (outputs, dp) in enumerate(itertools.product((1, 3), (1, 2))):
        if outputs > 1 and surrogate in SEQUENCE_LEVEL:
            continue
        batch = drawn(seed, outputs=outputs)
        pad(batch, 8, monkeypatch)
        plugin._objective.cache_clear()
        advantages(batch, config, monkeypatch)
        expected = ours(batch, built(config))
        for mini in (8, len(batch.meta)):
            got = theirs(batch, config, mini=mini, dp=dp, seed=seed)
            assert distance(got, expected) < TOLERANCE, (outputs, dp, mini)


HOST = {
    "vanilla": "{preset: dapo, aggregation: balanced, surrogate: {name: dual_clip, low: 0.2, high: 0.28, cap: 3.0}}",
    "gspo": "{preset: gspo, surrogate: {low: 0.2, high: 0.28}, aggregation: balanced}",
    "dppo_tv": "{preset: dppo, surrogate: {low: 0.2, high: 0.28, cap: 3.0}, aggregation: balanced}",
    "dppo_kl": "{preset: dppo, surrogate: {divergence: kl, low: 0.2, high: 0.28, cap: 3.0}}",
    "gpg": "{preset: rloo, aggregation: balanced}",
    "cispo": "{preset: cispo, surrogate: {cap: 1.28}}",
}


def test_every_loss_of_verl_that_we_let_pass_is_tried():
    assert HOST.keys() == plugin.HOST_LOSSES.keys()


@pytest.mark.parametrize("loss", HOST)
def test_verls_own_losses_keep_the_folded_weight(loss, monkeypatch):
    """With verl's policy loss the surrogate is verl's, options and all; the aggregation is ours, exactly."""
    config = configuration(
        f"+algorithm.equipoise={HOST[loss]}",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        f"actor_rollout_ref.actor.clip_ratio_low={1.0 if loss == 'cispo' else 0.2}",
        f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}",
        loss=[],
    )
    batch = drawn(7)
    pad(batch, 8, monkeypatch)
    advantages(batch, config, monkeypatch)
    expected = ours(batch, built(config))
    for dp in (1, 2):
        assert distance(theirs(batch, config, mini=8, dp=dp, seed=dp), expected) < TOLERANCE


@pytest.mark.parametrize("loss", ["sapo", "geo_mean"])
def test_the_losses_we_refuse_would_not_have_been_ours(loss, monkeypatch):
    """They aggregate by themselves: what is refused is refused for a reason."""
    stack = {"sapo": "{preset: sapo}", "geo_mean": "{preset: gmpo, surrogate: {low: 0.2, high: 0.2}}"}[loss]
    ours_config = configuration(f"+algorithm.equipoise={stack}")
    config = configuration(
        f"+algorithm.equipoise={stack}", f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}", loss=[]
    )
    batch = drawn(7)
    pad(batch, 8, monkeypatch)
    with pytest.raises(ValueError, match="does not keep a weight"):
        advantages(batch, config, monkeypatch)
    advantages(batch, ours_config, monkeypatch)
    expected = ours(batch, built(config))
    assert distance(theirs(batch, config, mini=8, dp=1, seed=0), expected) > 1e-2


def test_a_kl_is_per_token_under_the_scaled_sum(monkeypatch):
    """loss_scale_factor changes nothing of ours, and verl's KL is then Σ kl/(rows·L), not the sum over a response."""
    L = 16
    stack = "+algorithm.equipoise={preset: dapo, aggregation: balanced}"
    scaled = configuration(
        stack,
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
        f"actor_rollout_ref.actor.loss_scale_factor={L}",
    )
    batch = drawn(3)
    pad(batch, 8, monkeypatch)
    advantages(batch, scaled, monkeypatch)
    assert distance(theirs(batch, scaled, mini=8, dp=2, seed=0), ours(batch, built(scaled))) < TOLERANCE


def test_rows_that_verl_adds_change_nothing(monkeypatch):
    config = configuration("+algorithm.equipoise={preset: grpo, aggregation: balanced}")
    results = []
    for multiple in (1, 8, 64):
        batch = drawn(5)
        pad(batch, multiple, monkeypatch)
        advantages(batch, config, monkeypatch)
        value, gradients = theirs(batch, config, mini=len(batch.meta), dp=1, seed=0)
        named = {key: d for key, d in zip(batch.meta.keys, gradients, strict=True) if not key.startswith("pad")}
        results.append((value, [named[key] for key in sorted(named)]))
    assert distance(results[0], results[1]) < TOLERANCE
    assert distance(results[0], results[2]) < TOLERANCE


def test_outputs_of_a_session_are_one_response_as_in_verls_own_grpo(monkeypatch):
    """The advantage of each session is verl's own; the reward of any output but the last is nobody's business."""
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    config = configuration("+algorithm.equipoise={preset: dr_grpo, aggregation: {name: constant, length: 1.0}}")
    batch = drawn(11, outputs=4)
    keys, rows = batch.meta.keys, batch.rows()
    for key, row in zip(keys, rows, strict=True):
        session, _, output = key.rpartition("_")
        if f"{session}_{int(output) + 1}" in keys:
            row["rm_scores"] = torch.full_like(row["rm_scores"], 7.0)
        row["response_mask"] = torch.ones_like(row["response_mask"])
    advantages(batch, config, monkeypatch)

    def padded(name):
        return torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True)

    uids = [row["uid"] for row in rows]
    data = DataProto.from_dict(
        tensors={"token_level_rewards": padded("rm_scores"), "response_mask": padded("response_mask")},
        non_tensors={"uid": np.array(uids, dtype=object)},
    )
    verls = compute_advantage_for_multi_trajectories(data, keys, "grpo", norm_adv_by_std_in_grpo=False)
    sessions = {key.rpartition("_")[0]: uid for key, uid in zip(keys, uids, strict=True)}
    G = torch.tensor([list(sessions.values()).count(uid) for uid in uids])[:, None]
    expected = verls.batch["advantages"] * len(rows) / (len(set(uids)) * G)
    torch.testing.assert_close(padded("advantages"), expected)


def test_bias_is_logged_with_the_step(monkeypatch):
    config = configuration("+algorithm.equipoise={preset: dapo, difficulty: hadw}")
    batch = drawn(2)
    advantages(batch, config, monkeypatch)
    assert {"bias/mass_balance", "bias/exchangeability", "difficulty/anchor"} <= batch.metrics.keys()
    assert all(isinstance(value, float) for value in batch.metrics.values())


def test_a_log_probability_that_is_not_finite_makes_verl_skip_the_step():
    actor = actor_of("{preset: vespo}")
    shape = (2, 3)
    logp = torch.full(shape, -1.0)
    logp[0, 1] = float("nan")
    logp.requires_grad_()
    loss, _ = plugin.policy_loss(
        torch.full(shape, -1.0), logp, torch.ones(shape), torch.ones(shape), "seq-mean-token-sum", actor
    )
    loss.backward()
    assert not torch.isfinite(logp.grad).all()


def test_a_micro_batch_of_added_rows_alone_has_a_loss_of_0():
    logp = torch.full((2, 3), -1.0, requires_grad=True)
    zeros = torch.zeros(2, 3)
    loss, _ = plugin.policy_loss(zeros, logp, zeros, zeros, "seq-mean-token-sum", actor_of("{preset: gspo}"))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not logp.grad.any()


def test_rollout_weights_of_verl_multiply_each_token():
    actor, generator = actor_of("{preset: dapo}"), torch.Generator().manual_seed(0)
    logp, old, A, w = (torch.rand((3, 4), generator=generator) - 1 for _ in range(4))
    mask = torch.ones(3, 4)
    weighed, _ = plugin.policy_loss(old, logp, A, mask, "seq-mean-token-sum", actor, -w)
    folded, _ = plugin.policy_loss(old, logp, A * -w, mask, "seq-mean-token-sum", actor)
    torch.testing.assert_close(weighed, folded)


def test_rollout_weights_of_verl_become_one_a_response_for_gmpo():
    """Their geometric mean, as in verl's own geo_mean: it has one advantage a response."""
    actor, generator = actor_of("{preset: gmpo}"), torch.Generator().manual_seed(0)
    logp, old, w = (torch.rand((3, 4), generator=generator) - 1 for _ in range(3))
    A = torch.tensor([[1.0], [-0.5], [0.3]]).expand(3, 4)
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    mean = (((-w).log() * mask).sum(1) / mask.sum(1)).exp()[:, None]
    weighed, _ = plugin.policy_loss(old, logp, A, mask, "seq-mean-token-sum", actor, -w)
    folded, _ = plugin.policy_loss(old, logp, A * mean, mask, "seq-mean-token-sum", actor)
    torch.testing.assert_close(weighed, folded)


# --- what is refused, and with what words -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{preset: dapoo}", 'did you mean "dapo"'),
        ("{aggregtion: balanced}", 'did you mean "aggregation"'),
        ("{cancellation: prefix}", "needs token ids beside the loss"),
        ("{preset: dfpo}", "whole groups in a micro-batch"),
        ("{difficulty: hadw_history}", "use hadw"),
        ("{kl: 0.1}", "use_kl_loss"),
        ("{entropy_bonus: 0.1}", "entropy_coeff"),
        ("{mismatch: tis}", "rollout_correction"),
        ("{reward_weights: [1.0, 0.5]}", "one reward per response"),
        ("{off_policy_mask: 0.1}", "leaves responses out"),
        ("{preset: distillation}", "needs a teacher"),
    ],
)
def test_options_that_verl_cannot_serve_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        plugin.objective_of(configuration(f"+algorithm.equipoise={options}").algorithm.equipoise)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["actor_rollout_ref.actor.loss_agg_mode=token-mean"], "weigh tokens a second time"),
        (["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"], "loss_scale_factor is not set"),
        (["actor_rollout_ref.actor.use_kl_loss=True"], "seq-mean-token-sum-norm"),
        (["actor_rollout_ref.actor.entropy_coeff=0.01"], "seq-mean-token-sum-norm"),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"], "says surrogate = gspo"),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov"], "does not keep a weight"),
        (["actor_rollout_ref.actor.policy_loss.equipoise={preset: dapo}"], "needs the options of algorithm.equipoise"),
    ],
)
def test_settings_of_verl_that_would_undo_the_weights_are_refused_by_estimator_and_callback(
    overrides, words, monkeypatch, tmp_path
):
    config = configuration("+algorithm.equipoise={preset: gspo}", *overrides, f"trainer.default_local_dir={tmp_path}")
    with pytest.raises(ValueError, match=words):
        advantages(drawn(0), config, monkeypatch)
    with pytest.raises(ValueError, match=words):
        plugin.Callback(config)


def test_without_the_callback_an_anchor_and_sessions_are_refused():
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    estimate = get_adv_estimator_fn("equipoise")
    rewards, mask = torch.eye(6), torch.ones(6, 6)
    index = np.array(["a"] * 6, dtype=object)
    config = configuration("+algorithm.equipoise={difficulty: hadw}", n=6)
    with pytest.raises(ValueError, match=r"keeps an anchor.*checkpoint_callback_class"):
        estimate(token_level_rewards=rewards, response_mask=mask, index=index, config=config.algorithm)
    config = configuration("+algorithm.equipoise={preset: grpo}", n=4)
    with pytest.raises(ValueError, match=r"6 rows and rollout.n=4.*checkpoint_callback_class"):
        estimate(token_level_rewards=rewards, response_mask=mask, index=index, config=config.algorithm)


def test_the_loss_without_its_options_says_which_lines_are_missing():
    config = configuration(
        "+algorithm.equipoise={preset: gspo}", "actor_rollout_ref.actor.policy_loss.loss_mode=equipoise", loss=[]
    )
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="_target_=equipoise"):
        plugin.policy_loss(x, x, x, x, "seq-mean-token-sum", actor)


# --- rewards ----------------------------------------------------------------------------------------------------------

ADD_ONE = json.dumps({"inputs": ["1", "5"], "outputs": ["2", "6"]})


def scored(config, answer: str, truth: str) -> dict:
    """By verl's own reward manager, which decodes a response and asks the function that the configuration names."""
    manager = load_reward_manager(config, tokenizer=types.SimpleNamespace(decode=lambda ids, **_: answer))
    data = DataProto.from_dict(
        tensors={
            "responses": torch.ones(1, 4, dtype=torch.int64),
            "attention_mask": torch.ones(1, 6, dtype=torch.int64),
        },
        non_tensors={
            "data_source": np.array(["test"], dtype=object),
            "reward_model": np.array([{"ground_truth": truth}], dtype=object),
            "extra_info": np.array([{}], dtype=object),
        },
    )
    return manager.loop.run_until_complete(manager.run_single(data))


@pytest.mark.parametrize(
    ("kind", "answer", "truth", "score", "verdict"),
    [
        ("math", r"so \boxed{\frac{1}{2}}", "0.5", 1.0, "correct"),
        ("math", r"so \boxed{3}", "4", 0.0, "wrong"),
        ("math", "no idea", "4", 0.0, "unparsed"),
        ("math", r"\boxed{4}", "", 0.0, "bad_gold"),
        ("code", "```python\nprint(int(input()) + 1)\n```", ADD_ONE, 1.0, "correct"),
        ("code", "```python\nprint(2)\n```", ADD_ONE, 0.0, "wrong"),
        ("code", "```python\nprint(2)\n```", "{not json", 0.0, "bad_gold"),
    ],
)
def test_our_verdicts_are_verls_rewards(kind, answer, truth, score, verdict, monkeypatch):
    monkeypatch.setattr("equipoise.verifiers.grade.MATH_SECONDS", 60.0)  # a busy machine is slow to start a worker
    if kind == "code" and shutil.which("bwrap") is None:
        pytest.skip("code verdicts need bubblewrap")
    config = configuration(
        "reward.custom_reward_function.path=pkg://equipoise.verifiers.host_functions",
        "reward.custom_reward_function.name=verl_score",
        f"+reward.custom_reward_function.reward_kwargs.kind={kind}",
        loss=[],
    )
    got = scored(config, answer, truth)
    assert (got["reward_score"], got["reward_extra_info"]["verdict"]) == (score, verdict)
    assert got["reward_extra_info"]["ungraded"] == float(verdict == "bad_gold")
    assert got["reward_extra_info"].keys() == {"score", "acc", "ungraded", "pred", "verdict"}


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Workers:
    """The worker group of a trainer that only saves and loads."""

    def save_checkpoint(self, path, *_, **__):
        os.makedirs(path)

    def load_checkpoint(self, **_):
        pass


def trainer_of(config):
    """verl's own trainer with its own callback, without workers to train."""
    from verl.trainer.ppo.v1 import PPOTrainerSync

    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.use_critic = config, "sync", False
    trainer.checkpoint_callback = build_checkpoint_callback(config)
    trainer.actor_rollout_wg = Workers()
    trainer.train_dataloader = types.SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
    trainer._load_checkpoint()
    return trainer


@pytest.mark.parametrize("mode", ["auto", "resume_path"])
def test_the_anchor_goes_on_where_verls_checkpoint_left_it(mode, monkeypatch, tmp_path):
    def config_of(*more):
        return configuration(
            "+algorithm.equipoise={preset: dapo, difficulty: {name: hadw, memory: 3}, aggregation: balanced}",
            "trainer.checkpoint_callback_class=equipoise.integrations.verl.plugin.Callback",
            f"trainer.default_local_dir={tmp_path}",
            *more,
        )

    def train(trainer, steps):
        anchors = []
        for step in steps:
            batch = drawn(step)
            monkeypatch.setattr(pipeline.trainer_base, "tq", batch.store)
            trainer._compute_advantage(batch.meta, batch.metrics)
            trainer.global_steps = step
            if step == 5:
                trainer._save_checkpoint()
            anchors.append(batch.metrics["difficulty/anchor"])
        return anchors

    whole = train(trainer_of(config_of()), range(1, 9))
    found = json.loads((tmp_path / "global_step_5" / "equipoise.json").read_text())
    assert (found["step"], found["objective"]["difficulty"]["name"]) == (5, "hadw")
    assert not list(tmp_path.rglob("*.tmp"))
    more = [f"trainer.resume_from_path={tmp_path}/global_step_5"] if mode == "resume_path" else []
    resumed = trainer_of(config_of(f"trainer.resume_mode={mode}", *more))
    assert resumed.global_steps == 5
    assert train(resumed, range(6, 9)) == whole[5:]
    assert train(trainer_of(config_of("trainer.resume_mode=disable")), range(6, 9)) != whole[5:]


def test_a_checkpoint_without_an_anchor_starts_one_with_a_warning(tmp_path, caplog):
    (tmp_path / "global_step_3").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    config = configuration("+algorithm.equipoise={difficulty: hadw}", f"trainer.default_local_dir={tmp_path}")
    callback = plugin.Callback(config)
    assert "equipoise.json has no difficulty anchor" in caplog.text
    assert callback.objective.difficulty.anchors == []


def test_the_callback_is_for_our_estimator(tmp_path):
    config = configuration("algorithm.adv_estimator=grpo", f"trainer.default_local_dir={tmp_path}", loss=[])
    with pytest.raises(ValueError, match="adv_estimator=grpo"):
        plugin.Callback(config)


# --- the contract with verl -------------------------------------------------------------------------------------------


def test_what_we_lean_on_is_still_there():
    """A verl that changes one of these needs a change here: the message says which."""
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.trainer.ppo.v1 import PPOTrainer
    from verl.workers.config import PolicyLossConfig

    def assert_takes(function, *names):
        have = list(inspect.signature(inspect.unwrap(function)).parameters)
        missing = [name for name in names if name not in have]
        assert not missing, f"verl's {function.__qualname__} no longer takes {missing}; it takes {have}"

    assert_takes(core_algos.agg_loss, "loss_mat", "loss_mask", "loss_agg_mode", "dp_size", "global_batch_size")
    assert_takes(core_algos.compute_policy_loss_vanilla, *inspect.signature(plugin.policy_loss).parameters)
    assert_takes(compute_advantage, "data", "adv_estimator", "config")
    assert_takes(CheckpointCallback.__init__, "config")
    assert_takes(CheckpointCallback.on_save, "trainer", "global_step", "checkpoint_dir")
    assert_takes(PPOTrainer._compute_advantage, "batch", "metrics")
    assert_takes(KVBatchMeta, "keys")
    assert "loss_mode" in {f.name for f in dataclasses.fields(PolicyLossConfig)}
    new = set(core_algos.POLICY_LOSS_REGISTRY) - {
        "equipoise", *plugin.HOST_LOSSES, "sapo", "geo_mean", "clip_cov", "kl_cov", "dro", "bypass_mode",
    }  # fmt: skip
    assert not new, f"verl has new policy losses: decide for {new} whether they keep a weight folded into the advantage"


def test_the_plug_in_is_found_through_its_entry_point_alone():
    code = (
        "import verl, sys; from verl.trainer.ppo import core_algos as c; "
        "print('equipoise' in c.ADV_ESTIMATOR_REGISTRY, 'equipoise' in c.POLICY_LOSS_REGISTRY)"
    )
    for policy, found in (("auto", "True True"), ("none", "False False")):
        environment = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": policy, "PYTHONPATH": ""}
        out = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True
        )
        assert out.stdout.strip().endswith(found), out.stderr


@pytest.mark.slow
def test_verls_own_tests_of_its_algorithms_pass_with_the_plug_in_loaded():
    """They come with the wheel. pytest runs in a process that has first seen the plug-in registered."""
    folder = importlib.metadata.distribution("verl").locate_file("tests/trainer")
    code = (
        "import sys, pytest, verl; from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as known; "
        "assert 'equipoise' in known; sys.exit(pytest.main(sys.argv[1:]))"
    )
    # Without our own settings for pytest, which hold wherever the environment lies inside this repository.
    options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *options], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:]
    passed = int(re.search(r"(\d+) passed", ran.stdout)[1])
    assert passed >= 100


@pytest.mark.parametrize(
    ("setting", "value", "state", "words"),
    [
        ("VERL_USE_EXTERNAL_PLUGINS", "auto", "ok", "registered in verl 0.9"),
        ("VERL_USE_EXTERNAL_PLUGINS", "none", "missing", "did not look for it"),
        ("PYTHONPATH", "BROKEN", "missing", "ModuleNotFoundError: a package that is not there"),
    ],
)
def test_doctor_says_whether_verl_really_has_it_and_why_not(setting, value, state, words, monkeypatch, tmp_path):
    """verl swallows the error of a plug-in that fails to load; here the import fails for want of a package."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'equipoise.objective':\n"
        "            raise ModuleNotFoundError('a package that is not there')\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    monkeypatch.setenv(setting, str(tmp_path) if value == "BROKEN" else value)
    finding = doctor._verl("verl plug-in")
    assert (finding.state, words in finding.words) == (state, True), finding


# --- verl's own files, and the recipes --------------------------------------------------------------------------------

RECIPES = sorted((pathlib.Path(__file__).parents[3] / "recipes" / "verl").glob("*_*.sh"))


def launched(recipe: pathlib.Path, tmp_path: pathlib.Path, **environment: str) -> list[str]:
    """The overrides a recipe gives to verl."""
    python, out = tmp_path / "python", tmp_path / "arguments.json"
    python.write_text(f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(out)!r}, 'w'))\n")
    python.chmod(0o755)
    variables = {"PATH": os.environ["PATH"], "PYTHON": str(python), "RUN": str(tmp_path / "run"), **environment}
    subprocess.run(["bash", str(recipe)], env=variables, check=True)
    module, *overrides = json.loads(out.read_text())[1:]
    assert module == "verl.trainer.main_ppo"
    return overrides


def composed(overrides: list[str]):
    with initialize_config_dir(pipeline.CONFIG, version_base=None):
        return compose("ppo_trainer", overrides)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_a_configuration_that_verl_and_we_accept(recipe, tmp_path):
    variants = [{}]
    if recipe.stem.startswith("balanced"):
        variants += [{"AGGREGATION": "sequence"}, {"AGGREGATION": "{name: token, over: group}"}]
    else:
        variants += [{"BASE": "gspo"}, {"BASE": "dapo", "DIFFICULTY": "none"}]
    for variant in variants:
        config = composed(launched(recipe, tmp_path, NODES="2", **variant))
        validate_config(config, use_reference_policy=False, use_critic=False)
        OmegaConf.resolve(config)
        callback = build_checkpoint_callback(config)
        assert isinstance(callback, plugin.Callback)
        low, high = (callback.objective.surrogate.options[k] for k in ("low", "high"))
        actor = config.actor_rollout_ref.actor
        assert (actor.clip_ratio_low, actor.clip_ratio_high) == (low, high)
        assert get_custom_reward_fn(config) is not None
        assert config.trainer.nnodes == 2


def test_a_recipe_is_a_stock_launch_and_six_lines(tmp_path):
    ours_lines = set(launched(RECIPES[0], tmp_path))
    stock = launched(RECIPES[0], tmp_path, STOCK="1")
    assert len(ours_lines - set(stock)) == 6
    composed(stock)


def test_the_papers_settings_are_in_the_recipes(tmp_path):
    for recipe in RECIPES:
        config = composed(launched(recipe, tmp_path))
        rollout, n = config.actor_rollout_ref.rollout, 16 if recipe.stem.startswith("balanced") else 8
        assert (rollout.n, rollout.temperature, rollout.val_kwargs.n) == (n, 1.0, 8)
        assert config.actor_rollout_ref.actor.optim.lr == 1e-6
        assert config.data.train_batch_size == (128 if n == 16 else 256)
        if n == 16:
            assert config.data.max_response_length == (8192 if "1.7b" in recipe.stem else 2048)
            assert config.trainer.total_training_steps == 500


def test_a_rollout_dump_that_verl_wrote_is_audited(tmp_path):
    batch = drawn(4, prompts=8)
    rows = batch.rows()
    pipeline.trainer_base.PPOTrainer._write_generations(
        [f"question {row['uid']}" for row in rows],
        ["x" * (int(row["response_mask"].sum()) + 1) for row in rows],
        [None] * len(rows),
        [float(row["rm_scores"].sum()) for row in rows],
        {"uid": batch.meta.keys},
        str(tmp_path),
        3,
    )
    log = audit.read(tmp_path)
    assert sorted(log.reward.tolist()) == pytest.approx(sorted(float(row["rm_scores"].sum()) for row in rows))
    assert len(set(log.group.tolist())) == len({row["uid"] for row in rows})
    assert set(log.step.tolist()) == {3}


# --- verl's own engine ------------------------------------------------------------------------------------------------


def engine_ranks(world: int, options: str, folder: pathlib.Path) -> dict:
    """What the ranks of tests.integrations.verl.engine found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WG_BACKEND": "ray",
            "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        command = [sys.executable, "-W", "ignore", "-m", "tests.integrations.verl.engine", options, str(folder)]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    said = [process.communicate(timeout=600)[0].decode() for process in ranks]
    assert not any(process.returncode for process in ranks), "\n".join(said)[-4000:]
    return json.loads((folder / "found.json").read_text())


def test_two_ranks_of_verls_fsdp_engine_give_our_gradient_and_a_checkpoint_we_open(tmp_path):
    """In float32, for three sizes of micro-batch and two of verl's packed ones; the loss is a sum of 16 rows of ±1."""
    found = engine_ranks(2, "{preset: dapo, aggregation: balanced}", tmp_path)
    assert max(found["gradient"]) < 1e-5
    assert max(abs(loss - found["ours"]) for loss in found["loss"]) < TOLERANCE
    assert len(found["grad_norm"]) == found["rows"] // 8  # an optimizer step for each mini-batch

    opened, start = load(tmp_path), load("abacus")
    shards = [
        torch.load(path, weights_only=False)["lm_head.weight"]
        for path in sorted((tmp_path / "global_step_1" / "actor").glob("model_world_size_2_rank_*.pt"))
    ]
    weights = torch.cat([shard._local_tensor for shard in shards])
    torch.testing.assert_close(opened.core.lm_head.weight.detach().float(), weights, rtol=0, atol=0)
    assert not torch.equal(weights, start.core.lm_head.weight)
    assert opened.tokenizer.get_vocab() == start.tokenizer.get_vocab()


def built(config) -> Objective:
    choices = OmegaConf.to_container(config.algorithm.equipoise)
    return Objective.preset(choices.pop("preset"), **choices)


def actor_of(options: str):
    """verl's actor configuration in a worker that has been told of the batch."""
    actor = omega_conf_to_dataclass(configuration(f"+algorithm.equipoise={options}").actor_rollout_ref.actor)
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=12, global_batch_size=4, loss_scale_factor=None)
    return actor
