"""EquipoiseGRPOTrainer against equipoise.objective on the same batch, however TRL splits it."""

import json
import os
import runpy
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl")

from datasets import Dataset
from safetensors.torch import load_file
from trl import GRPOConfig

from equipoise.integrations.trl.plugin import STATE, EquipoiseGRPOTrainer, adapted, refuse
from equipoise.objective import Objective, named
from equipoise.policy import load
from equipoise.tasks import arithmetic
from equipoise.train import Trainer
from equipoise.verifiers import as_trl
from tests.integrations.trl import case
from tests.train.tiny import evaluations, settings

ROOT = Path(__file__).resolve().parents[3]
EXACT = 1e-6  # relative; TRL's forward pass is float32, the reference float64

GRID = ["+".join(p) for p in product(("grpo", "dapo", "gspo", "cispo"), ("token", "sequence", "balanced"))]
GRID = [name + tail for name in GRID for tail in ("", "+hadw")]
OTHERS = ("gmpo", "vespo", "sapo", "aspo", "dppo", "luspo", "rloo", "maxrl", "reinforce", "dr_grpo",
          "grpo+balanced+prefix", "dapo+min_replace", "dapo+balanced+orthogonal", "grpo+recentre")  # fmt: skip
SPLITS = {"whole": (12, 1), "threes": (3, 4), "ones": (1, 12)}
TWO_RANKS = {"sixes": (6, 1), "twos": (2, 3)}  # a group of four straddles the ranks in both
FEW = ("dapo+balanced+hadw", "gspo+sequence+hadw", "cispo+token", "grpo+balanced")


def split(size: int, steps: int) -> dict:
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}


def choices(name: str) -> dict:
    return named(name).choices()


CASES = [*((n, "threes") for n in FEW), (FEW[0], "whole"), (FEW[0], "ones")]
SLOW = [c for c in product(GRID, SPLITS) if c not in CASES] + [(n, "threes") for n in OTHERS]


@pytest.mark.parametrize(("name", "how"), [*CASES, *(pytest.param(*c, marks=pytest.mark.slow) for c in SLOW)])
def test_the_gradient_is_the_objectives(model, out, name, how):
    found = case.run(model, out, case.stateful(choices(name)), **split(*SPLITS[how])).found
    assert len(found) == 1
    assert case.distance(found[0], case.wanted(model, case.stateful(choices(name)))) < EXACT


ACCELERATE = ("accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
              "--dynamo_backend", "no")  # fmt: skip
