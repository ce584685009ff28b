"""What every layer of the decoder does besides its matrix products, in Triton:
each function one pass over memory.

Arithmetic is float32, rounded once where it is written (a norm rounds twice where transformers'
does: x̂ first, then its product with the weight). Backward passes make again what is cheap to make.
Gradients of weights are sums of a fixed number of partial sums, without atomics: the same numbers
give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.kernels.triton_fp8 import in_scale, scale_of

# at most, where each keeps a partial sum of a weight's gradient: four for each processor of an H200
PROGRAMS = 528
COLUMNS = 16  # of these partial sums that one program adds up
# numbers a program holds of each operand; fewer where it keeps four sums besides
TILE, SMALL_TILE = 4096, 1024


def add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta (x itself without one), its norm times (offset + weight), and 1/√(mean x² + ε) [U];
    x [U, d].
    """
    U, d = x.shape
    total = x if delta is None else torch.empty_like(x)
    y, scale = torch.empty_like(x), x.new_empty(U, dtype=torch.float32)
    tokens, block = _tile(d)
    add_norm_kernel[(triton.cdiv(U, tokens),)](
        x,
        delta,
        weight,
        total,
        y,
        scale,
        U,
        d,
        eps,
        offset,
        GEMMA=offset != 0,
        TOKENS=tokens,
        BLOCK=block,
    )
    return total, y, scale


