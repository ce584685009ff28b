"""A layer with its backward pass written out against the decoder's, which autograd differentiates.

On a machine without CUDA the Triton norms run in Triton's interpreter: install triton and set TRITON_INTERPRET=1.
"""

import importlib.util
import os

import pytest
import torch

from equipoise import policy as p
from equipoise.kernels import plain_layers
from equipoise.policy import block, decoder
from equipoise.policy.attention import packed_attention
from tests.policy import tiny_models

CUDA = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
KINDS = [kind for kind in tiny_models.LLAMA_LIKE if kind != "mistral"]  # whose window is shorter than a sequence


def packed(share, device="cpu"):
    prompts = tiny_models.prompts(4)
    tokens, lengths, prompt = tiny_models.responses(prompts, 3, alike=3)
    return p.pack(prompts, tokens.to(device), lengths, prompt, share=share)


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return {name: q.grad.clone() for name, q in model.named_parameters() if q.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("share", ["prompt", "nothing"])
def test_hidden_states_and_gradients_are_the_decoders(kind, checkpointing, share):
    core = tiny_models.policy(kind).core
    row = packed(share)
    mine = block.hidden_states(core, row, gradient_checkpointing=checkpointing)
    theirs = decoder.hidden_states(
        core, row.inputs, row.positions, lambda layer, qkv: packed_attention(qkv, layer.kv_heads, row)
    )
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-5)
    weight = torch.randn(mine.shape, generator=torch.Generator().manual_seed(1))
    got, wanted = gradients(core, (mine * weight).mean()), gradients(core, (theirs * weight).mean())
    assert got.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], atol=1e-6, rtol=1e-4, msg=name)


def kept_bytes(core, row, run):
    seen = {q.untyped_storage().data_ptr(): 0 for q in core.parameters()}

    def keep(x):
        seen.setdefault(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = run()
    del out
    return sum(seen.values())


def test_it_keeps_less_than_autograd_and_with_checkpointing_next_to_nothing():
    core, row = tiny_models.policy("qwen3").core, packed("prompt")
    mine = kept_bytes(core, row, lambda: block.hidden_states(core, row))
    least = kept_bytes(core, row, lambda: block.hidden_states(core, row, gradient_checkpointing=True))
    theirs = kept_bytes(core, row, lambda: decoder.hidden_states(
        core, row.inputs, row.positions, lambda layer, qkv: packed_attention(qkv, layer.kv_heads, row)
    ))  # fmt: skip
    assert mine < 0.7 * theirs
    assert least < 0.35 * mine


def test_what_it_does_not_cover_is_left_to_the_decoder(monkeypatch, tmp_path):
    row = packed("prompt")
    core = tiny_models.policy("qwen2").core
    assert not block.serves(core, row)  # the CPU has its own way
    monkeypatch.setattr(block.varlen, "serves", lambda qkv: True)
    assert block.serves(core, row)
    assert not block.serves(core, packed("prefix"))
    assert not block.serves(tiny_models.policy("mistral").core, row)  # sees 7 tokens
    core.model.layers[1].mlp.down_proj.bias = torch.nn.Parameter(torch.zeros(128))
    assert not block.serves(core, row)
    p.save(tiny_models.policy("qwen2"), tmp_path)
    adapted = p.load(tmp_path, lora=p.Lora(rank=2, targets=("v_proj",)))
    assert not block.serves(adapted.core, row)


@pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("d", [8, 576, 1000, 1024, 1536, 2560])  # powers of two, and between them
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_of_any_width_are_the_plain_ones(d, dtype, offset, monkeypatch):
    from equipoise.kernels import triton_layers

    monkeypatch.setattr(triton_layers, "PROGRAMS", 3)  # so that each has several tiles to sum
    draw = torch.Generator().manual_seed(d)
    x, delta, d_y, d_total = (torch.randn(9, d, generator=draw).to("cuda" if CUDA else "cpu", dtype) for _ in range(4))
    weight = torch.randn(d, generator=draw).to(x)

    def run(ops, cast):
        total, y, scale = ops.add_norm(*map(cast, (x, delta, weight)), 1e-6, offset)
        alone = ops.add_norm(cast(x), None, cast(weight), 1e-6, offset)[1]
        gradients = ops.add_norm_gradient(*map(cast, (d_y, d_total)), total, scale, cast(weight), offset)
        return total, y, scale, alone, *gradients

    found, again = (run(triton_layers, torch.Tensor.detach) for _ in range(2))
    exact = run(plain_layers, torch.Tensor.double)
    for a, b, wanted in zip(found, again, exact, strict=True):
        assert torch.equal(a, b)
        assert float((a.double() - wanted).norm() / wanted.norm()) < (1e-6 if dtype == torch.float32 else 2**-7)


@pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("programs", [1, 5, 300])
@pytest.mark.parametrize("d", [8, 40])
def test_partial_sums_of_a_weights_gradient_add_up(programs, d):
    from equipoise.kernels import triton_layers

    sums = torch.randn(programs, d, generator=torch.Generator().manual_seed(d)).to("cuda" if CUDA else "cpu")
    found = triton_layers._total(sums, torch.float32)
    torch.testing.assert_close(found.double(), sums.double().sum(0), atol=2e-5, rtol=0)
    rounded = triton_layers._total(sums, torch.bfloat16)
    assert torch.equal(rounded, found.bfloat16()) if CUDA else torch.allclose(rounded.float(), found, rtol=2**-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_in_bfloat16_is_as_near_to_float32_as_the_decoders(kind, checkpointing, monkeypatch):
    policy = tiny_models.policy(kind, dtype=torch.bfloat16, gradient_checkpointing=checkpointing)
    policy.model.to("cuda")
    row = packed("prompt", "cuda")

    weight = torch.randn(len(row.targets), generator=torch.Generator().manual_seed(1)).cuda()

    def run(policy):
        logprobs = p.token_logprobs(policy, row).logprobs
        return logprobs.detach(), gradients(policy.model, (logprobs * weight).mean())

    assert block.serves(policy.core, row)
    mine, again = run(policy), run(policy)
    assert torch.equal(mine[0], again[0])
    with torch.no_grad():
        assert torch.equal(mine[0], p.token_logprobs(policy, row).logprobs)  # what rollout.exact rests on
    assert all(torch.equal(mine[1][k], again[1][k]) for k in mine[1])
    monkeypatch.setattr(block, "serves", lambda *_: False)
    theirs = run(policy)
    policy.model.float()
    exact = run(policy)

    def error(found, k=None):
        a, b = (x[0] if k is None else x[1][k] for x in (found, exact))
        return float((a - b).norm() / b.norm())

    assert error(mine) < 1.3 * error(theirs) + 1e-4
    for k in exact[1]:
        assert error(mine, k) < 1.5 * error(theirs, k) + 2e-3, k
