import pytest
import torch
from scipy import stats
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from equipoise.kernels.draw import draw, truncate
from equipoise.kernels.uniform import response_keys, uniforms
from equipoise.rollout.rollouts import SamplingParams


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(top_k=5, top_p=0.8)]
)
def test_frequencies_are_the_softmax(params):
    rows, vocabulary = 40_000, 12
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(3)).expand(rows, -1) * 1.5
    u = uniforms(response_keys(0, 0, ["chi"] * rows, torch.arange(rows)), torch.tensor([7]))[:, 0]
    drawn = draw(logits, u, params)
    p = truncate(logits[:1] / params.temperature, params.top_k, params.top_p)[0].softmax(0).double()
    counts = torch.bincount(drawn.tokens, minlength=vocabulary)
    kept = p > 0
    assert counts[~kept].sum() == 0
    expected = rows * p[kept] / p[kept].sum()
    assert stats.chisquare(counts[kept].numpy(), expected.numpy()).pvalue > 1e-3
    torch.testing.assert_close(drawn.logprobs, p.log()[drawn.tokens].float(), atol=1e-5, rtol=0)
    whole = (logits[0] / params.temperature).log_softmax(0)
    torch.testing.assert_close(drawn.policy_logprobs, whole[drawn.tokens], atol=1e-5, rtol=0)


def test_greedy_takes_the_largest_and_reports_temperature_one():
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    drawn = draw(logits, torch.rand(50), SamplingParams(temperature=0.0, top_k=3))
    assert torch.equal(drawn.tokens, logits.argmax(1))
    torch.testing.assert_close(drawn.logprobs, logits.log_softmax(1).amax(1), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.9), (0, 0.2), (8, 0.5), (1, 1.0), (0, 1e-6), (100, 1.0)])
def test_truncation_is_that_of_transformers(top_k, top_p):
    z = 2 * torch.randn(64, 40, generator=torch.Generator().manual_seed(1))
    wanted = TemperatureLogitsWarper(1.0)(None, z)
    if top_k > 0:
        wanted = TopKLogitsWarper(top_k)(None, wanted)
    if top_p < 1:
        wanted = TopPLogitsWarper(top_p)(None, wanted)
    assert torch.equal(truncate(z, top_k, top_p), wanted)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_the_ends_of_the_uniform_stay_inside_the_vocabulary(scale):
    logits = scale * torch.randn(200, 1000, generator=torch.Generator().manual_seed(2))
    logits[:, 0] = logits[:, -1] = -torch.inf
    for u in (0.0, 1 - 2**-24):
        drawn = draw(logits, torch.full((200,), u), SamplingParams())
        assert drawn.tokens.min() >= 1
        assert drawn.tokens.max() <= 998
        assert torch.isfinite(drawn.logprobs).all()
