"""From hidden states and the head to log-probabilities, or straight to an objective's loss.

Never more than a chunk of logits exists. `fused_logprobs` serves every objective: the backward pass
makes each chunk's logits again (four matrix products in all). `fused_loss` takes three where the
objective is token-level: each token's slope is known as soon as its own log-probability is, so the
chunk's gradient is formed while its logits are there.
On CUDA the passes over the logits are Triton's (on a Hopper with the product that makes them),
elsewhere plain torch's. The gradients' products are torch's, in the hidden states' precision, with
the weight's gradient summed in float32. Not covered: float16 (gradients of logits underflow in it),
second derivatives, and heads split over devices.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.kernels import logit_passes
from equipoise.kernels.autograd import apply
from equipoise.kernels.logit_passes import ALIGNED, Chunk, Softmax
from equipoise.kernels.token_terms import Pull, is_token_level, padded, pull
from equipoise.objective import Credit, LossOutput, Objective

CUDA_CHUNK, CPU_CHUNK = 640 << 20, 64 << 20  # bytes of logits, in the hidden states' precision
TOKENS = 128  # a chunk is a multiple of these: whole tiles of the Triton passes


def fused_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    vocabulary: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log π(target) and the entropy of π [N], float32, differentiable both.

    hidden [N, d], weight [V, d], bias [V], targets [N] int64. π = softmax(cap(hidden weightᵀ +
    bias)/temperature), with cap(z) = softcap·tanh(z/softcap), over the first `vocabulary` columns:
    the rest is padding and gets no gradient. On CUDA a target outside the vocabulary has
    log-probability NaN; on the CPU it is an IndexError.
    """
    _check(hidden, weight, bias, targets, temperature, softcap, vocabulary)
    settings = _Settings(Softmax(temperature, softcap), vocabulary or len(weight))
    return apply(_Logprobs, hidden, weight, bias, targets, settings)


def fused_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    objective: Objective,
    old_logprobs: Tensor,
    credit: Credit,
    response: Tensor,
    *,
    position: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    vocabulary: int | None = None,
) -> LossOutput:
    """`objective.loss` of the head's log-probabilities and entropies: the same numbers, to
    rounding, as `objective.loss(*fused_logprobs(…), …)`, which it is for objectives with
    sequence-level ratios and without gradient.

    For token-level objectives the gradients are made here and wait for `backward`, which can be
    called once; and on CUDA, without an entropy bonus, a log π that fell by more than 69 since log
    π_old is given as having fallen by 69.
    """
    others = {
        "position": position,
        "ref_logprobs": ref_logprobs,
        "rollout_logprobs": rollout_logprobs,
    }
    wants_gradient = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (hidden, weight, bias)
    )
    if not (is_token_level(objective) and wants_gradient):
        logprobs, entropy = fused_logprobs(
            hidden,
            weight,
            targets,
            bias=bias,
            temperature=temperature,
            softcap=softcap,
            vocabulary=vocabulary,
        )
        return objective.loss(logprobs, old_logprobs, credit, response, entropy=entropy, **others)
    _check(hidden, weight, bias, targets, temperature, softcap, vocabulary)
    flat = hidden[:, 0]
    objective.check_tokens(
        credit, flat, old_logprobs=old_logprobs, response=response, entropy=flat, **others
    )
    settings = _Settings(Softmax(temperature, softcap), vocabulary or len(weight))
    pulls = pull(
        objective,
        old_logprobs,
        credit,
        response,
        _float(hidden),
        position=position,
        ref=ref_logprobs,
        rollout=rollout_logprobs,
    )
    carrier, logprobs, entropy = apply(_Loss, hidden, weight, bias, targets, settings, pulls)
    out = objective.loss(logprobs, old_logprobs, credit, response, entropy=entropy, **others)
    return dataclasses.replace(out, loss=out.loss + carrier)


class _Settings(NamedTuple):
    softmax: Softmax
    vocabulary: int


