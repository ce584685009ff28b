"""AdamW whose arithmetic is float32 whatever the weights are, with moments of 32 or 8 bits.

Weights in bfloat16 have 8 bits of precision: an update of less than a 512th of a weight rounds away, and updates of RL
are smaller. So the optimizer steps a float32 copy of them, the master, and writes it back rounded; a gradient is added
to the master's in float32 as soon as a backward pass has made it, and its own memory is freed. Weights in float32 are
their own masters. With 32 bits the step is torch's fused AdamW; with 8 bits it is `coded_step` (matrices alone: the
vectors of a model are a thousandth of it, and keep their 32). Not covered: float16, and moments on another device.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = 256  # entries of a row that share a scale
EPS = 1e-8
# A moment is scale · (k/n)^power, k = 0 … n: near 0, where most entries of a block are, the steps are small. √v has the
# same power as m, because m/√v is what counts.
M_LEVELS, M_ROOTS = 127, 2  # power 2^roots: m = scale · (k/127)⁴, with a sign
V_LEVELS, V_ROOTS = 255, 3  # v = scale · (k/255)⁸
M_STRIDE, V_STRIDE = 0.7548776662466927, 0.5698402909980532  # of the dither along a block; any irrationals will do
CHUNK = 1 << 20  # entries worked on at once in plain torch: what lies between the lines of a step is small


class Rates(NamedTuple):
    """Of one step t: p ← (1 − decay) p − step · m / (√v / root + ε), with the bias corrections inside."""

    beta1: float
    beta2: float
    decay: float  # lr · weight_decay
    step: float  # lr / (1 − β₁ᵗ)
    root: float  # √(1 − β₂ᵗ)
    m_phase: float
    v_phase: float


def rates(lr: float, betas: tuple[float, float], weight_decay: float, t: int) -> Rates:
    # Multiples of irrational numbers fill [0, 1) evenly: see `encode`.
    phases = t * (math.sqrt(5) - 1) / 2 % 1, t * (math.sqrt(2) - 1) % 1
    return Rates(
        *betas, lr * weight_decay, lr / (1 - betas[0] ** t), math.sqrt(1 - betas[1] ** t), *phases
    )  # fmt: skip


@dataclass
class Coded:
    """Moments of a matrix [r, c] in 8 bits: codes [r, c], and scales [r, ⌈c/BLOCK⌉] in float32.

    Blocks end with the row, so that a shard of rows holds a shard of blocks.
    """

    m: Tensor
    v: Tensor
    m_scale: Tensor
    v_scale: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> Coded:
        rows, columns = like.flatten(1).shape
        codes = torch.zeros(rows, columns, dtype=torch.int8, device=like.device)
        scales = torch.zeros(rows, -(-columns // BLOCK), device=like.device)
        return cls(codes, codes.to(torch.uint8), scales, scales.clone())


class AdamW:
    """`masters`: float32, one for each parameter; their `.grad` is the gradient that `step` takes."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        state: str = "float32",
    ) -> None:
        self.betas, self.weight_decay, self.t = betas, weight_decay, 0
        self.weights = list(parameters)
        self.masters = [p if p.dtype == torch.float32 else p.detach().float() for p in parameters]
        pairs = list(zip(self.weights, self.masters, strict=True))
        self.rounded = [(w, p) for w, p in pairs if w is not p]
        for weight, master in self.rounded:
            weight.register_post_accumulate_grad_hook(_moves_gradient_to(master))
        self.coded = [(w, p, Coded.zeros(p)) for w, p in pairs if _in_8_bits(p, state)]
        self.copied = [(w, p) for w, p in self.rounded if not _in_8_bits(p, state)]
        exact = [p for p in self.masters if not _in_8_bits(p, state)]
        self.exact = torch.optim.AdamW(exact, betas=betas, weight_decay=weight_decay, fused=True) if exact else None

    def bytes_to_come(self) -> int:
        """What the first step will take for moments that are not there yet."""
        if self.exact is None or self.exact.state:
            return 0
        return sum(2 * 4 * p.numel() for group in self.exact.param_groups for p in group["params"])

    def zero_grad(self) -> None:
        for tensor in (*self.weights, *self.masters):
            tensor.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.t += 1
        if self.exact is not None:
            for group in self.exact.param_groups:
                group["lr"] = lr
            self.exact.step()
        if self.copied:
            torch._foreach_copy_(*map(list, zip(*self.copied, strict=True)))
        now = rates(lr, self.betas, self.weight_decay, self.t)
        for weight, master, moments in self.coded:
            if master.grad is not None:
                _fastest(master)(weight, master, master.grad, moments, now)

    def state_dict(self) -> dict[str, Any]:
        """That of torch's AdamW, and with it the masters that are not the weights, and the moments in 8 bits."""
        exact = {"state": {}, "param_groups": []} if self.exact is None else self.exact.state_dict()
        return {
            **exact,
            "t": self.t,
            "masters": [master for _, master in self.rounded],
            "coded": [vars(moments) for _, _, moments in self.coded],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.exact is not None:
            exact = copy.deepcopy({k: state[k] for k in ("state", "param_groups")})  # torch would keep what it is given
            self.exact.load_state_dict(exact)
        self.t = state.get("t", 0)  # absent in the first runs, as is the rest
        for (weight, master), saved in zip(self.rounded, state.get("masters", []), strict=True):
            weight.copy_(master.copy_(saved))
        for (_, _, moments), saved in zip(self.coded, state.get("coded", []), strict=True):
            for name, tensor in saved.items():
                getattr(moments, name).copy_(tensor)


def _moves_gradient_to(master: Tensor) -> Any:
    def move(weight: Tensor) -> None:
        assert weight.grad is not None
        master.grad = weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
        weight.grad = None

    return move


def _in_8_bits(master: Tensor, state: str) -> bool:
    return state == "8bit" and master.dim() > 1 and master.is_contiguous()


def _fastest(master: Tensor) -> Any:
    if not master.is_cuda:
        return coded_step
    from equipoise.train import triton_adamw

    return triton_adamw.coded_step


def coded_step(weight: Tensor, master: Tensor, gradient: Tensor, moments: Coded, now: Rates) -> None:
    """One step of AdamW in place, with moments of 8 bits; the update itself uses them before they are rounded.

    `weight` is the master or its rounded copy.
    """
    columns = torch.arange(BLOCK, device=master.device)
    dither = [(columns * a + phase) % 1 for a, phase in ((M_STRIDE, now.m_phase), (V_STRIDE, now.v_phase))]
    for p, g, m8, v8, m_scale, v_scale in _blocks(master, gradient, moments):
        m = decode(m8, m_scale, M_LEVELS, M_ROOTS).lerp_(g, 1 - now.beta1)
        v = decode(v8, v_scale, V_LEVELS, V_ROOTS).mul_(now.beta2).addcmul_(g, g, value=1 - now.beta2)
        p.mul_(1 - now.decay).addcdiv_(m, v.sqrt().div_(now.root).add_(EPS), value=-now.step)
        encode(m, m8, m_scale, M_LEVELS, M_ROOTS, dither[0])
        encode(v, v8, v_scale, V_LEVELS, V_ROOTS, dither[1])
    if weight is not master:
        weight.copy_(master)


def decode(codes: Tensor, scale: Tensor, levels: int, roots: int) -> Tensor:
    x = codes.float().mul_(1 / levels)
    sign = x.sign()
    for _ in range(roots):
        x.square_()
    return x.mul_(sign).mul_(scale[..., None])


def encode(x: Tensor, codes: Tensor, scale: Tensor, levels: int, roots: int, dither: Tensor) -> None:
    """Write x [..., w] as codes and scale [...].

    Of the two levels around an entry the upper one is taken where its share of the way exceeds the dither, a number
    that over the steps is as often below any bound as a random one would be: on average nothing is lost. (Rounding to
    the nearest would stop a moment that changes by less than half a level in a step.) An entry that is not 0 keeps at
    least level 1 in v, where 0 would divide by ε.
    """
    scale.copy_(x.abs().amax(-1))
    share = x.abs().div_(scale.clamp_min(torch.finfo(torch.float32).tiny)[..., None])
    k = share
    for _ in range(roots):
        k = k.sqrt()
    k = k.mul_(levels).floor_()
    below, above = k * (1 / levels), (k + 1) * (1 / levels)
    for _ in range(roots):
        below.square_()
        above.square_()
    up = share - below > dither[: x.shape[-1]] * above.sub_(below)
    if codes.dtype == torch.uint8:
        up |= (k == 0) & (share > 0)
    codes.copy_((k + up).mul_(x.sign()))


def _blocks(master: Tensor, gradient: Tensor, moments: Coded) -> Iterator[list[Tensor]]:
    """Views of p, g, m, v [r, b, w] and of their scales [r, b]: whole blocks, then what is left of each row."""
    wide = [t.flatten(1) for t in (master.detach(), gradient, moments.m, moments.v)]
    columns = wide[0].shape[1]
    whole = columns // BLOCK
    height = max(1, CHUNK // columns)
    for top in range(0, len(master), height):
        at = slice(top, top + height)
        if whole:
            yield [
                *(t[at, : whole * BLOCK].unflatten(1, (whole, BLOCK)) for t in wide),
                moments.m_scale[at, :whole], moments.v_scale[at, :whole],
            ]  # fmt: skip
        if columns % BLOCK:
            yield [
                *(t[at, whole * BLOCK :].unsqueeze(1) for t in wide),
                moments.m_scale[at, whole:], moments.v_scale[at, whole:],
            ]  # fmt: skip
