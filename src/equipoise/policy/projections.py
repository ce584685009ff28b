"""Linear layers of one input, computed as one product: queries, keys, values; gate, up.

Their weights are laid out one behind the other in memory, so that they are one matrix without a
copy. Where that cannot be (an adapter hangs on a layer, it is in 4 bits, ranks share its weights)
they are computed one by one, or, for sampling, copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.autograd import apply
from equipoise.policy.merged import merged_weight


class Linear(NamedTuple):
    """weight [out, in], bias [out] or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Projections(NamedTuple):
    """Modules of one input; called, their outputs side by side. Weights are read when needed:
    they may be gathered for the moment only.
    """

    modules: tuple[Any, ...]

    @property
    def weights(self) -> list[Tensor]:
        return [module.weight for module in self.modules]

    @property
    def biases(self) -> list[Tensor] | None:
        if self.modules[0].bias is None:
            return None
        return [module.bias for module in self.modules]

    @property
    def is_plain(self) -> bool:
        """Whether these are linear layers with whole weights: no adapter, not shared by ranks."""
        return all(
            type(m) is torch.nn.Linear and type(m.weight) is torch.nn.Parameter
            for m in self.modules
        )

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.modules) == 1:
            return _with_adapter(self.modules[0], x)
        if self.is_plain and x.is_cuda and (whole := self.joined()) is not None:
            return apply(_Joined, x, *whole, *self.weights, *(self.biases or ()))
        if self.is_plain and not x.is_cuda:
            bias = None if self.biases is None else torch.cat(self.biases)
            return F.linear(x, torch.cat(self.weights), bias)
        return torch.cat([_with_adapter(module, x) for module in self.modules], -1)

    def joined(self) -> Linear | None:
        """As one linear layer, a view, if `lay_out` has laid the weights so."""
        weight = _as_one(self.weights)
        bias = None if self.biases is None else _as_one(self.biases)
        if weight is None or (self.biases is not None and bias is None):
            return None
        return Linear(weight, bias)

    @torch.no_grad()
    def lay_out(self) -> None:
        """Lay the weights one behind the other in memory. The parameters stay the objects they
        were; only their memory moves. What moves them again (`.to`, a deep copy) undoes it, and it
        can be done again.
        """
        if self.is_plain and self.joined() is None:
            _lay_out(self.weights)
            _lay_out(self.biases or ())

    def merged_weights(self) -> list[Tensor]:
        """The weights; where a LoRA adapter of peft hangs on a module, a copy with it added."""
        return [merged_weight(module) for module in self.modules]


def _with_adapter(module: Any, x: Tensor) -> Tensor:
    """A layer of x [U, in]. The products of peft's LoRA are in x's precision: in float32, which its
    weights are kept in, they would take longer than the layer itself.
    """
    lora = getattr(module, "lora_A", {})
    found = [a for a in getattr(module, "active_adapters", ()) if a in lora]
    if not found or module.disable_adapters or not _is_plain_lora(module):
        out: Tensor = module(x)
        return out
    out = module.base_layer(x)
    for adapter in found:
        down, up = (w[adapter].weight.to(x.dtype) for w in (module.lora_A, module.lora_B))
        inner = F.linear(module.lora_dropout[adapter](x), down)
        out = torch.addmm(out, inner, up.t(), alpha=module.scaling[adapter])
    return out


def _is_plain_lora(module: Any) -> bool:
    """Not merged, no variant such as DoRA, no bias of its own."""
    biases = [up.bias for up in module.lora_B.values()]
    return not module.merged and not module.lora_variant and all(b is None for b in biases)


def _lay_out(parameters: Sequence[Tensor]) -> None:
    if not parameters:
        return
    whole = torch.cat([p.data for p in parameters])
    for p, part in zip(parameters, whole.split([len(p) for p in parameters]), strict=True):
        p.data = part


def _as_one(parts: Sequence[Tensor]) -> Tensor | None:
    """A view of all parts, if each begins where the one before ends."""
    if len(parts) == 1:
        return parts[0].detach()
    storage, end = parts[0].untyped_storage().data_ptr(), parts[0].data_ptr()
    for p in parts:
        if (
            p.untyped_storage().data_ptr() != storage
            or p.data_ptr() != end
            or not p.is_contiguous()
        ):
            return None
        end += p.numel() * p.itemsize
    first = parts[0].detach()
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


class _Joined(torch.autograd.Function):
    """x weightᵀ + bias, whose gradients go to the parameters that `weight` and `bias` are made of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        weights = parts if bias is None else parts[: len(parts) // 2]
        ctx.sizes = [len(p) for p in weights]
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, _, _, *needs_part = ctx.needs_input_grad
        n = len(ctx.sizes)
        d_x = d @ weight if needs_x else None
        d_parts: list[Tensor | None] = [None] * len(needs_part)
        if any(needs_part[:n]):
            d_parts[:n] = (d.t() @ x).split(ctx.sizes)
        if any(needs_part[n:]):
            d_parts[n:] = d.sum(0).split(ctx.sizes)
        return d_x, None, None, *d_parts
