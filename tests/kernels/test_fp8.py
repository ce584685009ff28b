"""Rows in 8 bits: the reference against what the format promises, Triton against the reference.

On a machine without CUDA the Triton kernels run in Triton's interpreter: install triton and set TRITON_INTERPRET=1.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from equipoise.kernels import decode, fp8, plain_decode
from equipoise.kernels.decode import Norm
from equipoise.kernels.plain_fp8 import FLOOR, FP8, LARGEST, Fp8Rows
from tests.kernels.test_decode import (
    CUDA,
    DEVICE,
    DTYPES,
    NAN,
    Case,
    assert_near,
    case,
    needs_cuda,
    needs_triton,
    randn,
)
from tests.kernels.test_decode import kernel as kernel

BITS = torch.uint8  # 8-bit numbers are compared by their bits


@pytest.fixture(autouse=True)
def interpreter_that_rounds(monkeypatch):
    """Triton 3.6's interpreter loses the carry where rounding to 8 bits reaches the next power of two."""
    if CUDA or not needs_triton_is_met():
        return
    from triton.runtime import interpreter

    convert, tl = interpreter._convert_float, interpreter.tl
    dtypes = {tl.float32: torch.float32, tl.bfloat16: torch.bfloat16, tl.float16: torch.float16, tl.float8e4nv: FP8}

    def rounded(x, source, target, mode):
        if tl.float8e4nv not in (source, target):
            return convert(x, source, target, mode)
        bits = torch.from_numpy(x.copy().view("uint8"))
        out = bits.view(dtypes[source]).float().to(dtypes[target])
        return out.view(BITS).numpy().view(f"uint{target.primitive_bitwidth}")

    monkeypatch.setattr(interpreter, "_convert_float", rounded)


def needs_triton_is_met():
    return not needs_triton.args[0]


def quantizers():
    yield "reference", fp8.plain_quantize
    if needs_triton_is_met():
        from equipoise.kernels import triton_fp8

        yield "triton", triton_fp8.quantize


QUANTIZERS = pytest.mark.parametrize("quantize", [pytest.param(q, id=name) for name, q in quantizers()])


def extremes(dtype):
    """Rows [7, 96]: nothing, one number, the largest and the smallest there are, an outlier among small ones, noise."""
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    noise = torch.randn(96, generator=torch.Generator().manual_seed(0))
    rows = [
        torch.zeros(96),
        torch.zeros(96),
        largest * noise.clamp(-1, 1),
        smallest * noise,
        noise,
        1e-3 * noise,
        noise,
    ]
    rows[1][17] = -3.0
    rows[4] = rows[4].clone()
    rows[4][5] = 3e4
    return torch.stack(rows).to(dtype).to(DEVICE)


@QUANTIZERS
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_off_by_a_16th_at_most(quantize, dtype):
    """Of each number; small ones by half of the format's smallest step, in units of their row's scale."""
    x = extremes(dtype)
    rows = quantize(x)
    assert rows.entries.dtype == FP8
    assert rows.entries.float().isfinite().all()
    assert rows.scale.isfinite().all()
    assert (rows.scale > 0).all()
    # float32 rounds the scale, its inverse and their products too
    bound = torch.maximum(x.float().abs() / 16, rows.scale[:, None] * 2**-10) * (1 + 1e-5)
    error = (rows.wide() - x.float()).abs()
    assert (error <= bound + FLOOR).all()
    assert (rows.entries[0].float() == 0).all()
    assert rows.entries[1, 17].float() == -LARGEST
    assert (rows.entries.float().abs().amax(1)[[2, 4, 5, 6]] == LARGEST).all()


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [16, 96, 128, 1000, 5120])
def test_triton_gives_the_references_bits(K, dtype):
    from equipoise.kernels import triton_fp8

    x = torch.cat((randn(9, K, dtype=dtype), 1e4 * randn(2, K, dtype=dtype, seed=1)))
    x[3] = 0
    wanted = fp8.plain_quantize(x)
    out = Fp8Rows(torch.full_like(wanted.entries, 1.0), torch.full_like(wanted.scale, NAN))
    for rows in (triton_fp8.quantize(x), triton_fp8.quantize(x, out)):
        assert torch.equal(rows.scale, wanted.scale)
        assert torch.equal(rows.entries.view(BITS), wanted.entries.view(BITS))


