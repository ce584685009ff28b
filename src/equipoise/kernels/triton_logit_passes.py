"""What is done to a chunk of logits, in Triton: `passes`, the same functions.

On a Hopper, in bfloat16, it is done at the end of the product that makes the logits: a program has
a tile of tokens and columns at a time, whose logits leave the registers only as what is asked for.
Elsewhere torch makes the product, and the same kernel reads it. The loss pass stores E = 2^kz and
sums as it goes. What is missing then, 1/ΣE and the slope, is one factor per token, which the caller
applies to the matrix products' small sides. The target's place takes E − ΣE. An entropy bonus has
no such form: its gradient takes a second reading.
Sums meet per tile, and then in a second small kernel. Exponents are in base 2: k =
log₂e/temperature. No atomics: the same numbers give the same bits. Chunks are multiples of 128
tokens, rows multiples of 16 bytes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from equipoise.kernels import logit_passes
from equipoise.kernels.logit_passes import ALIGNED, Chunk
from equipoise.kernels.token_terms import SLOPES, Pull
from equipoise.kernels.triton_slopes import loss_slope
from equipoise.kernels.triton_softcap import cap_slope, capped

FLOOR = tl.constexpr(-1e5)  # stands for −∞, whose differences and products with 0 are not numbers
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))
CEILING = tl.constexpr(100.0)  # of the exponents of E: their sum stays finite


class LogitTile(NamedTuple):
    tokens: int
    columns: int
    depth: int  # of the hidden states, in one step
    warps: int
    stages: int


PRODUCT = LogitTile(128, 256, 64, warps=8, stages=3)  # the fastest of those tried on an H200
READING = LogitTile(128, 64, 16, warps=4, stages=1)
ONE_TILE = 1 << 30  # a step beyond all tiles
SMALL, MET = 16, 256  # tokens of a program that sees only sums, and so many of these at a time


def room(buffer: Tensor, n: int, V: int) -> Tensor:
    """See `passes`; tokens lie in rows where the product is made here,
    which has no roundings before its end.
    """
    if not multiplies(buffer):
        return logit_passes.room(buffer, n, V)
    width = -(-V // ALIGNED) * ALIGNED
    return buffer[: n * width].view(n, width)[:, :V]


def target_logits(chunk: Chunk, guess: Tensor | None) -> None:
    """See `passes`; NaN for a target that is no row of the weight."""
    x, w = chunk.hidden, chunk.weight
    _target_logits[(len(x),)](
        x,
        w,
        chunk.bias,
        chunk.targets,
        guess,
        chunk.own,
        chunk.shift,
        x.shape[1],
        len(w),
        x.stride(0),
        w.stride(0),
        BLOCK=1024,
    )


def statistics(
    chunk: Chunk, logprobs: Tensor, entropy: Tensor, lse: Tensor, *, keep: bool = False
) -> None:
    """See `passes`; with `keep`, z has the logits then."""
    sums = _pass(chunk, "sums", keep=keep)
    _, columns, n = sums.shape
    _statistics[(n // SMALL,)](
        sums,
        columns,
        chunk.own,
        chunk.shift,
        logprobs,
        entropy,
        lse,
        n,
        *_numbers(chunk),
        SOFTCAP=_has_cap(chunk),
        ROWS=MET,
        TOKENS=SMALL,
        num_warps=8,
    )


def gradient_(
    chunk: Chunk, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None
) -> None:
    """See `passes`."""
    _pass(chunk, "gradient", lse, entropy, g, h)


def loss_gradient_(chunk: Chunk, pull: Pull, logprobs: Tensor, entropy: Tensor) -> Tensor | None:
    """See `passes`."""
    n, V = chunk.z.shape
    if pull.entropy_weight is not None:
        lse = torch.empty_like(logprobs)
        g = torch.empty_like(logprobs)
        h = torch.empty_like(logprobs)
        statistics(chunk, logprobs, entropy, lse, keep=True)
        _slopes[(n // SMALL,)](
            logprobs,
            entropy,
            pull.old,
            pull.c,
            pull.ref,
            pull.kl_weight,
            pull.entropy_weight,
            g,
            h,
            *_options(pull),
            KL=pull.kl_estimator,
            TOKENS=SMALL,
        )
        _pass(chunk, "gradient", lse, entropy, g, h, made=True)
        return None
    sums = _pass(chunk, "exponentials")
    columns, factor = sums.shape[1], torch.empty_like(logprobs)
    _factors[(n // SMALL,)](
        chunk.z,
        *chunk.z.stride(),
        sums,
        columns,
        chunk.own,
        chunk.shift,
        chunk.targets,
        logprobs,
        entropy,
        factor,
        pull.old,
        pull.c,
        pull.ref,
        pull.kl_weight,
        V,
        n,
        *_numbers(chunk),
        *_options(pull),
        KL=pull.kl_estimator,
        SOFTCAP=_has_cap(chunk),
        ROWS=MET,
        TOKENS=SMALL,
        num_warps=8,
    )
    return factor


def scale_rows(x: Tensor, factor: Tensor, out: Tensor) -> None:
    """See `passes`."""
    d = x.shape[1]
    _scale_rows[(len(x), triton.cdiv(d, 1024))](
        x, factor, out, d, x.stride(0), out.stride(0), BLOCK=1024
    )


def _pass(
    chunk: Chunk, what: str, *of_tokens: Tensor | None, made: bool = False, keep: bool = False
) -> Tensor:
    """Do `what` to the logits, `made` and in z or made now;
    the tiles' sums, if any [3 or 2, tiles in a row, n].
    """
    (n, d), V = chunk.hidden.shape, len(chunk.weight)
    if not made and not multiplies(chunk.hidden):
        logit_passes.make_logits(chunk)
        made = True
    tile = READING if made else PRODUCT
    columns = triton.cdiv(V, tile.columns)
    sums = chunk.shift.new_empty({"sums": 3, "exponentials": 2, "gradient": 0}[what], columns, n)
    tiles = n // tile.tokens * columns
    programs = tiles if made else min(_processors(chunk.hidden.device), tiles)
    turned = chunk.z.stride(1) != 1
    _logits[(programs,)](
        TensorDescriptor.from_tensor(chunk.hidden, [tile.tokens, tile.depth]),
        TensorDescriptor.from_tensor(chunk.weight, [tile.columns, tile.depth]),
        TensorDescriptor.from_tensor(chunk.z.t(), [tile.columns, tile.tokens])
        if turned
        else TensorDescriptor.from_tensor(chunk.z, [tile.tokens, tile.columns]),
        chunk.bias,
        chunk.shift,
        chunk.targets,
        sums,
        *(of_tokens or [None] * 4),
        n,
        V,
        d,
        *_numbers(chunk),
        WHAT=what,
        MADE=made,
        KEEP=keep,
        TURNED=turned,
        SOFTCAP=_has_cap(chunk),
        TOKENS=tile.tokens,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        PROGRAMS=ONE_TILE if made else programs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return sums


def multiplies(x: Tensor) -> bool:
    """Whether the product of such hidden states is made here:
    its tiles are cut for a Hopper's shared memory.
    """
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(x.device)[0] == 9
    )


def _processors(device: torch.device) -> int:
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )


def _numbers(chunk: Chunk) -> tuple[float, float]:
    return 1 / chunk.softmax.temperature, chunk.softmax.softcap or 0.0


def _has_cap(chunk: Chunk) -> bool:
    return chunk.softmax.softcap is not None


def _options(pull: Pull) -> tuple[Any, ...]:
    """The surrogate's numbers, and its name: a, b, cap, SURROGATE."""
    name, options = pull.surrogate.name, pull.surrogate.options
    numbers = [float(options[key]) for key in SLOPES[name]]
    return (
        *numbers,
        *[0.0] * (3 - len(numbers)),
        f"{name}_{options['divergence']}" if name == "dppo" else name,
    )


