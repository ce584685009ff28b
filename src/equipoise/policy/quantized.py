"""Linear layers whose weights are kept in 4 bits, for a frozen base under LoRA adapters (QLoRA).

NF4 of the QLoRA paper (arXiv 2305.14314): blocks of 64 weights share an absolute maximum, which is
itself kept in 8 bits: 4.127 bits a weight. The packing is bitsandbytes'. A layer's weight is made
whole again for each product, forward and backward, and let go: a pass needs one layer's whole
weight at a time. The samplers make whole copies with the adapters merged, once a call, as they do
for every model with adapters. Embeddings, norms and the head stay as they are. Not covered:
training the packed weights, moving a packed layer to another device, mixtures of experts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.autograd import apply

BLOCK = 64  # weights that share a scale


def is_installed() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


def _bitsandbytes() -> Any:
    return importlib.import_module("bitsandbytes.functional")


class Packed(Protocol):
    """A matrix in few bits."""

    shape: torch.Size

    @property
    def nbytes(self) -> int: ...

    def whole(self) -> Tensor:
        """[out, in] in the dtype it was packed from."""
        ...


class Nf4:
    """A matrix in NF4 with doubly quantised scales, by bitsandbytes."""

    def __init__(self, weight: Tensor) -> None:
        self.shape = weight.shape
        self._packed, self._state = _bitsandbytes().quantize_4bit(
            weight.contiguous(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
        )

    @property
    def nbytes(self) -> int:
        parts = (self._packed, self._state.absmax, self._state.state2.absmax)
        return sum(part.nbytes for part in parts)

    def whole(self) -> Tensor:
        weight: Tensor = _bitsandbytes().dequantize_4bit(self._packed, self._state)
        return weight


class QuantizedLinear(torch.nn.Linear):
    """A linear layer that peft puts adapters on as on any other. Reading `weight` makes it anew."""

    def __init__(self, packed: Packed, bias: torch.nn.Parameter | None) -> None:
        torch.nn.Module.__init__(self)  # Linear's own would make a whole weight
        self.out_features, self.in_features = packed.shape
        self.packed = packed
        self.bias = bias  # type: ignore[assignment]  # torch says that a Linear always has one

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.packed.whole()

    def forward(self, x: Tensor) -> Tensor:
        return apply(_Product, x, self.packed, self.bias)


class _Product(torch.autograd.Function):
    """x Wᵀ + b with W made whole twice instead of kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
        ctx.packed = packed
        return F.linear(x, packed.whole().to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:
        return d @ ctx.packed.whole().to(d.dtype), None, None


@torch.no_grad()
def quantize(
    model: Any, device: str | torch.device, packing: Callable[[Tensor], Packed] | None = None
) -> None:
    """Put every linear layer but the head into 4 bits, on the device and one after the other: the
    whole model need not fit there. `packing`: another than `Nf4`, to compare with.
    """
    pack = packing or Nf4
    head = model.get_output_embeddings()
    for name, linear in list(model.named_modules()):
        if type(linear) is not torch.nn.Linear or linear is head:
            continue
        bias = linear.bias
        if bias is not None:
            bias = torch.nn.Parameter(bias.to(device), requires_grad=False)
        parent, _, child = name.rpartition(".")
        setattr(
            model.get_submodule(parent),
            child,
            QuantizedLinear(pack(linear.weight.to(device)), bias),
        )


def parameter_count(model: Any) -> int:
    """All parameters, those in 4 bits as well."""
    packed = sum(m.packed.shape.numel() for m in model.modules() if isinstance(m, QuantizedLinear))
    return packed + sum(_numel(p) for p in model.parameters())


def _numel(parameter: Tensor) -> int:
    """A model object may come with bitsandbytes' own parameters, which hold two weights in each of their numbers."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else torch.Size(state.shape).numel()


def weight_bytes(model: Any) -> int:
    """Memory of all weights, those in 4 bits as well."""
    packed = sum(m.packed.nbytes for m in model.modules() if isinstance(m, QuantizedLinear))
    others: int = sum(p.numel() * p.element_size() for p in model.parameters())
    return packed + others