@QUANTIZERS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_is_a_product_in_float32_on_every_device(quantize, dtype):
    """torch multiplies by the inverse on CUDA where it divides on the CPU; the two differ in a last bit."""
    x = randn(4000, 16, dtype=dtype)
    largest = x.float().abs().amax(1).cpu()
    wanted = torch.from_numpy(largest.numpy() * np.float32(1 / 448))
    assert torch.equal(quantize(x).scale.cpu(), wanted)
    assert not torch.equal(wanted, largest / LARGEST)


@needs_triton
def test_triton_gives_the_references_bits_of_extremes():
    from equipoise.kernels import triton_fp8

    for dtype in DTYPES:
        got, wanted = triton_fp8.quantize(extremes(dtype)), fp8.plain_quantize(extremes(dtype))
        assert torch.equal(got.scale, wanted.scale)
        assert torch.equal(got.entries.view(BITS), wanted.entries.view(BITS))


# The cache


class Cache(NamedTuple):
    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor

    def wide(self):
        return [Fp8Rows(x, scale).wide() for x, scale in zip(self[:2], self.scales, strict=True)]


def in_eight_bits(c):
    """The case's cache; where nobody may read there is NaN, but for values, which are the largest there."""
    keys, values = fp8.plain_quantize(c.keys), fp8.plain_quantize(c.values)
    numbers = torch.where(values.scale[..., None].isfinite(), values.entries.float(), LARGEST).to(FP8)
    as_it_lies = numbers.transpose(2, 3).contiguous()
    return Cache(keys.entries, as_it_lies.transpose(2, 3), torch.stack((keys.scale, values.scale)))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "D", "offsets", "dtype"),
    [
        (6, 2, 32, (None, None), torch.bfloat16),
        (6, 2, 16, (None, None), torch.float32),
        (9, 3, 64, (None, None), torch.bfloat16),
        (9, 3, 64, (0.0, 1.0), torch.bfloat16),
        (4, 1, 128, (None, None), torch.bfloat16),
        (4, 1, 128, (0.0, 0.0), torch.bfloat16),
        (4, 2, 256, (None, None), torch.bfloat16),
        (14, 2, 256, (None, 0.0), torch.float32),
    ],
)
def test_store(kernel, heads, kv_heads, D, offsets, dtype):
    """What comes to lie in the cache is `fp8.plain_quantize` of what a cache without scales gets."""
    c = case(heads, kv_heads, D, dtype)
    norms = [None if o is None else Norm(randn(D, dtype=dtype, seed=i), 1e-3, o) for i, o in enumerate(offsets)]
    got = in_eight_bits(c)
    q = kernel.store(c.qkv, got.keys, got.values, c.rows, c.rope, *norms, got.scales)
    # Compiled apart, the two may sum a norm in another order, and then round a key otherwise now and then.
    unit = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(q, kernel.store(c.qkv, c.keys, c.values, c.rows, c.rope, *norms), rtol=unit, atol=unit)
    wanted = in_eight_bits(c)  # block 0 is waste
    torch.testing.assert_close(got.scales[:, 1:], wanted.scales[:, 1:], rtol=unit, atol=0, equal_nan=True)
    for x, y, scale in zip(got[:2], wanted[:2], wanted.scales, strict=True):
        read = scale[1:].isfinite()
        torch.testing.assert_close(x.float()[1:][read], y.float()[1:][read], rtol=1 / 8, atol=2**-9)
        assert (x.view(BITS)[1:][read] != y.view(BITS)[1:][read]).float().mean() < 1e-3
    # nothing is done to a value but to round it
    assert torch.equal(got.scales[1, 1:][read], wanted.scales[1, 1:][read])
    assert torch.equal(x.view(BITS)[1:][read], y.view(BITS)[1:][read])
    assert got.values.float().isfinite().all()