@triton.jit
def _target_logits(
    hidden: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    targets: tl.tensor,
    guess: tl.tensor,
    own: tl.tensor,
    shift: tl.tensor,
    d: tl.tensor,
    V: tl.tensor,
    hidden_stride: tl.tensor,
    weight_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    y = tl.load(targets + token)
    known = (y >= 0) & (y < V)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, d, BLOCK):
        o = start + tl.arange(0, BLOCK)
        x = tl.load(hidden + token * hidden_stride + o, mask=o < d, other=0.0).to(tl.float32)
        w = tl.load(weight + y * weight_stride + o, mask=known & (o < d), other=0.0).to(tl.float32)
        total += x * w
    logit = tl.sum(total, 0)
    if bias is not None:
        logit += tl.load(bias + y, mask=known, other=0.0).to(tl.float32)
    logit = tl.where(known, logit, float("nan"))
    tl.store(own + token, logit)
    if guess is not None:
        logit -= tl.load(guess + token)
    tl.store(shift + token, logit.to(hidden.dtype.element_ty).to(tl.float32))


@triton.jit
def _scale_rows(
    x: tl.tensor,
    factor: tl.tensor,
    out: tl.tensor,
    d: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    f = tl.load(factor + row)
    scaled = tl.load(x + row * x_stride + o, mask=o < d, other=0.0).to(tl.float32) * f
    tl.store(
        out + row * out_stride + o,
        tl.where(f == 0, 0.0, scaled).to(out.dtype.element_ty),
        mask=o < d,
    )


@triton.jit
def _logits(
    hidden: tl.tensor,
    weight: tl.tensor,
    z: tl.tensor,
    bias: tl.tensor,
    shift: tl.tensor,
    targets: tl.tensor,
    sums: tl.tensor,
    lse: tl.tensor,
    entropy: tl.tensor,
    g: tl.tensor,
    h: tl.tensor,
    n: tl.tensor,
    V: tl.tensor,
    d: tl.tensor,
    inverse_temperature: tl.tensor,
    softcap: tl.tensor,
    WHAT: tl.constexpr,
    MADE: tl.constexpr,
    KEEP: tl.constexpr,
    TURNED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
) -> None:
    """v = cap(raw) − cap(shift), so that k·v is the exponent; of them, tile by tile:

    sums: max v, Σ 2^k(v−max) and Σ 2^k(v−max)·k(v−max) of each token over the tile's columns;
    exponentials: ΣE and ΣE·y, E = 2^y, y = kv, and E·cap′ for z;
    gradient: (g(1_y − p) − h·p(log p + H))/temperature·cap′ for z.
    """
    blocks, columns = n // TOKENS, tl.cdiv(V, COLUMNS)
    k = inverse_temperature * LOG2E
    for tile in tl.range(tl.program_id(0), blocks * columns, PROGRAMS, flatten=True):
        first, block = tile % blocks * TOKENS, tile // blocks
        if MADE and TURNED:
            raw = z.load([block * COLUMNS, first]).T.to(tl.float32)
        elif MADE:
            raw = z.load([first, block * COLUMNS]).to(tl.float32)
        else:
            raw = tl.zeros((TOKENS, COLUMNS), tl.float32)
            for i in range(0, d, DEPTH):
                raw = tl.dot(
                    hidden.load([first, i]),
                    weight.load([block * COLUMNS, i]).T,
                    raw,
                    input_precision="ieee",
                )
        token, column = first + tl.arange(0, TOKENS), block * COLUMNS + tl.arange(0, COLUMNS)
        shifts = tl.load(shift + token)
        if MADE:
            raw += shifts[:, None]
        elif KEEP:
            _store(z, first, block * COLUMNS, raw - shifts[:, None], TURNED)
        base = capped(shifts, softcap, SOFTCAP)
        if bias is not None:
            raw += tl.load(bias + column, mask=column < V, other=0.0).to(tl.float32)[None, :]
        v = capped(raw, softcap, SOFTCAP) - base[:, None]
        if bias is not None:
            v = tl.where(v < FLOOR, FLOOR, v)  # not tl.maximum, which would hide a NaN
        v = tl.where((column < V)[None, :], v, FLOOR)

        if WHAT == "gradient":
            log2_p = v * k - ((tl.load(lse + token) - base * inverse_temperature) * LOG2E)[:, None]
            p = tl.exp2(log2_p)
            gs = tl.zeros((TOKENS,), tl.float32)
            if g is not None:
                gs = tl.load(g + token) * inverse_temperature
            alive = gs != 0
            if h is None:
                out = p * (-gs)[:, None]
            else:
                hs = tl.load(h + token) * inverse_temperature
                alive = alive | (hs != 0)
                out = p * (
                    (-gs - hs * tl.load(entropy + token))[:, None] - (hs * LN2)[:, None] * log2_p
                )
            target = tl.load(targets + token).to(tl.int32)
            out = tl.where(column[None, :] == target[:, None], out + gs[:, None], out)
            out = tl.where(
                alive[:, None], out * cap_slope(v + base[:, None], softcap, SOFTCAP), 0.0
            )
            _store(z, first, block * COLUMNS, out, TURNED)
        elif WHAT == "exponentials":
            y = tl.minimum(v * k, CEILING, propagate_nan=tl.PropagateNan.ALL)
            e = tl.exp2(y)
            place = sums + block * n + token
            tl.store(place, tl.sum(e, 1))
            tl.store(place + columns * n, tl.sum(e * y, 1))
            _store(
                z,
                first,
                block * COLUMNS,
                e * cap_slope(v + base[:, None], softcap, SOFTCAP),
                TURNED,
            )
        else:
            tl.static_assert(WHAT == "sums")
            top = tl.max(v, 1)
            y = v * k - (top * k)[:, None]
            e = tl.exp2(y)
            place = sums + block * n + token
            tl.store(place, top)
            tl.store(place + columns * n, tl.sum(e, 1))
            tl.store(place + 2 * columns * n, tl.sum(e * y, 1))


@triton.jit
def _store(
    z: tl.tensor,
    token: tl.tensor,
    column: tl.tensor,
    x: tl.tensor,
    TURNED: tl.constexpr,
) -> None:
    if TURNED:
        z.store([column, token], x.to(z.dtype).T)
    else:
        z.store([token, column], x.to(z.dtype))


@triton.jit
def _statistics(
    sums: tl.tensor,
    columns: tl.tensor,
    own: tl.tensor,
    shift: tl.tensor,
    logprobs: tl.tensor,
    entropy: tl.tensor,
    lse: tl.tensor,
    n: tl.tensor,
    inverse_temperature: tl.tensor,
    softcap: tl.tensor,
    SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    k = inverse_temperature * LOG2E
    top = tl.full((ROWS, TOKENS), FLOOR, tl.float32)
    for start in range(0, columns, ROWS):
        top = tl.maximum(top, _met(sums, 0, start, columns, n, token, FLOOR, ROWS))
    top = tl.max(top, 0)
    total, weighted = tl.zeros((ROWS, TOKENS), tl.float32), tl.zeros((ROWS, TOKENS), tl.float32)
    for start in range(0, columns, ROWS):
        change = (_met(sums, 0, start, columns, n, token, FLOOR, ROWS) - top[None, :]) * k
        s = tl.exp2(change) * _met(sums, 1, start, columns, n, token, 0.0, ROWS)
        total += s
        weighted += (
            tl.exp2(change) * _met(sums, 2, start, columns, n, token, 0.0, ROWS) + s * change
        )
    total, weighted = tl.sum(total, 0), tl.sum(weighted, 0)
    log_total = tl.log(total)
    base = capped(tl.load(shift + token), softcap, SOFTCAP)
    over = capped(tl.load(own + token), softcap, SOFTCAP) - base - top
    tl.store(logprobs + token, over * inverse_temperature - log_total)
    # H = log Σe^x − Σpx, with x counted from the maximum:
    # near-certain tokens would otherwise lose all their digits
    tl.store(entropy + token, log_total - LN2 * (weighted / total))
    tl.store(lse + token, (base + top) * inverse_temperature + log_total)


@triton.jit
def _factors(
    z: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    sums: tl.tensor,
    columns: tl.tensor,
    own: tl.tensor,
    shift: tl.tensor,
    targets: tl.tensor,
    logprobs: tl.tensor,
    entropy: tl.tensor,
    factor: tl.tensor,
    old: tl.tensor,
    c: tl.tensor,
    ref: tl.tensor,
    kl_weight: tl.tensor,
    V: tl.tensor,
    n: tl.tensor,
    inverse_temperature: tl.tensor,
    softcap: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    cap: tl.tensor,
    SURROGATE: tl.constexpr,
    KL: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """Log-probabilities, entropies and factors from the sums;
    the target's place in z takes (E − ΣE)·cap′.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    total, weighted = tl.zeros((ROWS, TOKENS), tl.float32), tl.zeros((ROWS, TOKENS), tl.float32)
    for start in range(0, columns, ROWS):
        total += _met(sums, 0, start, columns, n, token, 0.0, ROWS)
        weighted += _met(sums, 1, start, columns, n, token, 0.0, ROWS)
    total, weighted = tl.sum(total, 0), tl.sum(weighted, 0)
    base = capped(tl.load(shift + token), softcap, SOFTCAP)
    v = capped(tl.load(own + token), softcap, SOFTCAP) - base
    y = tl.minimum(v * (inverse_temperature * LOG2E), CEILING, propagate_nan=tl.PropagateNan.ALL)
    log2_total = tl.log2(total)
    logp = LN2 * (y - log2_total)
    tl.store(logprobs + token, logp)
    tl.store(entropy + token, LN2 * (log2_total - weighted / total))
    slope = loss_slope(token, logp, old, c, ref, kl_weight, a, b, cap, SURROGATE, KL)
    finite = tl.abs(logp - tl.load(old + token)) < float("inf")
    tl.store(factor + token, tl.where(finite, -slope / total * inverse_temperature, 0.0))

    known = tl.abs(logp) < float("inf")
    row = z + token.to(tl.int64) * row_stride
    at_target = (tl.exp2(y) - total) * cap_slope(v + base, softcap, SOFTCAP)
    tl.store(
        row + tl.load(targets + token) * column_stride, at_target.to(z.dtype.element_ty), mask=known
    )
    unknown = 1 - known.to(tl.int32)
    if tl.max(unknown, 0) == 1:  # a factor of 0 does not make a NaN 0
        for start in range(0, V, 1024):
            column = start + tl.arange(0, 1024).to(tl.int64)[None, :]
            zeros = tl.zeros((TOKENS, 1024), z.dtype.element_ty)
            tl.store(
                row[:, None] + column * column_stride,
                zeros,
                mask=(unknown[:, None] == 1) & (column < V),
            )


@triton.jit
def _met(
    sums: tl.tensor,
    which: tl.tensor,
    start: tl.tensor,
    columns: tl.tensor,
    n: tl.tensor,
    token: tl.tensor,
    other: tl.tensor,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """That sum of these tokens [ROWS, tokens], of the tiles in the columns from `start` on."""
    column = start + tl.arange(0, ROWS)[:, None]
    return tl.load(
        sums + (which * columns + column) * n + token[None, :], mask=column < columns, other=other
    )


@triton.jit
def _slopes(
    logprobs: tl.tensor,
    entropy: tl.tensor,
    old: tl.tensor,
    c: tl.tensor,
    ref: tl.tensor,
    kl_weight: tl.tensor,
    entropy_weight: tl.tensor,
    g: tl.tensor,
    h: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    cap: tl.tensor,
    SURROGATE: tl.constexpr,
    KL: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """∂loss/∂log π and ∂loss/∂entropy; 0 for tokens whose numbers are not finite."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    logp = tl.load(logprobs + token)
    slope = loss_slope(token, logp, old, c, ref, kl_weight, a, b, cap, SURROGATE, KL)
    finite = tl.abs(logp - tl.load(old + token)) + tl.abs(tl.load(entropy + token)) < float("inf")
    tl.store(g + token, tl.where(finite, slope, 0.0))
    tl.store(h + token, tl.where(finite, -tl.load(entropy_weight), 0.0))
