"""Sampler against trainer: what is measured, and what `objective.mismatch` does about it."""

import dataclasses
import math
import typing

import pytest
import torch

from equipoise import Objective
from equipoise.kernels import fp8
from equipoise.objective.regularizer import sequence_mis, token_tis
from equipoise.objective.surrogate import Tokens
from equipoise.rollout import NativeSampler, PagedSampler
from equipoise.train import ConfigError, Trainer, load
from equipoise.train.mismatch import Mismatch
from equipoise.train.mismatch import metrics as mismatch_metrics

from .tiny import metrics, settings


def choice(name, **options):
    return Objective(mismatch={"name": name, **options}).mismatch


def case(responses=40, seed=0, spread=0.3):
    """Log-probabilities [n] of trainer and sampler, and lengths [b]."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (responses,), generator=g)
    sampler = -torch.rand(int(lengths.sum()), generator=g) * 3
    return sampler + spread * torch.randn(len(sampler), generator=g), sampler, lengths


def parts(trainer, sampler, lengths, correction, cuts):
    for rows in torch.arange(len(lengths)).tensor_split(cuts):
        keep = torch.isin(torch.arange(len(lengths)).repeat_interleave(lengths), rows)
        yield Mismatch.of(trainer[keep], sampler[keep], lengths[rows], correction)


@pytest.mark.parametrize("name", ["none", "tis", "mis"])
def test_micro_batches_add_up(name):
    trainer, sampler, lengths = case()
    correction = choice(name, **({} if name == "none" else {"cap": 1.2}))
    whole = mismatch_metrics([Mismatch.of(trainer, sampler, lengths, correction)], correction)
    split = mismatch_metrics(list(parts(trainer, sampler, lengths, correction, [3, 4, 20])), correction)
    assert split == pytest.approx(whole, rel=1e-6)
    assert ("rollout/capped_tokens" in whole) == (name == "tis")
    assert ("rollout/masked_responses" in whole) == (name == "mis")


def test_shares_are_those_of_the_weights_in_the_loss():
    trainer, sampler, lengths = case()
    response = torch.arange(len(lengths)).repeat_interleave(lengths)
    zero = torch.zeros_like(trainer)
    tokens = Tokens(trainer, trainer, zero, zero, response, lengths)
    capped = token_tis(tokens, sampler, cap=1.2) == torch.tensor(1.2)
    masked = sequence_mis(tokens, sampler, cap=1.2)[lengths.cumsum(0) - 1] == 0
    assert 0 < capped.float().mean() < 1
    assert 0 < masked.float().mean() < 1
    for name, key, weights in (
        ("tis", "rollout/capped_tokens", capped),
        ("mis", "rollout/masked_responses", masked),
    ):
        correction = choice(name, cap=1.2)
        out = mismatch_metrics([Mismatch.of(trainer, sampler, lengths, correction)], correction)
        assert out[key] == pytest.approx(float(weights.float().mean()))


def test_the_kl_is_that_of_what_was_sampled_to_what_is_trained():
    g = torch.Generator().manual_seed(1)
    p, q = (torch.randn(30, generator=g).log_softmax(0) for _ in range(2))
    drawn = torch.multinomial(p.exp(), 200_000, replacement=True, generator=g)
    out = mismatch_metrics([Mismatch.of(q[drawn], p[drawn], torch.tensor([200_000]), choice("none"))], choice("none"))
    exact = float((p.exp() * (p - q)).sum())
    other = float((q.exp() * (q - p)).sum())
    assert out["rollout/kl"] == pytest.approx(exact, rel=0.03)
    assert abs(exact - other) > 0.06 * exact  # the other direction would be noticed
    assert out["rollout/logprob_difference/max"] == pytest.approx(float((q - p)[drawn].abs().max()))


def test_the_engine_decides_unless_the_objective_does():
    assert load(None).build_objective().mismatch.name == "none"
    assert str(load(None, ["--rollout.engine", "vllm"]).build_objective().mismatch) == "tis(cap=2)"
    for given, wanted in {
        "mis": "mis(cap=2)",
        "none": "none",
        "{ cap = 3.0 }": "tis(cap=3)",
        '{ name = "mis", cap = 5.0 }': "mis(cap=5)",
    }.items():
        config = load(None, ["--rollout.engine", "vllm", "--objective.mismatch", given])
        assert str(config.build_objective().mismatch) == wanted
    config = load(None, ["--rollout.engine", "vllm", "--objective.mismatch.cap", "4.0"])
    assert str(config.build_objective().mismatch) == "tis(cap=4)"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--rollout.engine", "vlm"], r'rollout.engine = "vlm" is not known; did you mean "vllm"\?'),
        (["--rollout.engine_memory", "1.5"], "rollout.engine_memory = 1.5: must be a share between 0 and 1"),
        (["--rollout.engine", "vllm", "--objective.mismatch", "tsi"], 'did you mean "tis"'),
        (["--objective.mismatch", "tis"], r"objective.mismatch = \"tis\": must be none unless rollout.exact"),
        (["--rollout.engine", "vllm", "--objective.mismatch.cap", "-1.0"], "cap = -1.0 must be at least 1"),
    ],
)
def test_senseless_choices_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load(None, given)


@pytest.mark.parametrize("name", ["tis", "mis"])
def test_a_run_corrects_what_it_measures(model, tmp_path, monkeypatch, name):
    """A sampler that is wrong about its log-probabilities: the loss weighs every token by what the metrics tell of."""
    options = {"train__steps": 1, "eval__every": 0, "rollout__exact": True, "objective__mismatch": name}
    plain = Trainer(settings(model, tmp_path / "plain", **options))
    plain.run()
    right = metrics(tmp_path / "plain")[0]
    assert right["rollout/logprob_difference/max"] < 1e-5
    assert right.get("rollout/capped_tokens", 0) == right.get("rollout/masked_responses", 0) == 0

    t = Trainer(settings(model, tmp_path / "wrong", **options))
    sample, shift = t.sampler.sample, math.log(1.25)

    def wrong(*args, **more):
        rollouts = sample(*args, **more)
        rollouts.logprobs.add_(shift)  # says that every token was 1.25 times as likely as it was
        return rollouts

    monkeypatch.setattr(t.sampler, "sample", wrong)
    t.run()
    row = metrics(tmp_path / "wrong")[0]
    assert row["rollout/logprob_difference/mean"] == pytest.approx(shift, rel=1e-4)
    assert row["rollout/kl"] == pytest.approx(1 / 1.25 - 1 + shift, rel=1e-3)
    assert row["ratio/max"] == 1
    if name == "tis":
        assert row["grad_norm"] == pytest.approx(right["grad_norm"] / 1.25, rel=1e-4)
    else:
        assert row["grad_norm"] < 0.5 * right["grad_norm"]  # 1.25⁻ᵀ for a response of T tokens


class StandIn:
    """In vLLM's place: the native sampler, whose log-probabilities are off by a little."""

    opened: typing.ClassVar[list] = []

    def __init__(self, policy, *, memory):
        self.inner, self.memory, self.closed = NativeSampler(policy), memory, False
        self.opened.append(self)

    def sample(self, *args, **more):
        rollouts = self.inner.sample(*args, **more)
        return dataclasses.replace(rollouts, logprobs=rollouts.logprobs + 0.01)

    def close(self):
        self.closed = True