SHARDS = {
    "fsdp2": ("--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
    "zero2": ("--use_deepspeed", "--zero_stage", "2"),
    "zero3": ("--use_deepspeed", "--zero_stage", "3"),
}


def two_ranks(model: str, folder: Path, cases: dict, *, torchrun: bool = False, shards: str | None = None) -> dict:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    found = folder / "found.pt"
    request = {"model": model, "out": str(folder / "run"), "cases": cases, "found": str(found), "port": port}
    (folder / "request.json").write_text(json.dumps(request))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port] if torchrun else []
    if shards is not None:
        launcher = ["-m", *ACCELERATE, *SHARDS[shards], "--main_process_port", port]
    ended = subprocess.run(
        [sys.executable, *launcher, "-m", "tests.integrations.trl.case", str(folder / "request.json")],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    return torch.load(found, weights_only=False)


def assert_two_ranks_change_nothing(model, folder, pairs, *, torchrun=False):
    cases = {f"{n}/{how}": {"choices": choices(n), "options": split(*TWO_RANKS[how])} for n, how in pairs}
    cases[f"{pairs[0][0]}/{pairs[0][1]}"]["options"]["average_tokens_across_devices"] = False  # on unless said
    found = two_ranks(model, folder, cases, torchrun=torchrun)
    for name, how in pairs:
        wanted = case.stateful(choices(name))
        result = found[f"{name}/{how}"]
        assert case.distance(result["gradients"][0], case.wanted(model, wanted)) < EXACT, (name, how)
        assert result["state"] == wanted.state_dict()
    return found


def test_two_ranks_change_nothing(model, out, tmp_path):
    found = assert_two_ranks_change_nothing(model, tmp_path, [(FEW[0], "sixes"), *((n, "twos") for n in FEW)])
    log = found[f"{FEW[0]}/sixes"]["logs"][0]
    alone = case.run(model, out, case.stateful(choices(FEW[0]))).logs[0]
    assert log.keys() == alone.keys()
    for key in alone:
        assert key == "step_time" or log[key] == pytest.approx(alone[key], rel=1e-4, abs=1e-6), key


@pytest.mark.slow
@pytest.mark.parametrize("shards", SHARDS)
def test_shards_change_nothing(model, tmp_path, shards):
    """One step of SGD moves the weights by the objective's gradient, with every weight split between two ranks."""
    if shards != "fsdp2":
        pytest.importorskip("deepspeed")
    names = [(FEW[0], "sixes"), *((n, "twos") for n in FEW)]
    cases = {f"{n}/{how}": {"choices": choices(n), "options": split(*TWO_RANKS[how])} for n, how in names}
    found = two_ranks(model, tmp_path, cases, shards=shards)
    for name, how in names:
        wanted = case.stateful(choices(name))
        result = found[f"{name}/{how}"]
        assert case.distance(result["gradients"][0], case.wanted(model, wanted)) < 1e-5, (name, how)
        assert result["state"] == wanted.state_dict()


@pytest.mark.slow
def test_two_ranks_change_nothing_for_any_objective(model, tmp_path):
    rest = [n for n in GRID if n not in FEW]
    pairs = [*product(rest, TWO_RANKS), *((n, "twos") for n in OTHERS)]
    assert_two_ranks_change_nothing(model, tmp_path, pairs, torchrun=True)


def prompts(times: int) -> Dataset:
    return Dataset.from_list([{"prompt": p} for p in case.PROMPTS * times])


def test_a_generation_batch_used_over_several_optimizer_steps(model, out):
    """At one set of weights the steps' gradients have the batch's as their mean."""
    found = case.run(
        model, out, "grpo+balanced", max_steps=3, steps_per_generation=6, **split(2, 2), train_dataset=prompts(1)
    ).found
    assert len(found) == 3
    assert case.distance(sum(found) / 3, case.wanted(model, named("grpo+balanced"))) < EXACT


@pytest.mark.parametrize("times", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_several_generation_batches_in_one_optimizer_step(model, out, times):
    """With the prompts once, the window of four ends early, with the epoch."""
    options = {"steps_per_generation": 2, **split(6, 4), "train_dataset": prompts(times)}
    found = case.run(model, out, "dapo", **options).found
    assert case.distance(found[0], case.wanted(model, named("dapo"))) < EXACT


def test_a_batch_used_twice_has_its_first_policy_as_the_old_one(model, out):
    class Steady(case.Known):
        drifts = False

    watched = case.run(model, out, "dapo+balanced", kind=Steady, num_iterations=2, max_steps=2, learning_rate=1e-2)
    for found, weights in zip(watched.found, watched.weights, strict=True):
        assert case.distance(found, case.wanted(model, named("dapo+balanced"), weights=weights)) < 2 * EXACT
    assert case.distance(watched.found[0], watched.found[1].double()) > 0.1


@pytest.mark.parametrize("name", ["dfpo", pytest.param("gspo+orthogonal", marks=pytest.mark.slow)])
def test_objectives_that_need_whole_groups_run_on_an_unsplit_batch(model, out, name):
    found = case.run(model, out, name).found
    assert case.distance(found[0], case.wanted(model, named(name))) < EXACT


TYPES = ("grpo", "dapo", "dr_grpo")
TERMS = ({}, {"beta": 0.3}, {"beta": 0.3, "use_bias_correction_kl": False, "entropy_coef": 1})
BOTH = [pytest.param(a, b, marks=[] if i == j else pytest.mark.slow)
        for i, a in enumerate(TYPES) for j, b in enumerate(TERMS)]  # fmt: skip


@pytest.mark.parametrize(("name", "more"), BOTH)
def test_where_trl_has_the_objective_gradient_and_log_are_its_own(model, out, name, more):
    """Also of the KL and the entropy bonus, and over micro-batches."""
    objective = Objective.preset(
        name,
        advantage={"name": "grpo", "std": "sample", "eps": 1e-4},
        surrogate={"name": "ppo_clip", "low": 0.2, "high": 0.28},
        **({"aggregation": {"name": "constant", "length": 16}} if name == "dr_grpo" else {}),
    )
    options = split(3, 4) | more
    trl = case.run(model, out, None, kind=case.Plain, loss_type=name, epsilon_high=0.28, **options)
    ours = case.run(model, out, objective, **options)
    assert case.distance(ours.found[0], trl.found[0].double()) < EXACT
    for key, value in trl.logs[0].items():
        if key not in ("step_time", "policy_loss"):
            assert ours.logs[0][key] == pytest.approx(value, rel=1e-5, abs=1e-6), key
    assert ("kl" in ours.logs[0]) == ("beta" in more)
    assert ours.logs[0]["clip_ratio/region_mean"] > 0.05
    if "policy_loss" in trl.logs[0] and name != "dapo":  # TRL's is a token mean of the micro-batch there
        assert ours.logs[0]["policy_loss"] == pytest.approx(trl.logs[0]["policy_loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["dapo+balanced+hadw", pytest.param("gspo", marks=pytest.mark.slow)])
def test_the_kl_and_the_bonus_of_the_objective(model, out, name):
    objective = Objective(**named(name).choices() | {"kl": 0.3, "entropy_bonus": 0.2})
    found = case.run(model, out, objective, beta=0.3, **split(3, 4)).found
    assert case.distance(found[0], case.wanted(model, objective)) < EXACT


def test_a_response_without_a_reward_leaves_its_group(model, out):
    scores = case.rewards()
    scores[1] = scores[8] = scores[9] = scores[10] = scores[11] = None

    def reward(completions, row, **columns):
        return [scores[i] for i in row]

    watched = case.run(model, out, "dapo+balanced+hadw", reward_funcs=reward, **split(3, 4))
    assert case.distance(watched.found[0], case.wanted(model, named("dapo+balanced+hadw"), scores=scores)) < EXACT
    scores[:] = [None] * case.ROWS
    assert case.run(model, out, "dapo", reward_funcs=reward).found[0].norm() == 0


def test_what_a_tool_wrote_is_no_token_of_the_response(model, out):
    masks = [[int(t % 3 != 1) for t in range(len(c))] for c in case.completions()]

    def rollout(prompts, trainer):
        known = case.rollout(prompts, trainer)
        return known | {"env_mask": [masks[i] for i in known["row"]]}

    for name in ("dapo+balanced", "gspo"):
        found = case.run(model, out, name, rollout_func=rollout, **split(3, 4)).found
        assert case.distance(found[0], case.wanted(model, named(name), masks=masks)) < EXACT
    with pytest.raises(ValueError, match="what a tool answered is not"):
        case.run(model, out, "grpo+prefix", rollout_func=rollout)


def test_truncated_responses_count_in_the_mean_and_not_in_the_loss(model, out):
    masks = [[int(c[-1] == case.EOS)] * len(c) for c in case.completions()]
    assert sum(not any(m) for m in masks) == 2
    found = case.run(model, out, "dapo+balanced", mask_truncated_completions=True, **split(3, 4)).found
    assert case.distance(found[0], case.wanted(model, named("dapo+balanced"), masks=masks)) < EXACT


@pytest.mark.parametrize("mismatch", [{"name": "tis", "cap": 1.5}, {"name": "mis", "cap": 1e6}])
def test_the_samplers_log_probabilities(model, out, mismatch):
    objective = Objective(**named("dapo+balanced").choices() | {"mismatch": mismatch})
    found = case.run(model, out, objective, **split(3, 4)).found
    assert case.distance(found[0], case.wanted(model, objective)) < EXACT
    assert case.distance(found[0], case.wanted(model, named("dapo+balanced"))) > 0.01


@pytest.mark.parametrize("combine", ["advantages", pytest.param("rewards", marks=pytest.mark.slow)])
def test_several_rewards(model, out, combine):
    def short(completions, row, **columns):
        return [1 / len(case.completions()[i]) for i in row]

    scores = [[r, 1 / len(c)] for r, c in zip(case.rewards(), case.completions(), strict=True)]
    objective = Objective(**named("dapo").choices() | {"combine": combine})
    found = case.run(model, out, objective, reward_funcs=[case.reward, short], reward_weights=[1.0, 0.5]).found
    weighed = Objective(**objective.choices() | {"reward_weights": [1.0, 0.5]})
    assert case.distance(found[0], case.wanted(model, weighed, scores=scores)) < EXACT


def test_a_reward_of_some_prompts_only(model, out):
    def sometimes(completions, row, **columns):
        return [0.5 if i % 3 else None for i in row]

    scores = [[r, 0.5 if i % 3 else 0.0] for i, r in enumerate(case.rewards())]
    found = case.run(model, out, "dapo", reward_funcs=[case.reward, sometimes]).found
    weighed = Objective(**named("dapo").choices() | {"reward_weights": [1.0, 1.0]})
    assert case.distance(found[0], case.wanted(model, weighed, scores=scores)) < EXACT


def test_evaluation_is_trls_own(model, out):
    options = {"eval_dataset": prompts(2), "num_generations_eval": 2, "per_device_eval_batch_size": 6, "beta": 0.1}
    results = []
    for kind in (case.Known, case.Plain):
        trainer, _ = case.build(model, out, "dapo+balanced+hadw", kind=kind, **options)
        results.append(trainer.evaluate())
        if kind is case.Known:
            assert trainer.objective.state_dict() == named("dapo+balanced+hadw").state_dict()
    assert len(results[0]) > 15
    for key in results[1]:
        if "runtime" not in key and "per_second" not in key:
            assert results[0][key] == results[1][key], key


def moving(completions, row, trainer_state, **columns):
    """Rewards whose mean changes from step to step, so that the anchor moves."""
    return [float((7 * i + 3 * trainer_state.global_step) % 11 < 4 + trainer_state.global_step) for i in row]


def test_the_anchor_is_saved_and_resumed_with_trls_checkpoints(model, tmp_path):
    options = {"reward_funcs": moving, "learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 2}
    options |= {**split(3, 4), "train_dataset": prompts(4)}
    whole = case.run(model, str(tmp_path / "whole"), "dapo+balanced+hadw", max_steps=4, **options)
    anchors = whole.trainer.objective.state_dict()["difficulty"]["anchors"]
    assert len(set(anchors)) == 4
    halt = tmp_path / "whole" / "checkpoint-2"
    again = case.run(model, str(tmp_path / "again"), "dapo+balanced+hadw", resume=str(halt), max_steps=4, **options)
    assert again.trainer.objective.state_dict() == whole.trainer.objective.state_dict()
    for mine, theirs in zip(again.found, whole.found[2:], strict=True):
        assert case.distance(mine, theirs.double()) < EXACT
    saved = json.loads((halt / STATE).read_text())
    assert saved["state"]["difficulty"]["anchors"] == anchors[:2]
    assert saved["objective"] == json.loads(json.dumps(whole.trainer.objective.choices()))

    with pytest.raises(ValueError, match="the saved state has a difficulty anchor"):
        case.run(model, str(tmp_path / "other"), "dapo", resume=str(halt), max_steps=4, **options)
    (halt / STATE).unlink()
    with pytest.warns(UserWarning, match="the difficulty anchor starts anew"):
        case.run(model, str(tmp_path / "older"), "dapo+hadw", resume=str(halt), max_steps=3, **options)


@pytest.mark.parametrize(("objective", "options", "words"), [
    ("dfpo", {"gradient_accumulation_steps": 2}, "TRL shuffles responses into micro-batches: must be steps"),
    ("dfpo", {"per_device_train_batch_size": 6, "generation_batch_size": 12}, r"\(here 6 and 4\)"),
    ("grpo+hadw_history", {}, "which TRL does not keep; use hadw"),
    ("distillation", {}, "needs the advantages of a teacher"),
    ("grpo", {"top_entropy_quantile": 0.2}, "top_entropy_quantile = 0.2 drops tokens"),
    ("grpo", {"off_policy_mask_threshold": 0.5}, r"use Objective\(off_policy_mask=0\.5\)"),
    (Objective.preset("grpo", kl=0.1), {}, r"must be GRPOConfig\(beta=0.1\)"),
    (Objective.preset("grpo", kl=0.1), {"beta": 0.2}, r"kl = 0.1, GRPOConfig's beta = 0.2"),
    (Objective.preset("grpo", entropy_bonus=0.1), {"entropy_coef": 0.1}, "a mean over the batch\\): use one"),
    (Objective.preset("grpo", reward_weights=[2.0]), {}, r"GRPOConfig's are \[1.0\]: set them there"),
    ("dapo+balancd", {}, 'did you mean "balanced"'),
])  # fmt: skip
def test_what_cannot_be_exact_is_refused(out, objective, options, words):
    args = GRPOConfig(out, use_cpu=True, bf16=False, num_generations=4, **{"per_device_train_batch_size": 12} | options)

    def build():
        given = named(objective) if isinstance(objective, str) else objective
        refuse(given, args)
        adapted(given, args, [1.0])

    with pytest.raises(ValueError, match=words):
        build()


def test_it_is_refused_when_the_trainer_is_built(model, out):
    with pytest.raises(ValueError, match="must be steps_per_generation = 1"):
        case.build(model, out, "dfpo", **split(3, 4))
    with pytest.raises(ValueError, match="mismatch = tis needs the sampler's log-probabilities"):
        case.build(model, out, Objective.preset("dapo", mismatch="tis"), rollout_func=None)


def test_settings_without_effect_are_named(model, out):
    with pytest.warns(UserWarning, match="without effect there: loss_type = 'grpo', epsilon_high = 0.3$"):
        EquipoiseGRPOTrainer(
            model, case.reward, GRPOConfig(out, loss_type="grpo", epsilon_high=0.3, use_cpu=True, bf16=False),
            prompts(1), objective="dapo+balanced",
        )  # fmt: skip


@pytest.mark.parametrize(("mode", "high", "wanted"), [
    ("token_truncate", 2.0, {"name": "tis", "cap": 2.0}),
    ("sequence_mask", 3.0, {"name": "mis", "cap": 3.0}),
    ("token_mask", 3.0, None),
    ("sequence_truncate", 3.0, None),
    ("sequence_mask", None, None),
])  # fmt: skip
def test_the_correction_of_vllms_samples_is_trls(out, mode, high, wanted):
    args = GRPOConfig(
        out, use_vllm=True, vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_max=high,
        use_cpu=True, bf16=False,
    )  # fmt: skip
    if wanted is None:
        with pytest.raises(ValueError, match="use token_truncate or sequence_mask, with clip_max alone"):
            adapted(named("dapo"), args, [1.0])
    else:
        assert adapted(named("dapo"), args, [1.0]).mismatch.spec() == wanted
        own = Objective.preset("dapo", mismatch={"name": "tis", "cap": 9.0})
        assert adapted(own, args, [1.0]).mismatch.spec() == {"name": "tis", "cap": 9.0}


def test_the_kl_estimator_is_trls_unless_the_objective_brings_its_kl(out):
    for corrected, name in ((True, "k3_ratio"), (False, "k3")):
        args = GRPOConfig(out, beta=0.1, use_bias_correction_kl=corrected, use_cpu=True, bf16=False)
        mine = adapted(named("dapo"), args, [1.0])
        assert (mine.kl, mine.kl_estimator) == (0.1, name)
        assert adapted(Objective.preset("dapo", kl=0.1, kl_estimator="k2"), args, [1.0]).kl_estimator == "k2"


def test_an_adapter_gets_the_same_gradient_in_any_split(model, out):
    peft = pytest.importorskip("peft")

    def gradient(size, steps):
        lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
        return case.run(model, out, "dapo+balanced+hadw", peft_config=lora, beta=0.1, **split(size, steps)).found[0]

    whole = gradient(12, 1)
    assert 0 < len(whole) < 2000
    assert whole.norm() > 1e-3
    assert case.distance(gradient(3, 4), whole.double()) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("options", "near"), [({"gradient_checkpointing": True}, EXACT), ({"bf16": True}, 0.1)])
def test_recomputed_activations_change_nothing_and_half_precision_little(model, out, options, near):
    found = case.run(model, out, "dapo+balanced", **split(3, 4), **options).found[0]
    assert case.distance(found, case.wanted(model, named("dapo+balanced"))) < near


def test_the_table_of_completions_has_the_objectives_advantages(model, out):
    objective = case.stateful(choices("dapo+balanced+hadw"))
    trainer = case.run(model, out, objective, log_completions=True, **split(3, 4)).trainer
    lengths = [len(c) for c in case.completions()]
    credit = case.stateful(choices("dapo+balanced+hadw")).assign(
        case.rewards(), torch.arange(case.ROWS) // case.GROUP, lengths
    )
    assert list(trainer._logs["advantages"]) == pytest.approx(credit.advantage.tolist())


def test_biases_are_in_trls_log(model, out):
    log = case.run(model, out, case.stateful(choices("dapo+balanced+hadw")), **split(3, 4)).logs[0]
    credit = case.stateful(choices("dapo+balanced+hadw")).assign(
        case.rewards(), torch.arange(case.ROWS) // case.GROUP, [len(c) for c in case.completions()]
    )
    assert {k for k in log if k.startswith(("bias/", "difficulty/"))} == set(credit.metrics)
    for name, value in credit.metrics.items():
        assert log[name] == pytest.approx(float(value))
    assert log["difficulty/anchor"] == 0.375


def test_our_verifiers_reward_in_a_run_of_trl(model, out):
    """abacus' own grader and the one for mathematics, with what they could not score in TRL's log."""
    rows = [{"prompt": p, "answer": str(eval(p[:-1])), "solution": "\\frac{" if i == 1 else "7"}
            for i, p in enumerate(case.PROMPTS)]  # fmt: skip
    watched = case.run(
        model, out, "dapo", reward_funcs=[as_trl(arithmetic.grade), as_trl("math", column="solution")],
        rollout_func=None, train_dataset=Dataset.from_list(rows),
    )  # fmt: skip
    log = watched.logs[0]
    assert log["math/bad_gold"] == pytest.approx(1 / 3)
    assert log["grade/unparsed"] + log["rewards/grade/mean"] <= 1
    assert set(watched.trainer._logs["extra"]) == {"grade/verdict", "math/verdict"}


def test_a_checkpoint_of_trl_is_a_model_of_ours_and_ours_one_of_trls(model, tmp_path):
    options = {"learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 1}
    case.run(model, str(tmp_path / "trl"), "dapo+balanced+hadw", **options)
    theirs = tmp_path / "trl" / "checkpoint-1"
    run = tmp_path / "ours"
    Trainer(settings(theirs, run, train__steps=1, log__terminal=False)).run()
    assert evaluations(run)[0]["step"] == 0
    begun = load(str(theirs)).model.state_dict()
    assert torch.equal(begun["lm_head.weight"], load_file(theirs / "model.safetensors")["lm_head.weight"])
    ours = run / "checkpoints" / "step-1"
    watched = case.run(str(ours), str(tmp_path / "again"), "dapo+balanced+hadw", max_steps=2)
    moved = load_file(ours / "model.safetensors")["lm_head.weight"]
    assert torch.equal(watched.weights[0]["lm_head.weight"], moved)
    assert not torch.equal(moved, begun["lm_head.weight"])


def test_without_trl_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(ImportError, match=r"needs TRL: pip install 'equipoise\[trl\]'"):
        runpy.run_path(ROOT / "src/equipoise/integrations/trl/plugin.py")


@pytest.mark.slow
def test_a_run_on_abacus_learns_as_ours_does(tmp_path):
    """The example as it is, and `equipoise train` with the same objective, batch, rates and steps."""

    def command(*arguments) -> str:
        ended = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-4000:]
        return ended.stdout

    trl, ours = tmp_path / "trl", tmp_path / "ours"
    command("examples/trl_grpo.py", "--steps", "30", "--out", str(trl))
    settings = ("--train.steps", "30", "--train.out", str(ours), "--train.threads", "1", "--log.terminal", "false")
    command("-m", "equipoise", "train", "examples/abacus.toml", *settings)
    begin, *_, end = evaluations(ours)
    theirs = json.loads(command("-m", "equipoise", "eval", str(trl / "model"), "--json"))
    low, high = end["interval"]["acc@8"]
    assert begin["interval"]["acc@8"][1] < low
    assert low <= theirs["acc@8"] <= high
