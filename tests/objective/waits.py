"""How often a call would make the host wait for the GPU, counted on the CPU.

Every tensor says that it lies on CUDA, so that code takes the way it takes there, and the operations that CUDA cannot
do without the host are counted: values read into Python, results whose size depends on values, and copies from Python's
memory. Not covered: operations that torch alone knows to wait. `test_cuda.py` counts what a GPU really does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
DEPENDS_ON_VALUES = (
    aten._local_scalar_dense,  # item, bool, int, float
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten.equal,
)
READS_ALL = (Tensor.tolist, Tensor.numpy, Tensor.cpu)
FROM_PYTHON = (torch.tensor, torch.as_tensor, torch.from_numpy)


class _SaysCuda(TorchFunctionMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.is_cuda.__get__:  # a new object each time it is read
            return True
        if func in READS_ALL or (func in FROM_PYTHON and not isinstance(args[0], Tensor)):
            self.waits.append(func.__name__)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in DEPENDS_ON_VALUES or _has_unknown_size(func, args, kwargs):
            self.waits.append(str(func))
        return func(*args, **kwargs)


def _has_unknown_size(func: Any, args: Any, kwargs: Any) -> bool:
    if func is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    if func.overloadpacket is aten.index:
        return _has_mask(args[1])
    if func.overloadpacket in (aten.index_put, aten.index_put_):
        return _has_mask(args[1]) and args[2].numel() > 1  # one number is filled in without asking where
    return False


def _has_mask(indices: list[Tensor | None]) -> bool:
    return any(i is not None and i.dtype == torch.bool for i in indices)


def waits_of(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of `call`, and the operations in it that the host would wait for."""
    waits: list[str] = []
    with _SaysCuda(waits), _Operations(waits):
        result = call()
    return result, waits