class _Logprobs(torch.autograd.Function):
    """(hidden, weight, bias, targets) → log-probabilities and entropies [N]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: _Settings,
    ) -> tuple[Tensor, Tensor]:
        logits = _Logits(hidden, weight, bias, targets, settings)
        logprobs, entropy, lse = hidden.new_empty(
            3, len(logits.targets), dtype=_float(hidden)
        ).unbind()
        for rows in logits.chunks:
            logits.passes.statistics(logits(rows), logprobs[rows], entropy[rows], lse[rows])
        ctx.save_for_backward(hidden, weight, bias, targets, logprobs, entropy, lse)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return logprobs[: len(hidden)], entropy[: len(hidden)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, logprobs, entropy, lse = ctx.saved_tensors
        logits = _Logits(hidden, weight, bias, targets, ctx.settings, logprobs)
        gradients = _Gradients(hidden, weight, bias, ctx.settings, ctx.needs_input_grad)
        g, h = (None if x is None else padded(x.contiguous(), len(lse), 0.0) for x in (g, h))
        chunk = None
        for rows in logits.chunks:
            chunk = logits(rows)
            of_rows = (None if d is None else d[rows] for d in (g, h))
            logits.passes.gradient_(chunk, lse[rows], entropy[rows], *of_rows)
            gradients.add(chunk.z, None, chunk.hidden, rows)
        del logits, chunk  # `finish` may need their room
        return *gradients.finish(None), None, None


class _Loss(torch.autograd.Function):
    """(hidden, weight, bias, targets) → a zero with the loss's gradient, logprobs, entropy [N]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: _Settings,
        pulls: Pull,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = _Logits(hidden, weight, bias, targets, settings, pulls.old)
        logprobs, entropy = hidden.new_empty(2, len(logits.targets), dtype=_float(hidden)).unbind()
        pulls = pulls.padded(len(logprobs))
        ctx.gradients = _Gradients(hidden, weight, bias, settings, ctx.needs_input_grad)
        for rows in logits.chunks:
            chunk = logits(rows)
            factor = logits.passes.loss_gradient_(
                chunk, pulls.rows(rows), logprobs[rows], entropy[rows]
            )
            ctx.gradients.add(chunk.z, factor, chunk.hidden, rows)
        logprobs, entropy = logprobs[: len(hidden)], entropy[: len(hidden)]
        ctx.mark_non_differentiable(logprobs, entropy)
        return logprobs.new_zeros(()), logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "this loss has been through backward, and its gradients are made once; call fused_loss again"
            )
        gradients, ctx.gradients = ctx.gradients, None
        return *gradients.finish(scale), None, None, None


