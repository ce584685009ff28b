"""`Function.apply` of torch.autograd with the types of `forward`, which torch leaves out."""

from __future__ import annotations

from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Differentiable(Protocol[P, R]):
    """A subclass of `torch.autograd.Function`."""

    @staticmethod
    def forward(ctx: Any, /, *inputs: P.args, **none: P.kwargs) -> R: ...


def apply(function: type[Differentiable[P, R]], *inputs: P.args, **none: P.kwargs) -> R:
    """What `forward` makes of the inputs. By position alone: torch takes no keywords here."""
    made: R = function.apply(*inputs)  # type: ignore[attr-defined]  # of torch.autograd.Function
    return made
