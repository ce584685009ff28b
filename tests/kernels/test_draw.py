import math

import pytest
import torch
from scipy import stats
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from equipoise.kernels.draw import SamplingParams, draw, truncate
from equipoise.kernels.uniform import response_keys, uniforms


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=5, top_p=0.8),
        SamplingParams(temperature=1.3, min_p=0.2),
    ],
)
def test_frequencies_are_the_softmax(params):
    rows, vocabulary = 40_000, 12
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(3)).expand(rows, -1) * 1.5
    u = uniforms(response_keys(0, 0, ["chi"] * rows, torch.arange(rows)), torch.tensor([7]))[:, 0]
    drawn = draw(logits, u, params)
    p = truncate(logits[:1] / params.temperature, params.top_k, params.top_p, params.min_p)[0].softmax(0).double()
    counts = torch.bincount(drawn.tokens, minlength=vocabulary)
    kept = p > 0
    assert counts[~kept].sum() == 0
    expected = rows * p[kept] / p[kept].sum()
    assert stats.chisquare(counts[kept].numpy(), expected.numpy()).pvalue > 1e-3
    torch.testing.assert_close(drawn.logprobs, p.log()[drawn.tokens].float(), atol=1e-5, rtol=0)


def test_greedy_takes_the_largest_and_reports_temperature_one():
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    drawn = draw(logits, torch.rand(50), SamplingParams(temperature=0.0, top_k=3))
    assert torch.equal(drawn.tokens, logits.argmax(1))
    torch.testing.assert_close(drawn.logprobs, logits.log_softmax(1).amax(1), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(5, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.2, 0.0), (8, 0.5, 0.0), (1, 1.0, 0.0), (0, 1e-6, 0.0), (100, 1.0, 0.0),
     (0, 1.0, 0.1), (0, 1.0, 1.0), (0, 1.0, 1e-9), (12, 0.9, 0.2), (0, 0.7, 0.05)],
)  # fmt: skip
def test_truncation_is_that_of_transformers(top_k, top_p, min_p):
    z = 2 * torch.randn(64, 40, generator=torch.Generator().manual_seed(1))
    wanted = TemperatureLogitsWarper(1.0)(None, z)
    if top_k > 0:
        wanted = TopKLogitsWarper(top_k)(None, wanted)
    if top_p < 1:
        wanted = TopPLogitsWarper(top_p)(None, wanted)
    if min_p > 0:
        wanted = MinPLogitsWarper(min_p)(None, wanted)
    assert torch.equal(truncate(z, top_k, top_p, min_p), wanted)


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(3, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.3), (5, 0.9, 0.1)])
def test_the_support_by_a_plain_loop(top_k, top_p, min_p):
    z = 2 * torch.randn(30, 11, generator=torch.Generator().manual_seed(5))
    params = SamplingParams(temperature=1.4, top_k=top_k, top_p=top_p, min_p=min_p)
    drawn = draw(z, torch.rand(30, generator=torch.Generator().manual_seed(6)), params)
    for row, kept, token, logprob in zip(z, drawn.kept, drawn.tokens, drawn.logprobs, strict=True):
        p = (row.double() / 1.4).softmax(0).tolist()
        left = sorted(range(11), key=lambda i: -p[i])[: top_k or 11]
        total, mass, nucleus = sum(p[i] for i in left), 0.0, []
        for i in left:
            if mass < top_p * total:
                nucleus.append(i)
            mass += p[i]
        support = [i for i in nucleus if p[i] >= min_p * p[left[0]]]
        assert kept.nonzero()[:, 0].tolist() == sorted(support)
        assert int(token) in support
        assert float(logprob) == pytest.approx(math.log(p[token] / sum(p[i] for i in support)), abs=1e-5)


def test_nothing_truncated_has_no_support():
    z = torch.randn(3, 5)
    for params in (SamplingParams(), SamplingParams(temperature=0.0, top_k=2)):
        assert draw(z, torch.rand(3), params).kept is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_the_ends_of_the_uniform_stay_inside_the_vocabulary(scale):
    logits = scale * torch.randn(200, 1000, generator=torch.Generator().manual_seed(2))
    logits[:, 0] = logits[:, -1] = -torch.inf
    for u in (0.0, 1 - 2**-24):
        drawn = draw(logits, torch.full((200,), u), SamplingParams())
        assert drawn.tokens.min() >= 1
        assert drawn.tokens.max() <= 998
        assert torch.isfinite(drawn.logprobs).all()