@pytest.mark.parametrize("largest", [0.0, 1e-35, 3e38])
def test_keys_and_values_of_any_size_are_stored_as_numbers(kernel, largest):
    c = case(dtype=torch.bfloat16)
    c.qkv.mul_(0.0) if largest == 0 else c.qkv.div_(c.qkv.abs().max()).mul_(largest / 2)
    cache = in_eight_bits(c)
    kernel.store(c.qkv, cache.keys, cache.values, c.rows, c.rope, None, None, cache.scales)
    for r in c.real().nonzero()[:, 0].tolist():
        block, slot = int(c.rows.table[r, c.lengths[r] // c.block]), c.lengths[r] % c.block
        assert cache.keys[block, :, slot].float().isfinite().all()
        assert cache.values[block, :, slot].float().isfinite().all()
        assert cache.scales[:, block, :, slot].isfinite().all()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "D", "softcap", "window", "splits", "dtype"),
    [
        (6, 2, 32, None, None, 1, torch.bfloat16),
        (6, 2, 32, None, None, 3, torch.bfloat16),
        (6, 2, 32, 2.0, 50, 3, torch.bfloat16),
        (9, 3, 64, None, 150, 1, torch.bfloat16),
        (9, 3, 64, 2.0, 50, 3, torch.bfloat16),
        (8, 2, 128, None, None, 1, torch.bfloat16),
        (28, 2, 128, None, None, 3, torch.bfloat16),
        (2, 1, 256, None, None, 1, torch.bfloat16),
        (6, 2, 32, None, None, 1, torch.float32),
    ],
)
def test_attend(kernel, heads, kv_heads, D, softcap, window, splits, dtype):
    """Against a loop over keys, each of which is entries times scale. Scales of values differ by 1e4."""
    c = case(heads, kv_heads, D, dtype)
    c.values *= (10 ** randn(*c.values.shape[:3], 1, seed=3)).to(dtype)
    cache = in_eight_bits(c)
    q = plain_decode.store(c.qkv, cache.keys, cache.values, c.rows, c.rope, None, None, cache.scales)
    got = kernel.attend(q, cache.keys, cache.values, c.rows, 0.3, softcap, window, splits, cache.scales, splits)
    c.keys, c.values = cache.wide()
    assert_near(got, c.attended_by_hand(q, 0.3, softcap, window), dtype)


@pytest.mark.parametrize("D", [32, 64])
def test_values_of_no_size_take_their_share_of_the_weights(kernel, D):
    """Every other value is 0, whose scale is 1e-33, and its key is the largest."""
    c = case(6, 2, D, torch.bfloat16)
    c.values[:, :, ::2] *= 0.0
    c.keys[:, :, ::2] *= 4.0
    cache = in_eight_bits(c)
    q = plain_decode.store(c.qkv, cache.keys, cache.values, c.rows, c.rope, None, None, cache.scales)
    got = kernel.attend(q, cache.keys, cache.values, c.rows, 0.3, None, None, 1, cache.scales)
    c.keys, c.values = cache.wide()
    assert_near(got, c.attended_by_hand(q, 0.3, None, None), torch.bfloat16, 2.0)


@pytest.mark.parametrize("D", [32, 64])
def test_an_outlier_costs_no_other_token_its_digits(kernel, D):
    """One key and one value of 1e4: rows that cannot see them attend as if they were not there."""
    c = case(6, 2, D, torch.bfloat16)
    q = c.stored()
    before = in_eight_bits(c)
    block = int(c.rows.table[4, 1])  # row 4's, of nobody else
    c.keys[block, :, 3], c.values[block, :, 3] = 1e4, -1e4
    after = in_eight_bits(c)
    attended = [kernel.attend(q, x.keys, x.values, c.rows, 0.3, None, None, 1, x.scales) for x in (before, after)]
    others = c.real()
    others[4] = False
    assert torch.equal(attended[0][others], attended[1][others])
    assert attended[1][c.real()].isfinite().all()