def add_norm_gradient(
    d_y: Tensor, d_total: Tensor | None, total: Tensor, scale: Tensor, weight: Tensor, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (and as well of delta) and of the weight, from those of what `add_norm` gave;
    and once more y.
    """
    U, d = total.shape
    tokens, block = _tile(d)
    share = triton.cdiv(triton.cdiv(U, tokens), PROGRAMS) * tokens
    programs = triton.cdiv(U, share)
    d_x = torch.empty_like(total)
    y = torch.empty_like(total)
    sums = total.new_empty(programs, d, dtype=torch.float32)
    _add_norm_gradient[(programs,)](
        d_y,
        d_total,
        total,
        scale,
        weight,
        d_x,
        y,
        sums,
        U,
        d,
        share,
        offset,
        GEMMA=offset != 0,
        TOKENS=tokens,
        BLOCK=block,
        num_warps=4 if block <= 1024 else 8,
    )
    return d_x, _total(sums, weight.dtype), y


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """activation(gate)·up [U, f] for the halves of gate_up [U, 2 f]."""
    U, f = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(U, f)
    gated_kernel[(U, triton.cdiv(f, 512))](
        gate_up, out, f, GELU=activation == "gelu_tanh", ROUNDS=False, BLOCK=512, num_warps=2
    )
    return out


def gated_gradient(d: Tensor, gate_up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradient of gate_up; and once more what `gated` gave."""
    U, f = d.shape
    d_gate_up, out = torch.empty_like(gate_up), torch.empty_like(d)
    _gated_gradient[(U, triton.cdiv(f, 512))](
        d, gate_up, d_gate_up, out, f, GELU=activation == "gelu_tanh", BLOCK=512, num_warps=2
    )
    return d_gate_up, out


def rotate(
    x: Tensor,
    heads: int,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    queries: int,
    eps: float,
) -> Tensor:
    """x [U, H, D] with its first `heads` heads rotated by cos, sin [U, D/2]; where weights [D] are
    given they are normed before: the first `queries` heads by one, the rest of the rotated ones by
    the other.
    """
    U, H, D = x.shape
    out = torch.empty_like(x)
    tokens, block = _tile(D // 2)
    _rotate[(triton.cdiv(U * H, tokens),)](
        x,
        cos,
        sin,
        q_weight,
        k_weight,
        out,
        U * H,
        eps,
        1.0,
        H=H,
        HEADS=heads,
        QUERIES=queries,
        HALF=D // 2,
        NORM=q_weight is not None,
        TOKENS=tokens,
        BLOCK=block,
    )
    return out


def rotate_gradient(
    d: Tensor,
    x: Tensor | None,
    heads: int,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    queries: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x and of the two weights; x is needed where there are weights."""
    U, H, D = d.shape
    half = D // 2
    out = torch.empty_like(d)
    tokens, block = _tile(half)
    if q_weight is None or k_weight is None:
        _rotate[(triton.cdiv(U * H, tokens),)](
            d,
            cos,
            sin,
            None,
            None,
            out,
            U * H,
            eps,
            -1.0,
            H=H,
            HEADS=heads,
            QUERIES=queries,
            HALF=half,
            NORM=False,
            TOKENS=tokens,
            BLOCK=block,
        )
        return out, None, None
    tokens, block = _tile(half, SMALL_TILE)
    share = triton.cdiv(triton.cdiv(U * H, tokens), PROGRAMS) * tokens
    programs = triton.cdiv(U * H, share)
    sums = d.new_empty(programs, 2, 2, half, dtype=torch.float32)
    _norm_rotate_gradient[(programs,)](
        d,
        x,
        cos,
        sin,
        q_weight,
        k_weight,
        out,
        sums,
        U * H,
        share,
        eps,
        H=H,
        HEADS=heads,
        QUERIES=queries,
        HALF=half,
        TOKENS=tokens,
        BLOCK=block,
    )
    d_q, d_k = _total(sums.flatten(1), q_weight.dtype).view(2, D)
    return out, d_q, d_k


def _total(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ over the programs of their partial sums [programs, d]."""
    programs, d = sums.shape
    out, rows = sums.new_empty(d, dtype=dtype), triton.next_power_of_2(PROGRAMS)
    _column_sums[(triton.cdiv(d, COLUMNS),)](
        sums, out, programs, d, ROWS=rows, WIDTH=COLUMNS, num_warps=16
    )
    return out


def _tile(d: int, size: int = TILE) -> tuple[int, int]:
    """Rows and columns of a program's tile; all of a row's numbers are in it."""
    block = triton.next_power_of_2(d)
    return max(1, size // block), block


@triton.jit(do_not_specialize=["programs"])
def _column_sums(
    sums: tl.tensor,
    out: tl.tensor,
    programs: tl.tensor,
    d: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    row, column = tl.arange(0, ROWS)[:, None], tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    here = (row < programs) & (column < d)[None, :]
    total = tl.sum(tl.load(sums + row * d + column[None, :], mask=here, other=0.0), 0)
    tl.store(out + column, total.to(out.dtype.element_ty), mask=column < d)


@triton.jit(do_not_specialize=["rows"])
def add_norm_kernel(
    x: tl.tensor,  # [rows, d]
    delta: tl.tensor,  # [rows, d] or None
    weight: tl.tensor,  # [d]
    total: tl.tensor,  # [rows, d] out, x + delta; may be x itself
    y: tl.tensor,  # [rows, d] out
    scale: tl.tensor,  # [rows] out, 1/√(mean x² + ε), or None
    rows: tl.tensor,
    d: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    GEMMA: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    y_scale: tl.tensor = None,  # [rows] out, where y is in 8 bits
) -> None:
    """A program has a tile of TOKENS whole rows:

    rows   0 … TOKENS−1   │ BLOCK columns, d of them real │   program 0
    rows   TOKENS … 2·TOKENS−1                                program 1
    """
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, BLOCK)
    here = (row < rows)[:, None] & (column < d)[None, :]
    place = row[:, None].to(tl.int64) * d + column[None, :]
    v = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    if delta is not None:
        v = (v + tl.load(delta + place, mask=here, other=0.0).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + place, v, mask=here)
        v = v.to(tl.float32)
    s = tl.rsqrt(tl.sum(v * v, 1) / d + eps)
    if scale is not None:
        tl.store(scale + row, s, mask=row < rows)
    normed = v * s[:, None]
    w = tl.load(weight + column, mask=column < d, other=0.0).to(tl.float32)
    if not GEMMA:  # which multiplies before it rounds
        normed = normed.to(x.dtype.element_ty).to(tl.float32)
    normed = (normed * (w + offset)[None, :]).to(x.dtype.element_ty)
    if y_scale is not None:
        normed = normed.to(tl.float32)
        own = scale_of(tl.max(tl.abs(normed), 1))
        tl.store(y_scale + row, own, mask=row < rows)
        normed = in_scale(normed, own[:, None])
    tl.store(y + place, normed.to(y.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["rows", "share"])
def _add_norm_gradient(
    d_y: tl.tensor,
    d_total: tl.tensor,
    total: tl.tensor,
    scale: tl.tensor,
    weight: tl.tensor,
    d_x: tl.tensor,
    y: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    share: tl.tensor,
    offset: tl.tensor,
    GEMMA: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """dx = s (w d − x̂ mean(x̂ w d)) and dw = Σ x̂ d, with x̂ = x s;
    d_total, which came past the norm, is added.
    """
    column = tl.arange(0, BLOCK)
    w = tl.load(weight + column, mask=column < d, other=0.0).to(tl.float32) + offset
    d_w = tl.zeros((BLOCK,), tl.float32)
    begin = tl.program_id(0) * share
    for first in range(begin, tl.minimum(begin + share, rows), TOKENS):
        row = first + tl.arange(0, TOKENS)
        here = (row < rows)[:, None] & (column < d)[None, :]
        place = row[:, None].to(tl.int64) * d + column[None, :]
        s = tl.load(scale + row, mask=row < rows, other=0.0)
        normed = tl.load(total + place, mask=here, other=0.0).to(tl.float32) * s[:, None]
        g = tl.load(d_y + place, mask=here, other=0.0).to(tl.float32)
        d_w += tl.sum(normed * g, 0)
        g = g * w[None, :]
        mean = tl.sum(normed * g, 1) / d
        g = (g - normed * mean[:, None]) * s[:, None]
        if d_total is not None:
            g += tl.load(d_total + place, mask=here, other=0.0).to(tl.float32)
        tl.store(d_x + place, g.to(d_x.dtype.element_ty), mask=here)
        if not GEMMA:
            normed = normed.to(y.dtype.element_ty).to(tl.float32)
        tl.store(y + place, (normed * w[None, :]).to(y.dtype.element_ty), mask=here)
    tl.store(sums + tl.program_id(0) * d + column, d_w, mask=column < d)


@triton.jit
def _activation(g: tl.tensor, GELU: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The activation of g, and its derivative."""
    if GELU:  # g σ(2u), u = √(2/π)(g + 0.044715 g³), which is tanh's form
        p = tl.sigmoid(1.5957691216057308 * (g + 0.044715 * g * g * g))
        slope = p + g * p * (1 - p) * 1.5957691216057308 * (1 + 0.134145 * g * g)
    else:
        p = tl.sigmoid(g)
        slope = p + g * p * (1 - p)
    return g * p, slope


@triton.jit
def gated_kernel(
    gate_up: tl.tensor,  # [rows, 2 f]: gate, then up
    out: tl.tensor,  # [rows, f]
    f: tl.tensor,
    GELU: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
    out_scale: tl.tensor = None,  # [rows] out, where `out` is in 8 bits
) -> None:
    """A program has BLOCK columns of one row, in 8 bits all of them. ROUNDS: the activation is
    rounded before the product.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place, here = gate_up + row * 2 * f + column, column < f
    gate = tl.load(place, mask=here, other=0.0).to(tl.float32)
    up = tl.load(place + f, mask=here, other=0.0).to(tl.float32)
    value, _ = _activation(gate, GELU)
    if ROUNDS:
        value = value.to(gate_up.dtype.element_ty).to(tl.float32)
    value = (value * up).to(gate_up.dtype.element_ty)
    if out_scale is not None:
        value = value.to(tl.float32)
        own = scale_of(tl.max(tl.abs(value), 0))
        tl.store(out_scale + row, own)
        value = in_scale(value, own)
    tl.store(out + row * f + column, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def _gated_gradient(
    d: tl.tensor,
    gate_up: tl.tensor,
    d_gate_up: tl.tensor,
    out: tl.tensor,
    f: tl.tensor,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place, here = row * 2 * f + column, column < f
    g = tl.load(d + row * f + column, mask=here, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + place, mask=here, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + f, mask=here, other=0.0).to(tl.float32)
    value, slope = _activation(gate, GELU)
    tl.store(d_gate_up + place, (g * up * slope).to(d_gate_up.dtype.element_ty), mask=here)
    tl.store(d_gate_up + place + f, (g * value).to(d_gate_up.dtype.element_ty), mask=here)
    tl.store(out + row * f + column, (value * up).to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["rows", "direction"])
def _rotate(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    direction: tl.tensor,
    H: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Rows are heads of tokens: [U·H, 2·HALF]."""
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    token, head = (row // H)[:, None], (row % H)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    here = (row < rows)[:, None] & (column < HALF)
    rotates = here & (head < HEADS)
    place = row[:, None].to(tl.int64) * 2 * HALF + column
    x1 = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    x2 = tl.load(x + place + HALF, mask=here, other=0.0).to(tl.float32)
    if NORM:
        w1, w2 = _weights(q_weight, k_weight, column, head, QUERIES, HALF)
        s = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / (2 * HALF) + eps)[:, None]
        n1 = (x1 * s).to(x.dtype.element_ty).to(tl.float32) * w1
        n2 = (x2 * s).to(x.dtype.element_ty).to(tl.float32) * w2
        x1 = tl.where(head < HEADS, n1.to(x.dtype.element_ty).to(tl.float32), x1)
        x2 = tl.where(head < HEADS, n2.to(x.dtype.element_ty).to(tl.float32), x2)
    c = tl.load(cos + token.to(tl.int64) * HALF + column, mask=rotates, other=1.0).to(tl.float32)
    s = (
        tl.load(sin + token.to(tl.int64) * HALF + column, mask=rotates, other=0.0).to(tl.float32)
        * direction
    )
    tl.store(out + place, (x1 * c - x2 * s).to(out.dtype.element_ty), mask=here)
    tl.store(out + place + HALF, (x2 * c + x1 * s).to(out.dtype.element_ty), mask=here)


@triton.jit
def _weights(
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    column: tl.tensor,
    head: tl.tensor,
    QUERIES: tl.constexpr,
    HALF: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Both halves of each head's norm, loaded once for all heads of a tile."""
    inside, q = column < HALF, head < QUERIES
    q1 = tl.load(q_weight + column, mask=inside, other=0.0)
    k1 = tl.load(k_weight + column, mask=inside, other=0.0)
    column += HALF
    q2 = tl.load(q_weight + column, mask=inside, other=0.0)
    k2 = tl.load(k_weight + column, mask=inside, other=0.0)
    return tl.where(q, q1, k1).to(tl.float32), tl.where(q, q2, k2).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "share"])
def _norm_rotate_gradient(
    d: tl.tensor,
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    share: tl.tensor,
    eps: tl.tensor,
    H: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    HALF: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    column = tl.arange(0, BLOCK)[None, :]
    d_q1 = tl.zeros((TOKENS, BLOCK), tl.float32)
    d_q2 = tl.zeros((TOKENS, BLOCK), tl.float32)
    d_k1 = tl.zeros((TOKENS, BLOCK), tl.float32)
    d_k2 = tl.zeros((TOKENS, BLOCK), tl.float32)
    begin = tl.program_id(0) * share
    for first in range(begin, tl.minimum(begin + share, rows), TOKENS):
        row = first + tl.arange(0, TOKENS)
        token, head = (row // H)[:, None], (row % H)[:, None]
        here = (row < rows)[:, None] & (column < HALF)
        rotates = here & (head < HEADS)
        place = row[:, None].to(tl.int64) * 2 * HALF + column
        c = tl.load(cos + token.to(tl.int64) * HALF + column, mask=rotates, other=1.0).to(
            tl.float32
        )
        s = tl.load(sin + token.to(tl.int64) * HALF + column, mask=rotates, other=0.0).to(
            tl.float32
        )
        d1 = tl.load(d + place, mask=here, other=0.0).to(tl.float32)
        d2 = tl.load(d + place + HALF, mask=here, other=0.0).to(tl.float32)
        g1 = d1 * c + d2 * s
        g2 = d2 * c - d1 * s
        x1 = tl.load(x + place, mask=rotates, other=0.0).to(tl.float32)
        x2 = tl.load(x + place + HALF, mask=rotates, other=0.0).to(tl.float32)
        scale = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / (2 * HALF) + eps)[:, None]
        x1 = x1 * scale
        x2 = x2 * scale
        q = head < QUERIES
        d_q1 += tl.where(q, x1 * g1, 0.0)
        d_q2 += tl.where(q, x2 * g2, 0.0)
        d_k1 += tl.where(q, 0.0, x1 * g1)
        d_k2 += tl.where(q, 0.0, x2 * g2)
        w1, w2 = _weights(q_weight, k_weight, column, head, QUERIES, HALF)
        w1 = w1 * g1
        w2 = w2 * g2
        mean = ((tl.sum(x1 * w1, 1) + tl.sum(x2 * w2, 1)) / (2 * HALF))[:, None]
        g1 = tl.where(head < HEADS, (w1 - x1 * mean) * scale, g1)
        g2 = tl.where(head < HEADS, (w2 - x2 * mean) * scale, g2)
        tl.store(out + place, g1.to(out.dtype.element_ty), mask=here)
        tl.store(out + place + HALF, g2.to(out.dtype.element_ty), mask=here)
    at = sums + tl.program_id(0) * 4 * HALF + tl.arange(0, BLOCK)
    there = tl.arange(0, BLOCK) < HALF
    tl.store(at, tl.sum(d_q1, 0), mask=there)
    tl.store(at + HALF, tl.sum(d_q2, 0), mask=there)
    tl.store(at + 2 * HALF, tl.sum(d_k1, 0), mask=there)
    tl.store(at + 3 * HALF, tl.sum(d_k2, 0), mask=there)
