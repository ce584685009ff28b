"""How many passes over its tokens a step takes, and the bytes they move: its cost whatever the machine's load.

A pass is a torch operation on a tensor with a number for each token, or one of numpy's that stand in chunks.py. Not
counted: views, memory that is only allocated, and operations with one number for each response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equipoise.objective.chunks import Runs

aten = torch.ops.aten
NO_PASS = (
    aten.alias,
    aten.as_strided,
    aten.detach,
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.expand,
    aten.lift_fresh,  # what `torch.from_numpy` ends with
    aten.new_empty,
    aten.new_zeros,
    aten.slice,
    aten.split_with_sizes,
    aten.unbind,
    aten.view,
)


class Passes(TorchDispatchMode):
    """Counts while it is active; a part of the tokens is that part of a pass."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.number = 0.0
        self.bytes = 0.0  # of each token

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in NO_PASS:
            return result
        read = args[1:] if func.overloadpacket is aten.copy_ else args
        touched = [x for x in tree_leaves((read, result)) if self._of_tokens(x)]
        if touched:
            self.add(max(len(x) for x in touched), sum(x.nbytes for x in touched))
        return result

    def _of_tokens(self, x: Any) -> bool:
        """An expanded number has no memory of its own."""
        return isinstance(x, Tensor) and x.ndim == 1 and x.stride() != (0,) and 16 * len(x) >= self.tokens

    def add(self, tokens: int, moved: int) -> None:
        self.number += tokens / self.tokens
        self.bytes += moved / self.tokens


@contextmanager
def counted(tokens: int) -> Iterator[Passes]:
    """The passes of what runs in this context, numpy's included; log-probabilities in float32."""
    passes = Passes(tokens)

    def wrap(call: Callable[..., Any], size: int) -> Callable[..., Any]:
        def counting(self: Runs, x: Any) -> Any:
            n = int(self.count.sum())
            passes.add(n, size * n)
            return call(self, x)

        return counting

    def runs_of(response: Tensor) -> Runs | None:
        passes.add(len(response), 9 * len(response))  # int64 in, bool out
        return original(response)

    original = Runs.of
    with (
        patch.object(Runs, "each_sum", wrap(Runs.each_sum, 4)),
        patch.object(Runs, "repeat", wrap(Runs.repeat, 4)),
        patch.object(Runs, "of", runs_of),
        passes,
    ):
        yield passes
