"""Length penalty, off-policy mask, top entropies and a teacher in a run: what the library gives when called by hand."""

import math

import pytest
import torch

import equipoise as eq
from equipoise import policy as models
from equipoise.train import ConfigError, Trainer
from equipoise.train.token_credit import TokenCredit, check_vocabularies, open_teacher
from equipoise.train.update import Updater

from .test_accuracy import graded
from .test_mini import MINI, Plain
from .test_split import assert_same_curve, distance, run_two, weights
from .tiny import column, make_model, metrics, outcome, overrides, settings


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("teacher") / "tiny", seed=7)


def group_of(batch):
    return batch.rollouts.prompt.cpu()


def one_at_a_time(folder, batch):
    """Log-probabilities and entropies of each response alone, under a model in a folder."""
    plain = Plain(folder, batch)
    with torch.no_grad():
        for i in range(len(batch.texts)):
            prompt, tokens = batch.rollouts.prompts[i // 4], plain.rows[i]
            packed = models.pack([prompt], tokens, torch.tensor([len(tokens)]), torch.tensor([0]))
            yield models.token_logprobs(plain.policy, packed)


# the length penalty


def test_the_length_penalty_shapes_the_reward_and_leaves_the_verdict(trainer):
    t = trainer(reward__length_penalty=0.4, reward__overlong_buffer=8, rollout__prompts=3, eval__every=0)
    graded(t, [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    batch = t.collector.collect(1)
    assert set(batch.accuracy.tolist()) == {0.0, 1.0}
    assert batch.sampled.mean() == pytest.approx(0.5)
    lengths = batch.lengths.tolist()
    by_hand = eq.Objective("grpo", length_penalty=0.4).assign(
        batch.rewards, group_of(batch), lengths, accuracy=batch.accuracy
    )
    credit = t.assign(batch)
    assert torch.equal(credit.coefficient, by_hand.coefficient)
    # And a loop over the right responses of each prompt, with the overlong shaping already in the rewards.
    want = batch.total.tolist()
    for i, right in enumerate(batch.accuracy.tolist()):
        others = [lengths[j] for j in range(12) if j // 4 == i // 4 and batch.accuracy[j] == 1]
        if right:
            mean = sum(others) / len(others)
            std = math.sqrt(sum((n - mean) ** 2 for n in others) / len(others))
            want[i] -= 0.4 / (1 + math.exp(-(lengths[i] - mean) / std if std else 0.0))
    shaped = eq.Objective("grpo").assign(want, group_of(batch), lengths)
    torch.testing.assert_close(credit.advantage, shaped.advantage, rtol=1e-10, atol=1e-12)
    assert float(credit.metrics["length_penalty"]) == pytest.approx(float((batch.total - torch.tensor(want)).mean()))


def test_a_masked_response_is_not_the_shortest(trainer):
    """Its length is not known to `assign`, which sees 0 tokens of it."""
    credit = eq.Objective("dr_grpo", length_penalty=0.5).assign([1.0, 1.0, 1.0], [0, 0, 0], [0, 4, 8])
    rewards = [1 - 0.25, 1 - 0.5 / (1 + math.e), 1 - 0.5 / (1 + 1 / math.e)]
    mean = sum(rewards) / 3
    assert credit.advantage.tolist() == pytest.approx([r - mean for r in rewards])


def test_rewards_that_are_no_accuracies_are_refused():
    with pytest.raises(ValueError, match="rewards go from -1 to 2: length_penalty must know which responses are right"):
        eq.Objective(length_penalty=0.2).assign([2.0, -1.0], [0, 0], [3, 4])


# the off-policy mask


class Masked(Plain):
    """Plain's loop, with responses left out whose A < 0 and whose mean log(π_rollout/π) is above the bound."""

    def __init__(self, folder, batch, bound):
        super().__init__(folder, batch)
        self.bound, self.left_out = bound, 0
        self.rollout = batch.rollouts.logprobs.split(batch.rollouts.lengths.tolist())

    def step(self, groups, old, lr):
        self.kept = list(self.advantage)
        with torch.no_grad():
            for i, A in enumerate(self.advantage):
                if i // 4 in groups and A < 0 and (self.rollout[i] - self.logprobs(i)).mean() > self.bound:
                    self.kept[i] = 0.0
                    self.left_out += 1
        whole, self.advantage = self.advantage, self.kept
        super().step(groups, old, lr)
        self.advantage = whole


@pytest.mark.parametrize("micro", [0, pytest.param(1, marks=pytest.mark.long), 3])
def test_the_off_policy_mask_is_that_of_a_plain_loop(trainer, model, micro):
    bound = 0.02
    t = trainer(
        objective__off_policy_mask=bound, objective__preset="grpo", rollout__exact=True, train__updates=3,
        train__micro_batch=micro, optim__weight_decay=0.1, optim__lr=0.02, optim__warmup=1, eval__every=0,
    )  # fmt: skip
    batch = t.collector.collect(1)
    updater = Updater(t.config, t.objective, models.load(model, dtype=torch.float64), None, 12)
    updater.update(batch, t.assign(batch), 1)
    plain = Masked(model, batch, bound)
    with torch.no_grad():
        old = [plain.logprobs(i) for i in range(16)]
    for _ in range(3):
        plain.step(range(4), old, 0.02)
    assert plain.left_out > 0
    for name, weight in updater.policy.model.state_dict().items():
        theirs = plain.model.state_dict()[name]
        assert (weight - theirs).norm() < 1e-12 * theirs.norm(), name


# the entropy mask


@pytest.mark.parametrize("micro", [0, 1, 3])
def test_the_mask_keeps_the_top_entropies_of_the_whole_batch(trainer, model, micro):
    t = trainer(objective__top_entropy_quantile=0.3, objective__preset="dapo", train__micro_batch=micro, eval__every=0)
    batch = t.collector.collect(1)
    entropy = torch.cat([found.entropy for found in one_at_a_time(model, batch)])
    kept = round(0.3 * len(entropy))
    threshold = sorted(entropy.tolist())[-kept]
    mask = torch.tensor([float(x >= threshold - 1e-5) for x in entropy.tolist()], dtype=torch.float64)
    assert kept <= mask.sum() < kept + 16  # equal contexts are kept together
    by_hand = eq.Objective.preset("dapo").assign(batch.rewards, group_of(batch), batch.lengths, token_weight=mask)
    assert torch.equal(t.assign(batch).coefficient, by_hand.coefficient)


def test_masked_out_responses_have_no_entropy_to_compare(trainer, model):
    options = {"reward__mask_truncated": True, "rollout__max_tokens": 6, "rollout__prompts": 8, "eval__every": 0}
    t = trainer(objective__top_entropy_quantile=0.5, **options)
    batch = t.collector.collect(1)
    inside = (batch.lengths > 0).tolist()
    assert 0 < sum(inside) < len(inside)
    entropy = torch.cat([e.entropy for e, kept in zip(one_at_a_time(model, batch), inside, strict=True) if kept])
    weight = t.token_credit.of(batch)["token_weight"]
    assert torch.equal(weight, eq.entropy_mask(entropy, 0.5))


# the teacher


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("micro", [0, 3])
def test_a_teachers_log_probabilities_are_the_advantages_of_tokens(trainer, model, teacher, exact, micro):
    t = trainer(
        train__teacher=str(teacher), objective__preset="distillation", rollout__exact=exact, train__micro_batch=micro,
        rollout__temperature=0.8, eval__every=0,
    )  # fmt: skip
    batch = t.collector.collect(1)

    def logprobs(folder):
        policy = models.load(folder)
        for i, tokens in enumerate(batch.rollouts.tokens.split(batch.rollouts.lengths.tolist())):
            prompt = batch.rollouts.prompts[i // 4]
            packed = models.pack([prompt], tokens, torch.tensor([len(tokens)]), torch.tensor([0]))
            yield models.token_logprobs(policy, packed, temperature=0.8).logprobs.detach()

    taught, own = torch.cat(list(logprobs(teacher))), torch.cat(list(logprobs(model)))
    old = own if exact else batch.rollouts.logprobs
    advantage = (taught - old).double()
    assert advantage.abs().max() > 0.1
    by_hand = eq.Objective.preset("distillation").assign(
        batch.rewards, group_of(batch), batch.lengths, token_advantage=advantage
    )
    credit = t.assign(batch)
    torch.testing.assert_close(credit.coefficient, by_hand.coefficient, rtol=1e-4, atol=1e-7)
    assert not credit.advantage.any()


def test_distillation_moves_the_policy_to_its_teacher(run, teacher, tmp_path):
    """The mean of −A_t over sampled tokens is an estimate of KL(π_old ‖ π_T): it must fall."""
    t = run(train__teacher=str(teacher), objective__preset="distillation", rollout__prompts=16, train__steps=15,
            rollout__group_size=2, optim__lr=0.02, reward__functions=["task"], eval__every=0)  # fmt: skip
    kl = column(tmp_path / "run", "teacher/kl")
    assert 0 < sum(kl[-5:]) < 0.8 * sum(kl[:5])
    assert t.health.uninformative == 0  # no reward differs, and there is something to learn all the same
    assert all(not p.requires_grad for p in t.token_credit.teacher.model.parameters())


def test_a_group_of_one_may_be_distilled(run, teacher, tmp_path):
    run(train__teacher=str(teacher), objective__preset="distillation", rollout__group_size=1, train__steps=2)
    assert all(record["grad_norm"] > 0 for record in metrics(tmp_path / "run"))


# splits, processes, resume: all of it at once

ALL = {
    "objective__preset": "dapo", "objective__off_policy_mask": 0.05, "objective__top_entropy_quantile": 0.5,
    "reward__length_penalty": 0.3, "train__mini_batch": 2, "train__updates": 2, "train__steps": 3,
}  # fmt: skip


@pytest.mark.parametrize("exact", [False, True])
def test_any_split_takes_the_same_steps(trainer, model, teacher, exact):
    found = []
    for micro in (0, 3):
        options = MINI | ALL | {"train__teacher": str(teacher), "train__micro_batch": micro, "rollout__exact": exact}
        options |= {"rollout__prompts": 4}
        t = trainer(**options)
        batch = t.collector.collect(1)
        policy = models.load(model, dtype=torch.float64)
        updater = Updater(t.config, t.objective, policy, None, 12)
        t.token_credit = TokenCredit(t.config, updater, policy, open_teacher(str(teacher), policy))
        record = updater.update(batch, t.assign(batch), 1)
        found.append((torch.cat([p.detach().flatten() for p in policy.parameters()]), record))
    start = torch.cat([p.detach().flatten() for p in models.load(model, dtype=torch.float64).parameters()])
    assert distance(found[0][0], start) > 1e-3
    for weight, record in found[1:]:
        assert distance(weight, found[0][0]) < 1e-12
        assert record == pytest.approx(found[0][1], rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_change_nothing(server, model, teacher, tmp_path, shard):
    file = tmp_path / "empty.toml"
    file.touch()
    options = ALL | {"train__teacher": str(teacher), "train__micro_batch": 3}
    for n, run in ((1, lambda a: [server.run(a)]), (2, lambda a: run_two(server, a))):
        chosen = options | {"train__shard": shard and n == 2}
        for ended in run(["train", str(file), *overrides(model, tmp_path / str(n), **chosen)]):
            assert ended.code == 0, ended.stderr
    assert_same_curve(tmp_path / "2", tmp_path / "1")
    assert distance(weights(tmp_path / "2"), weights(tmp_path / "1")) < 2e-5


def test_a_resumed_run_is_the_uninterrupted_one(model, teacher, tmp_path):
    options = ALL | {"train__teacher": str(teacher), "train__checkpoint_every": 1, "eval__every": 0}
    options |= {"log__terminal": False, "train__steps": 4, "log__rollouts_every": 1}
    Trainer(settings(model, tmp_path / "whole", **options)).run()
    for step in (2, 4):
        Trainer(settings(model, tmp_path / "run", **options | {"train__steps": step}), resume=step > 2).run()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


# what is refused


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"reward__length_penalty": 1.0}, "length_penalty = 1.0 must be at least 0 and below 1"),
        ({"reward__length_penalty": -0.1}, "length_penalty"),
        ({"reward__length_penalty": 0.1, "objective__combine": "gdpo"}, "length_penalty shapes one reward"),
        ({"objective__off_policy_mask": -1.0}, "off_policy_mask = -1.0 must be"),
        ({"objective__off_policy_mask": 0.1, "objective__preset": "dfpo"}, "off_policy_mask drops responses"),
        ({"objective__top_entropy_quantile": 0.0}, "objective.top_entropy_quantile = 0.0"),
        ({"objective__top_entropy_quantile": 1.5}, "objective.top_entropy_quantile = 1.5"),
        ({"objective__top_entropy_quantile": 0.2, "objective__cancellation": "recentre"}, "balances responses"),
        ({"train__teacher": "abacus", "objective__aggregation": "balanced"}, "aggregation = balanced"),
        ({"objective__preset": "distillation"}, "nothing to learn without train.teacher"),
    ],
)
def test_nonsense_is_refused_before_anything_is_loaded(model, tmp_path, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        settings(model, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_teacher_with_other_tokens_is_refused(trainer):
    with pytest.raises(ConfigError, match=r'train\.teacher = "abacus": its vocabulary differs from that of .* tokens'):
        trainer(train__teacher="abacus")


def test_a_teacher_with_a_smaller_head_or_another_end_is_refused(model, teacher):
    policy, other = models.load(model), models.load(teacher)
    check_vocabularies(policy, other)
    del other.eos
    other.core.generation_config.eos_token_id = 5
    other.tokenizer.eos_token = "3"
    with pytest.raises(ConfigError, match="every end would count as a mistake"):
        check_vocabularies(policy, other)
    policy.core.resize_token_embeddings(20)
    with pytest.raises(ConfigError, match="its head has 18 rows"):
        check_vocabularies(policy, other)


def test_a_teacher_that_reads_less_than_the_responses_stops_the_run(trainer, tmp_path):
    short = make_model(tmp_path / "short", context=8, seed=7)
    t = trainer(train__teacher=str(short), objective__preset="distillation", eval__every=0)
    with pytest.raises(Exception, match="it reads 8 tokens, and a prompt with its response has"):
        t.run()
