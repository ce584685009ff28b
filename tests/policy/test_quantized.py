"""A base in 4 bits: its layers are linear layers of the weight they were packed into, for training, sampling, saving.

What is tested of the layers holds for any packing, so a coarse one of our own stands in where bitsandbytes is missing.
"""

import copy
from types import SimpleNamespace

import pytest
import torch

from equipoise import policy as p
from equipoise.policy import quantized
from equipoise.policy.quantized import QuantizedLinear
from equipoise.rollout import SamplingParams
from equipoise.rollout.fallback import TransformersSampler
from equipoise.rollout.native import NativeSampler
from equipoise.rollout.paged import PagedSampler
from equipoise.train.settle import Outline
from tests.policy import tiny_models

pytest.importorskip("peft")
INSTALLED = quantized.is_installed()
# The values of NF4 (arXiv 2305.14314, appendix E).
LEVELS = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])  # fmt: skip


def nf4(weight):
    """Blocks of 64, each to the nearest of sixteen values times its largest entry; scales are not quantised again."""
    out = []
    for block in weight.float().flatten().split(quantized.BLOCK):
        scale = block.abs().max()
        out.append(LEVELS[(block[:, None] / scale - LEVELS).abs().argmin(1)] * scale)
    return torch.cat(out).view_as(weight).to(weight.dtype)


class StandIn:
    def __init__(self, weight):
        self.shape, self._weight = weight.shape, nf4(weight)
        self.nbytes = weight.numel() // 2

    def whole(self):
        return self._weight.clone()


@pytest.fixture(params=["stand-in", "bitsandbytes"])
def packing(request, monkeypatch):
    if request.param == "stand-in":
        monkeypatch.setattr(quantized, "Nf4", StandIn)
        monkeypatch.setattr(quantized, "is_installed", lambda: True)
    elif not INSTALLED:
        pytest.skip("bitsandbytes is not installed")


def loaded(folder, family="qwen2"):
    p.save(tiny_models.policy(family), folder)
    policy = p.load(folder, lora=p.Lora(rank=4), four_bit=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.05 * torch.randn_like(q))
    return policy


def packed_prompts():
    prompts = tiny_models.prompts(3)
    return p.pack(prompts, *tiny_models.responses(prompts, 2))


@pytest.mark.skipif(not INSTALLED, reason="bitsandbytes is not installed")
def test_bitsandbytes_packs_as_the_paper_says():
    torch.manual_seed(0)
    weight = torch.randn(256, 1024)
    packed = quantized.Nf4(weight)
    # Its scales are in 8 bits too: within a hundredth of the largest entry of a block.
    torch.testing.assert_close(packed.whole(), nf4(weight), atol=0.05, rtol=0)
    error = (packed.whole() - weight).norm() / weight.norm()
    assert 0.08 < float(error) < 0.10  # of normal weights
    assert packed.nbytes * 8 / weight.numel() == pytest.approx(4.127, abs=0.01)


def test_a_layer_is_a_linear_layer_of_its_whole_weight(packing):
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48)
    ours = quantized.QuantizedLinear(quantized.Nf4(linear.weight.detach()), linear.bias)
    plain = torch.nn.Linear(64, 48)
    plain.weight.data, plain.bias.data = ours.weight, linear.bias.data
    a, b = (torch.randn(5, 64, generator=torch.Generator().manual_seed(1), requires_grad=True) for _ in range(2))
    torch.testing.assert_close(ours(a), plain(b))
    ours(a).square().sum().backward()
    plain(b).square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    assert not any(name == "weight" for name, _ in ours.named_parameters())


@pytest.mark.parametrize("family", ["qwen2", "phi3"])
def test_adapters_alone_are_trained_and_the_rest_is_the_whole_model(tmp_path, packing, family):
    policy, pack = loaded(tmp_path, family), packed_prompts()
    assert policy.is_llama_like
    assert all("lora_" in name for name, q in policy.model.named_parameters() if q.requires_grad)
    whole = copy.deepcopy(policy)
    for name, module in list(whole.core.named_modules()):
        if isinstance(module, quantized.QuantizedLinear):
            linear = torch.nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
            linear.weight.data, linear.bias = module.weight, module.bias
            parent, _, child = name.rpartition(".")
            setattr(whole.core.get_submodule(parent), child, linear.requires_grad_(False))
    for q in (policy, whole):
        p.token_logprobs(q, pack).logprobs.sum().backward()
    torch.testing.assert_close(p.token_logprobs(policy, pack).logprobs, p.token_logprobs(whole, pack).logprobs)
    for a, b in zip(policy.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert p.parameter_count(policy.model) == p.parameter_count(whole.model)


def test_packed_weights_count_where_the_learning_rate_goes_by_the_models_size(tmp_path, packing):
    packed = loaded(tmp_path)
    whole = p.load(tmp_path, lora=p.Lora(rank=4))
    assert Outline.of(packed).parameters == Outline.of(whole).parameters
    in_four_bits = sum(m.in_features * m.out_features for m in packed.core.modules() if isinstance(m, QuantizedLinear))
    saved = p.weight_bytes(whole.model) - p.weight_bytes(packed.model)
    assert saved == pytest.approx(3.5 * in_four_bits, rel=0.02)  # of float32's four bytes half a one is left


def test_a_parameter_that_is_packed_counts_as_what_it_stands_for():
    """As bitsandbytes has them in a model that a program gives: two weights in a number."""
    linear = torch.nn.Linear(64, 48, bias=False)
    linear.weight = torch.nn.Parameter(torch.zeros(64 * 48 // 2, 1, dtype=torch.uint8), requires_grad=False)
    linear.weight.quant_state = SimpleNamespace(shape=torch.Size([48, 64]))
    assert p.parameter_count(linear) == 64 * 48


@pytest.mark.parametrize("sampler", [NativeSampler, PagedSampler])
def test_samplers_draw_what_transformers_draws(tmp_path, packing, sampler):
    policy = loaded(tmp_path)
    prompts, params = tiny_models.prompts(4), SamplingParams(max_tokens=20)
    ours, theirs = (kind(policy).sample(prompts, 2, params) for kind in (sampler, TransformersSampler))
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    torch.testing.assert_close(ours.logprobs, theirs.logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["qwen2", "gemma"])  # gemma's head is its embedding
def test_what_is_saved_is_the_model_that_was_trained(tmp_path, packing, family):
    policy, pack = loaded(tmp_path / "base", family), packed_prompts()
    p.save(policy, tmp_path / "saved")
    plain = p.load(tmp_path / "saved")
    assert not plain.has_adapter
    trained = p.token_logprobs(policy, pack).logprobs
    torch.testing.assert_close(p.token_logprobs(plain, pack).logprobs, trained, atol=1e-4, rtol=0)
    again = p.load(tmp_path / "base", lora=p.Lora(rank=4), four_bit=True)
    p.restore(again, tmp_path / "saved")
    assert torch.equal(p.token_logprobs(again, pack).logprobs, trained)
    assert "quantization" not in (tmp_path / "saved" / "config.json").read_text()


def test_without_the_package_it_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(quantized, "is_installed", lambda: False)
    with pytest.raises(p.ModelError, match=r'model.quantize = "nf4" needs the package bitsandbytes: pip install'):
        p.load(tmp_path, four_bit=True)