# Several queries of a row


BASE, PROMPT = [0, 62, 63, 64, 130, 1, 0, 59], [0, 1, 0, 1, 2, 1, -1, 0]  # ends of blocks and before; one row pads


def drafting(width, heads=6, kv_heads=2, D=32, dtype=torch.bfloat16):
    """A case in which every row is about to store `width` tokens, its rows, and their queries, keys and values."""
    lengths = [b + width - 1 for b in BASE]
    c = Case(lengths, PROMPT, [5, 64, 130], heads=heads, kv_heads=kv_heads, D=D, dtype=dtype)
    rows = c.rows._replace(length=torch.tensor(BASE, dtype=torch.int32, device=DEVICE))
    return c, rows, randn(len(BASE), width, heads + 2 * kv_heads, D, dtype=dtype, seed=1)


@pytest.mark.parametrize(
    ("width", "heads", "kv_heads", "D", "window", "splits", "dtype"),
    [
        (2, 6, 2, 32, None, 1, torch.bfloat16),
        (3, 6, 2, 32, None, 3, torch.bfloat16),
        (3, 6, 2, 64, None, 1, torch.bfloat16),
        (5, 9, 3, 64, 70, 3, torch.bfloat16),
        (3, 6, 2, 32, 2, 4, torch.float32),
        pytest.param(9, 6, 1, 32, 5, 1, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_several_queries_of_a_row_are_those_of_one_at_a_time(kernel, width, heads, kv_heads, D, window, splits, dtype):
    """What is stored against storing it token by token, what is attended to against a loop over its keys."""
    c, rows, qkv = drafting(width, heads, kv_heads, D, dtype)
    cache, single = in_eight_bits(c), in_eight_bits(c)
    q = kernel.store(qkv.flatten(0, 1), cache.keys, cache.values, rows, c.rope, None, None, cache.scales)
    got = kernel.attend(q, cache.keys, cache.values, rows, 0.3, None, window, splits, cache.scales)
    got, q, real = got.unflatten(0, (-1, width)), q.unflatten(0, (-1, width)), c.real()
    c.keys, c.values = cache.wide()
    for j in range(width):
        step = rows._replace(length=rows.length + j)
        one = plain_decode.store(
            qkv[:, j].contiguous(), single.keys, single.values, step, c.rope, None, None, single.scales
        )
        torch.testing.assert_close(q[:, j], one, rtol=2**-7, atol=2**-7)
        c.lengths = [b + j for b in BASE]
        assert_near(got[real, j], c.attended_by_hand(q[:, j], 0.3, None, window)[real], dtype)
    for ours, theirs in zip(cache.wide(), single.wide(), strict=True):
        torch.testing.assert_close(ours[1:], theirs[1:], rtol=1 / 8, atol=2**-6, equal_nan=True)


@pytest.mark.parametrize("eight_bits", [False, True])
def test_drafts_behind_a_limit_change_nothing_before_it(kernel, eight_bits):
    """A row without a next block writes what comes behind its last one to block 0, whatever lies there."""
    width, attended = 5, []
    for limited in (False, True):
        c, rows, qkv = drafting(width)
        cache = in_eight_bits(c) if eight_bits else (c.keys, c.values, None)
        if limited:
            blocks = torch.arange(rows.table.shape[1], device=DEVICE)
            last = rows.length[:, None] // c.block
            rows = rows._replace(table=torch.where(blocks <= last, rows.table, 0))
        q = kernel.store(qkv.flatten(0, 1), *cache[:2], rows, c.rope, None, None, cache[2])
        attended.append(kernel.attend(q, *cache[:2], rows, 0.3, None, None, 1, cache[2]).unflatten(0, (-1, width)))
    position = rows.length[:, None] + torch.arange(width, device=DEVICE)
    before = c.real()[:, None] & (position // c.block == last)
    assert not before[c.real()].all()
    assert torch.equal(attended[0][before], attended[1][before])
    assert attended[1].isfinite().all()


# The product, and what it reads


def assert_rows_of(rows, x, dtype):
    """`rows` are x's, but for a sum in another order that rounds one of them otherwise now and then."""
    wanted = fp8.plain_quantize(x)
    unit = {torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(rows.scale, wanted.scale, rtol=unit, atol=0)
    assert (rows.entries.view(BITS) != wanted.entries.view(BITS)).float().mean() < 0.05
    torch.testing.assert_close(rows.entries.float(), wanted.entries.float(), rtol=1 / 8, atol=2**-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [24, 576, 4100])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("alone", [False, True])
def test_add_norm(kernel, d, dtype, offset, alone):
    x, residual = 3 * randn(5, d, dtype=dtype, seed=1), randn(5, d, dtype=dtype, seed=2)
    residual[1], x[1] = 0, 0
    norm, before = Norm(randn(d, dtype=dtype), 1e-5, offset), residual.clone()
    rows = kernel.add_norm_fp8(None if alone else x, residual, norm)
    assert torch.equal(residual, before if alone else before + x)
    assert_rows_of(rows, plain_decode.add_norm(None, residual, norm), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [24, 1024, 3000])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(kernel, f, dtype, activation):
    gate_up = 3 * randn(5, 2 * f, dtype=dtype)
    gate_up[1], gate_up[2, 7] = 0, 1e4
    assert_rows_of(kernel.gated_fp8(gate_up, activation), plain_decode.gated(gate_up, activation), dtype)


@pytest.mark.parametrize("R", [1, 16, 200])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_the_product_of_what_the_rows_stand_for(R, biased):
    """On CUDA by torch._scaled_mm, which adds up in another order and not in all of float32's digits."""
    dtype = torch.bfloat16
    x, weight = randn(R, 256, dtype=dtype), randn(96, 256, dtype=dtype, seed=1)
    x[0], weight[3] = 0, 0
    weight[5, 7] = 300.0
    bias = randn(96, dtype=dtype, seed=2) if biased else None
    got = fp8.linear(fp8.quantize(x), fp8.quantize(weight), bias, dtype)
    wanted = fp8.plain_quantize(x).wide().double() @ fp8.plain_quantize(weight).wide().double().t()
    wanted = wanted if bias is None else wanted + bias.double()
    assert got.shape == (R, 96)
    assert_near(got, wanted, dtype, scale=2)
    whole = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    if R > 1:
        assert float((got.double() - whole).norm() / whole.norm()) < 0.05


@pytest.mark.skipif(CUDA, reason="about a machine without CUDA")
def test_the_cpu_has_a_problem():
    assert fp8.problem(torch.device("cpu")) == "this is cpu"


@needs_cuda
def test_nothing_waits_for_the_device():
    """A step over a cache in 8 bits and a product can be captured in a graph, and give the same bits twice."""
    c, weight = case(dtype=torch.bfloat16), randn(64, 6 * 32, dtype=torch.bfloat16)
    cache, kept = in_eight_bits(c), fp8.quantize(weight)

    def step():
        q = decode.store(c.qkv, cache.keys, cache.values, c.rows, c.rope, None, None, cache.scales)
        o = decode.attend(q, cache.keys, cache.values, c.rows, 0.3, None, None, 2, cache.scales)
        return o, fp8.linear(fp8.quantize(o.flatten(1)), kept, None, o.dtype)

    wanted = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    graph.replay()
    assert all(torch.equal(x[c.real()], y[c.real()]) for x, y in zip(got, wanted, strict=True))