def test_vllm_is_opened_with_its_memory_and_closed_with_the_run(model, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.train.opening.VllmSampler", StandIn)
    options = {"rollout__engine": "vllm", "rollout__engine_memory": 0.25, "train__steps": 2}
    Trainer(settings(model, tmp_path / "run", **options)).run()
    assert (StandIn.opened[-1].memory, StandIn.opened[-1].closed) == (0.25, True)
    for row in metrics(tmp_path / "run"):
        assert row["rollout/logprob_difference/mean"] == pytest.approx(0.01, abs=1e-5)  # against what vLLM says
        assert row["ratio/min"] == row["ratio/max"] == 1  # log π_old is the trainer's
        assert row["rollout/capped_tokens"] == 0
    with pytest.raises(ConfigError, match=r"eval\.per_level"):
        Trainer(settings(model, tmp_path / "other", eval__per_level=10**6, **options))
    assert len(StandIn.opened) == 2
    assert StandIn.opened[-1].closed


EIGHT_BITS = {
    "model__device": "auto",
    "rollout__cache_dtype": "fp8",
    "rollout__speculation": 2,
    "train__steps": 1,
    "eval__every": 0,
}


@pytest.mark.parametrize("given", [{}, {"objective__mismatch": "none"}], ids=["default", "none"])
def test_8_bits_are_measured_and_corrected_or_warned_of(model, tmp_path, monkeypatch, capsys, given):
    """The paged sampler in the place of the CPU's own, which has no 8 bits and no drafts."""
    monkeypatch.setattr("equipoise.train.opening.native_sampler", PagedSampler)
    t = Trainer(settings(model, tmp_path / "run", **EIGHT_BITS, **given))
    assert (t.sampler.cache_dtype, t.sampler.weights_dtype, t.sampler.speculation) == ("fp8", "auto", 2)
    t.run()
    (row,) = metrics(tmp_path / "run")
    assert 1e-4 < row["rollout/logprob_difference/mean"] < 0.3
    assert row["rollout/kl"] > 0
    assert row["rollout/tokens_per_pass"] >= 1
    assert row["ratio/min"] == row["ratio/max"] == 1  # log π_old is the trainer's
    assert ("rollout/capped_tokens" in row) == (not given)
    said = "".join(capsys.readouterr())
    assert ("drawn from a policy in 8 bits" in said) == bool(given)


def test_8_bits_are_refused_where_there_are_none(model, tmp_path, monkeypatch):
    monkeypatch.setattr(fp8, "problem", lambda device: "this one has 8.0")
    sentence = r'rollout.cache_dtype = "fp8": needs a CUDA device of capability 8.9 or later, and this one has 8.0'
    with pytest.raises(ConfigError, match=sentence):
        Trainer(settings(model, tmp_path / "run", **EIGHT_BITS))
