"""The layers' functions against one line of torch each, and their Triton versions against the same line.

On a machine without CUDA the Triton versions run in Triton's interpreter: install triton and set TRITON_INTERPRET=1.
"""

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F

from equipoise import kernels
from equipoise.kernels import layers

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")
)
HALF = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["torch", TRITON])
def device(request, monkeypatch):
    """Where tensors lie for the plain or the Triton version."""
    monkeypatch.setattr(layers, "_in_triton", lambda x: request.param == "triton")
    if request.param == "torch":
        return "cpu"
    from equipoise.kernels import triton_layers

    monkeypatch.setattr(triton_layers, "PROGRAMS", 3)  # so that each of them has several tiles to sum
    return DEVICE


def half_split_rotation(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def tensors(*shapes, dtype, device="cpu"):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g, dtype=torch.float64).to(device, dtype).requires_grad_() for s in shapes]


def assert_same(got, wanted, inputs, dtype):
    """Values and gradients; several results are one after the other."""
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)
    d = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(got)
    for a, b in zip(torch.autograd.grad(got, inputs, d), torch.autograd.grad(wanted, inputs, d), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=tolerance * 4, rtol=tolerance)


def norm(x, weight, offset):
    return F.rms_norm(x.double(), x.shape[-1:], offset + weight.double(), 1e-6).to(x.dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(1, 8), (33, 64), (700, 72), (5, 3, 32)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(device, shape, offset, dtype):
    x, weight = tensors(shape, shape[-1:], dtype=dtype, device=device)
    with torch.no_grad():
        x[0] *= 1e-4  # where eps matters
    assert_same(kernels.rms_norm(x, weight, 1e-6, offset), norm(x, weight, offset), (x, weight), dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(1, 8), (700, 72)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("added", [False, True])
def test_add_norm(device, shape, offset, added, dtype):
    x, delta, weight = tensors(shape, shape, shape[-1:], dtype=dtype, device=device)
    inputs = (x, delta, weight) if added else (x, weight)
    got = torch.cat(kernels.add_norm(x, delta if added else None, weight, 1e-6, offset))
    total = x + delta if added else x
    assert_same(got, torch.cat([total, norm(total, weight, offset)]), inputs, dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(33, 96), (3, 1100)])
def test_gated(device, activation, shape, dtype):
    (gate_up,) = tensors(shape, dtype=dtype, device=device)
    with torch.no_grad():
        gate_up[0] *= 50  # both ends of the sigmoid
    gate, up = gate_up.chunk(2, -1)
    plain = {"silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}[activation]
    assert_same(kernels.gated(gate_up, activation), plain(gate) * up, (gate_up,), dtype)


def rope_table(U, D, dtype, device):
    angle = torch.arange(U)[:, None, None] * torch.linspace(0.1, 1, D // 2)
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(17, 5, 32), (301, 5, 24)])
def test_rotate(device, shape, dtype):
    (x,) = tensors(shape, dtype=dtype, device=device)
    cos, sin = rope_table(shape[0], shape[2], dtype, device)
    rotated = half_split_rotation(x[:, :3], cos.repeat(1, 1, 2), sin.repeat(1, 1, 2))
    assert_same(kernels.rotate(x, 3, cos, sin), torch.cat((rotated, x[:, 3:]), 1), (x,), dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(17, 5, 32), (301, 8, 24)])
def test_norm_rotate(device, shape, dtype):
    kv_heads = 1 if shape[1] == 5 else 2
    qkv, q_weight, k_weight = tensors(shape, shape[2:], shape[2:], dtype=dtype, device=device)
    cos, sin = rope_table(shape[0], shape[2], dtype, device)
    q, k, v = qkv.split((shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
    rotated = half_split_rotation(
        torch.cat((norm(q, q_weight, 0.0), norm(k, k_weight, 0.0)), 1), cos.repeat(1, 1, 2), sin.repeat(1, 1, 2)
    )
    got = kernels.norm_rotate(qkv, kv_heads, q_weight, k_weight, 1e-6, cos, sin)
    assert_same(got, torch.cat((rotated, v), 1), (qkv, q_weight, k_weight), dtype)
