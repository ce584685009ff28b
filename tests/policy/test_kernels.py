import pytest
import torch
import torch.nn.functional as F

from equipoise.policy import kernels


def half_split_rotation(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def tensors(*shapes, dtype):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def assert_same(got, wanted, inputs, dtype):
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)
    d = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    for a, b in zip(torch.autograd.grad(got, inputs, d), torch.autograd.grad(wanted, inputs, d), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=tolerance * 4, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 8), (33, 64), (5, 3, 32)])
def test_rms_norm(shape, dtype):
    x, weight = tensors(shape, shape[-1:], dtype=dtype)
    with torch.no_grad():
        x[0] *= 1e-4  # where eps matters
    wanted = F.rms_norm(x.double(), shape[-1:], weight.double(), 1e-6).to(dtype)
    assert_same(kernels.rms_norm(x, weight, 1e-6), wanted, (x, weight), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_swiglu(dtype):
    (gate_up,) = tensors((33, 96), dtype=dtype)
    with torch.no_grad():
        gate_up[0] *= 50  # both ends of the sigmoid
    gate, up = gate_up.chunk(2, -1)
    assert_same(kernels.swiglu(gate_up), F.silu(gate) * up, (gate_up,), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rotate(dtype):
    (x,) = tensors((17, 5, 32), dtype=dtype)
    angle = torch.arange(17)[:, None, None] * torch.linspace(0.1, 1, 16)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    turned = half_split_rotation(x[:, :3], cos.repeat(1, 1, 2), sin.repeat(1, 1, 2))
    assert_same(kernels.rotate(x, 3, cos, sin), torch.cat((turned, x[:, 3:]), 1), (x,), dtype)