class _Logits:
    """Chunks of tokens, which have their logits in one room that every chunk uses again.

    Logits are counted from where `guess` [N] says that 0 is: if the target's log-probability is
    about that, then raw − own + temperature·guess is about temperature·log π, small where π is
    large, whatever the target. The tokens are padded to a multiple of TOKENS with hidden states of
    0.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: _Settings,
        guess: Tensor | None = None,
    ) -> None:
        V = settings.vocabulary
        self.hidden = hidden.contiguous()
        self.weight = weight[:V].contiguous()
        self.softmax = settings.softmax
        self.bias = None if bias is None else bias[:V].contiguous()
        N = -(-len(hidden) // TOKENS) * TOKENS
        self.targets = padded(targets.contiguous(), N, 0)
        self.guess = None
        if guess is not None and self.softmax.softcap is None:
            self.guess = padded(
                self.softmax.temperature * guess.clamp(-60, 0).nan_to_num_(0.0), N, 0.0
            )
        self.passes = _passes(self.hidden, self.weight)
        width = -(-V // ALIGNED) * ALIGNED
        self.chunks = _chunks(N, width * hidden.element_size(), _chunk_bytes(hidden))
        self.buffer = hidden.new_empty(
            width * max((c.stop - c.start for c in self.chunks), default=0)
        )

    def __call__(self, rows: slice) -> Chunk:
        n = rows.stop - rows.start
        x, y = padded(self.hidden[rows], n, 0.0), self.targets[rows]
        own, shift = x.new_empty(2, n, dtype=_float(x)).unbind()
        z = self.passes.room(self.buffer, n, len(self.weight))
        chunk = Chunk(x, self.weight, self.bias, y, own, shift, self.softmax, z)
        self.passes.target_logits(chunk, None if self.guess is None else self.guess[rows])
        return chunk


class _Gradients:
    """The sums of the chunks' gradients of hidden, weight and bias; None where nobody asks.

    The weight's sum is float32. A half-precision gradient is made of it in the room that the logits
    had; where that is too small, the sum lies in two halves of the vocabulary, and the gradient
    goes into the memory of the first.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        settings: _Settings,
        needed: tuple[bool, ...],
    ) -> None:
        self.weight, self.V = weight.detach(), settings.vocabulary
        self.hidden = hidden.new_empty(hidden.shape) if needed[0] else None
        wide = _float(weight)
        narrow = weight.numel() * weight.element_size() if weight.dtype != wide else 0
        parts = 1 if narrow <= _chunk_bytes(weight) else 2
        size = -(-len(weight) // parts)
        self.starts = range(0, len(weight), size) if needed[1] else range(0)
        self.sums = [
            weight.new_empty(min(size, len(weight) - i), weight.shape[1], dtype=wide)
            for i in self.starts
        ]
        self.begun = False
        self.bias = (
            bias.new_zeros(len(bias), dtype=wide) if bias is not None and needed[2] else None
        )

    def add(self, dz: Tensor, factor: Tensor | None, x: Tensor, rows: slice) -> None:
        """factor [n] · dz [n, V] of the hidden states x [n, d] in these rows."""
        if self.hidden is not None:
            out = self.hidden[rows]
            torch.mm(dz[: len(out)], self.weight[: self.V], out=out)
            if factor is not None:
                _passes(out).scale_rows(out, factor[: len(out)], out)
        if self.sums and factor is not None:
            plain, x = x, torch.empty_like(x)
            _passes(x).scale_rows(plain, factor, x)
        dz = dz.t()
        for start, total in zip(self.starts, self.sums, strict=True):
            part = dz[start : start + len(total)]
            _add_product(total[: len(part)], part, x, self.begun)
            if not self.begun:
                total[len(part) :] = 0
        self.begun = True
        if self.bias is not None:
            column = dz.new_ones(len(x), 1) if factor is None else factor[:, None].to(dz.dtype)
            _add_product(self.bias[: self.V, None], dz, column, True)

    def finish(self, scale: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients in their tensors' precision, times `scale`; call it once."""
        if not self.begun:
            for total in self.sums:
                total.zero_()
        if scale is None:
            scale = self.weight.new_ones((), dtype=_float(self.weight))
        weight, bias = None, self.bias
        if len(self.sums) == 2:
            first, second = self.sums
            weight = _narrowed(first, second, self.weight.dtype, scale)
        elif self.sums:
            weight = self.weight.new_empty(self.weight.shape)
            _scale(self.sums[0], scale, weight)
        if bias is not None:
            bias = bias.mul_(scale).to(self.weight.dtype)
        if self.hidden is not None:
            _scale(self.hidden, scale, self.hidden)
        return self.hidden, weight, bias


def _add_product(total: Tensor, a: Tensor, b: Tensor, begun: bool) -> None:
    """total += a b, or total = a b; the product is not rounded to the factors' precision."""
    if total.dtype == a.dtype:
        torch.addmm(total, a, b, beta=float(begun), out=total)
    elif not total.is_cuda:
        torch.addmm(total, a.to(total.dtype), b.to(total.dtype), beta=float(begun), out=total)
    elif begun:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        torch.mm(a, b, out_dtype=total.dtype, out=total)


def _narrowed(first: Tensor, second: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """scale · [first; second] in `dtype`, half as wide, in the memory of `first`."""
    half, d = first.shape
    out = first.view(dtype).view(-1)[: (half + len(second)) * d].view(-1, d)
    # A row's place in the result lies at half its own offset:
    # from blocks that double, nothing unread is overwritten.
    end = min(half, 256)
    _scale(first[:end].clone(), scale, out[:end])
    while end < half:
        begin, end = end, min(2 * end, half)
        _scale(first[begin:end], scale, out[begin:end])
    _scale(second, scale, out[half:])
    return out


def _scale(x: Tensor, scale: Tensor, out: Tensor) -> None:
    """out = x·scale, a number on the device."""
    _passes(x).scale_rows(x, scale.expand(len(x)).contiguous(), out)


def _chunks(tokens: int, token_bytes: int, most_bytes: int) -> list[slice]:
    """Chunks of at most `most_bytes`, but at least TOKENS tokens;
    in multiples of 2·TOKENS where there is room.
    """
    most = most_bytes // token_bytes
    size = most // (2 * TOKENS) * 2 * TOKENS or TOKENS
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def _chunk_bytes(x: Tensor) -> int:
    return CUDA_CHUNK if x.is_cuda else CPU_CHUNK


def _float(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _passes(*rows: Tensor) -> ModuleType:
    """For such rows; Triton's are float32 at most, and rows begin at multiples of 16 bytes."""
    if not rows[0].is_cuda or rows[0].dtype == torch.float64 or not all(map(_is_aligned, rows)):
        return logit_passes
    from equipoise.kernels import triton_logit_passes

    return triton_logit_passes


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0


def _check(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    softcap: float | None,
    vocabulary: int | None,
) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and weight {tuple(weight.shape)}: must be [N, d] and [V, d], d alike"
        )
    if hidden.dtype != weight.dtype or hidden.dtype == torch.float16:
        raise ValueError(
            f"hidden is {hidden.dtype}, weight {weight.dtype}: must be one precision for both, bfloat16 or float32 "
            "(gradients of logits underflow in float16)"
        )
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)} and dtype {targets.dtype}: must be [{len(hidden)}], int64"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"bias has shape {tuple(bias.shape)}: must be [{len(weight)}], one per row of weight"
        )
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: must be a positive number")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap = {softcap}: must be a positive number, or None for no cap")
    if vocabulary is not None and not 0 < vocabulary <= len(weight):
        raise ValueError(
            f"vocabulary = {vocabulary}: must be 1 to {len(weight)}, the rows of weight"
        )
