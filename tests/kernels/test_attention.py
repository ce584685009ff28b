"""Attention over segments of a row against the buckets of SDPA, which are held to transformers' own elsewhere.

On a machine without CUDA the Triton kernels run in Triton's interpreter: install triton and set TRITON_INTERPRET=1.
"""

import dataclasses
import importlib.util
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.kernels import segments, varlen
from equipoise.policy import pack
from equipoise.policy.attention import packed_attention
from tests.policy import tiny_models

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")
if HAS_TRITON:
    from equipoise.kernels import triton_attention


def both(packed, heads, kv_heads, dtype, head_dim=8, seed=0):
    """Outputs and gradients by segments and by buckets."""
    g = torch.Generator().manual_seed(seed)
    size = (len(packed.inputs), heads + 2 * kv_heads, head_dim)
    qkv = torch.randn(size, generator=g, dtype=torch.float64).to(packed.inputs.device, dtype).requires_grad_()
    d = torch.randn(size[0], heads, head_dim, generator=g, dtype=torch.float64).to(packed.inputs.device, dtype)
    found = []
    for out in (
        varlen.varlen_attention(qkv, kv_heads, packed.segments),
        packed_attention(qkv.double(), kv_heads, packed).to(dtype),
    ):
        found.append((out.detach(), torch.autograd.grad(out, qkv, d)[0]))
    return found


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=9),
    share=st.sampled_from(["prompt", "nothing"]),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
)
def test_segments_and_buckets_agree(sizes, lengths, share, heads):
    prompts = [list(range(3, 3 + size)) for size in sizes]
    prompt = torch.tensor([i % len(sizes) for i, _ in lengths])
    length = torch.tensor([n for _, n in lengths])
    packed = pack(prompts, torch.arange(int(length.sum())), length, prompt, share=share)
    (out, grad), (wanted, wanted_grad) = both(packed, *heads, torch.float64)
    torch.testing.assert_close(out, wanted, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(grad, wanted_grad, atol=1e-12, rtol=1e-10)


def test_what_is_shared_changes_no_attention():
    """The same queries, keys and values in each layout give each target the same output."""
    prompts = tiny_models.prompts(4)
    tokens, lengths, prompt = tiny_models.responses(prompts, 3, alike=3)
    outputs = []
    for share in ("prefix", "prompt", "nothing"):
        packed = pack(prompts, tokens, lengths, prompt, share=share)
        table = torch.randn(tiny_models.VOCABULARY, 6, 8, generator=torch.Generator().manual_seed(0)).double()
        qkv = table[packed.inputs] + 0.1 * packed.positions[:, None, None]
        outputs.append(packed_attention(qkv, 1, packed)[packed.predict])
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(outputs[2], outputs[0])


LENGTHS = torch.tensor([1, 1, 1, 200, 3, 17, 500, 1, 64, 65, 128, 129, 2, 33, 40])
HOPPER, ADA = 227 << 10, 99 << 10  # bytes of shared memory
PROMPT = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4])


@needs_triton
@pytest.mark.parametrize(
    ("heads", "long", "memory"),
    [
        ((3, 1, 64), False, HOPPER),
        ((4, 2, 128), False, HOPPER),
        ((4, 2, 128), True, HOPPER),
        ((2, 2, 24), False, HOPPER),
        ((8, 1, 256), False, HOPPER),
        ((8, 1, 256), False, ADA),
    ],
)
@pytest.mark.parametrize("share", ["prompt", "nothing"])
@pytest.mark.parametrize("described", [True, False])
def test_the_kernels_agree_with_the_plain_loop(heads, long, memory, share, described, monkeypatch):
    """Tiles with one segment, with several, with parts of them, and those of long segments; prompts whose gradients
    come in one part or several; those of smaller cards; loaded through descriptors and without."""
    if described and CUDA and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs Hopper")
    monkeypatch.setattr(segments, "PART", 100)
    monkeypatch.setattr(triton_attention, "LONG", 0 if long else 2048)
    monkeypatch.setattr(triton_attention, "shared_memory", lambda device: memory)
    monkeypatch.setattr(triton_attention, "_has_descriptors", lambda x: described)
    H, kv_heads, D = heads
    dtype = torch.bfloat16 if CUDA else torch.float32
    lengths = LENGTHS if CUDA or D == 64 else LENGTHS // 4 + 1  # the interpreter is slow
    packed = pack([[3] * n for n in (1, 100, 7, 300, 64)], torch.zeros(int(lengths.sum()), dtype=torch.int64), lengths,
                  PROMPT, share=share)  # fmt: skip
    g = torch.Generator().manual_seed(0)
    qkv = torch.randn(len(packed.inputs), H + 2 * kv_heads, D, generator=g).to(dtype)
    d = torch.randn(len(packed.inputs), H, D, generator=g).to(dtype)
    out, lse = varlen.attend(qkv.double(), kv_heads, packed.segments, D**-0.5)
    wanted = varlen.attend_gradient(d.double(), qkv.double(), out, lse, kv_heads, packed.segments, D**-0.5)
    places = dataclasses.replace(packed.segments, device=torch.device(DEVICE))
    qkv, d = qkv.to(DEVICE), d.to(DEVICE)

    def by_kernels():
        out, lse = triton_attention.attend(qkv, kv_heads, places, D**-0.5)
        return out, lse, triton_attention.attend_gradient(d, qkv, out, lse, kv_heads, places, D**-0.5)

    for got, again, exact in zip(by_kernels(), by_kernels(), (out, lse, wanted), strict=True):
        assert torch.equal(got, again)
        error = (got.cpu().double() - exact).norm() / exact.norm()
        assert float(error) < (1e-2 if dtype == torch.bfloat16 else 2e-6)


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
@pytest.mark.parametrize("share", ["prompt", "nothing"])
def test_attention_in_bfloat16(share):
    tokens = torch.zeros(int(LENGTHS.sum()), dtype=torch.int64, device="cuda")
    packed = pack([[3] * n for n in (1, 100, 7, 300, 64)], tokens, LENGTHS, PROMPT, share=share)
    (out, grad), (wanted, wanted_grad) = both(packed, 9, 3, torch.bfloat16, 64)
    torch.testing.assert_close(out, wanted, atol=2e-2, rtol=2e-2)
    assert float((grad.double() - wanted_grad.double()).norm() / wanted_grad.double().norm()) < 1e-2


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
@pytest.mark.parametrize("share", ["prompt", "nothing"])
def test_the_host_never_waits(share):
    """Neither for the row, nor for the tables of its tiles."""
    tokens = torch.zeros(int(LENGTHS.sum()), dtype=torch.int64, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        packed = pack([[3] * n for n in (1, 100, 7, 300, 64)], tokens, LENGTHS, PROMPT, share=share)
        qkv = torch.ones(len(packed.inputs), 15, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        out = varlen.varlen_attention(qkv, 3, packed.segments)
        grad = torch.autograd.grad(out.sum(), qkv)[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool((out == 1).all())  # values are ones
    assert bool(grad[:, :12].abs().max() < 1e-2)  # and scores do not matter
