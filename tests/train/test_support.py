"""Ratios over the sampled support: with top-k, top-p or min-p a token is drawn from π_old/S_old on a part of the
vocabulary, and its unbiased ratio is (π/S)/(π_old/S_old) over that same part.
"""

import pytest
import torch

import equipoise as eq
from equipoise import policy as models
from equipoise.objective.regularizer import k3
from equipoise.rollout import NativeSampler, SamplingParams
from equipoise.train import Trainer, load

from .tiny import metrics, outcome

WIDE = {"name": "ppo_clip", "low": 1.0, "high": 1e9}  # clips nothing
PROMPT = [5, 6, 3]
PARAMS = SamplingParams(top_p=0.7, min_p=0.05, temperature=0.9, max_tokens=1)


class Enumerated:
    """All responses of one token that a truncated sampler of the old policy can give, and a policy that has moved."""

    def __init__(self, model):
        self.old, self.new = (models.load(model, dtype=torch.float64) for _ in range(2))
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for p in self.new.parameters():
                p.add_(0.15 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
        one = NativeSampler(models.load(model)).sample([PROMPT], 1, PARAMS).support
        self.tokens = one.ids.long()
        n = len(self.tokens)
        assert 2 < n < 18
        self.support = models.Support.of(one.ids.repeat(n), torch.full((n,), n))
        self.pack = models.pack([PROMPT], self.tokens, torch.ones(n).long(), torch.zeros(n, dtype=torch.int64))
        self.reward = torch.arange(n, dtype=torch.float64) % 3

    def logprobs(self, policy, support):
        return models.token_logprobs(policy, self.pack, temperature=PARAMS.temperature, support=support).logprobs

    def gradient(self, value):
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(self.new.parameters()))])


@pytest.fixture(scope="module")
def enumerated(model):
    return Enumerated(model)


@pytest.mark.parametrize("over", ["support", "vocabulary"])
def test_the_expected_gradient_is_the_truth_over_the_support_and_is_not_over_the_vocabulary(enumerated, over):
    e = enumerated
    p_old, p_new = e.logprobs(e.old, e.support).exp().detach(), e.logprobs(e.new, e.support).exp()
    assert float(p_old.sum()) == pytest.approx(1, abs=1e-12)
    assert float((p_new - p_old).detach().abs().max()) > 0.05
    truth = e.gradient((e.reward * p_new).sum())  # ∇E[r] of π/S on the sampled support

    objective = eq.Objective("reward", aggregation="constant", surrogate=WIDE)
    support = e.support if over == "support" else None
    old = e.logprobs(e.old, support).detach()
    total, n = 0.0, len(e.tokens)
    for i in range(n):  # each alone, weighed with the probability of being drawn
        pack = models.pack([PROMPT], e.tokens[i, None], torch.ones(1).long(), torch.zeros(1).long())
        credit = objective.assign([float(e.reward[i])], [0], [1])
        loss = models.token_loss(
            e.new, pack, objective, old[i, None], credit, torch.zeros(1, dtype=torch.int64),
            temperature=PARAMS.temperature, support=None if support is None else support.part(slice(i, i + 1)),
        ).loss  # fmt: skip
        total = total + float(p_old[i]) * e.gradient(-loss)
    error = float((total - truth).norm() / truth.norm())
    assert error < 1e-10 if over == "support" else error > 0.05


def test_the_kl_to_the_reference_is_that_of_the_truncated_distributions(enumerated):
    """E[k3] under π/S is KL(π/S ‖ π_ref/S_ref); with whole-vocabulary probabilities it would be no KL at all."""
    e = enumerated
    ours = e.logprobs(e.new, e.support).detach()
    reference = models.reference_logprobs(e.new, e.old, e.pack, temperature=PARAMS.temperature, support=e.support)
    kl = float((ours.exp() * (ours - reference)).sum())
    assert kl > 1e-3
    assert float((ours.exp() * k3(ours, reference)).sum()) == pytest.approx(kl, abs=1e-12)


def test_the_entropy_is_that_of_the_truncated_distribution(enumerated):
    e = enumerated
    found = models.token_logprobs(e.new, e.pack, temperature=PARAMS.temperature, support=e.support)
    entropy = -float((found.logprobs.exp() * found.logprobs).sum().detach())
    torch.testing.assert_close(found.entropy, torch.full_like(found.entropy, entropy), atol=1e-12, rtol=0)


ABACUS = [
    "--model.name", "abacus", "--model.device", "cpu", "--train.steps", "2", "--train.updates", "2",
    "--rollout.top_p", "0.9", "--rollout.prompts", "6", "--rollout.group_size", "4", "--eval.every", "0",
    "--log.terminal", "false", "--train.checkpoint_every", "1", "--optim.warmup", "0",
]  # fmt: skip


def test_the_embedded_models_first_ratios_are_one_and_a_resumed_run_is_the_whole_one(tmp_path):
    def run(name, steps, **more):
        Trainer(load(None, [*ABACUS, "--train.steps", str(steps), "--train.out", str(tmp_path / name)]), **more).run()

    run("whole", 2)
    run("parts", 1)
    run("parts", 2, resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    records = metrics(tmp_path / "whole")
    assert len(records) == 2
    for record in records:
        assert record["rollout/logprob_difference/mean"] < 1e-6
        assert record["ratio/min"] == pytest.approx(1, abs=1e-5)
        assert record["ratio/max"] == pytest.approx(1, abs=1e-5)
        assert record["approx_kl/last_update"] > 0  # and the second update is off-policy


@pytest.mark.parametrize(("top_k", "size", "single"), [(3, 3.0, 0.0), (1, 1.0, 1.0)])
def test_the_metrics_count_what_was_kept(run, tmp_path, top_k, size, single):
    run(rollout__top_k=top_k, train__steps=1, eval__every=0)
    (record,) = metrics(tmp_path / "run")
    assert (record["support/mean_size"], record["support/single"]) == (size, single)


def test_without_truncation_there_is_no_support_to_count(run, tmp_path):
    run(train__steps=1, eval__every=0)
    assert not any(name.startswith("support/") for name in metrics(tmp_path / "run")[0])
