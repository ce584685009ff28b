"""Several processes under `torchrun`: each samples and trains its share of the same weights.

`assign` runs on the gathered batch on every rank, so the numbers are those of one process.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
BUCKET = 1 << 23  # entries: 32 MiB


def expected() -> int:
    """How many processes `torchrun` started, also before they have joined."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start() -> None:
    """Join the other processes, where `torchrun` started several."""
    if expected() > 1 and not dist.is_initialized():
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(
                int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            )
        # Batches and verdicts are gathered on the CPU, gradients summed where they lie: both
        # backends.
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def me() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share(items: Sequence[T]) -> Sequence[T]:
    """This rank's contiguous part, so that the parts of all ranks in order are the whole."""
    start, end = (len(items) * k // count() for k in (me(), me() + 1))
    return items[start:end]


def another_group() -> dist.ProcessGroup | None:
    """For a second thread that gathers: in one group, two threads would take each other's turns.
    All ranks take part; None for one process.
    """
    return dist.new_group(backend="gloo") if count() > 1 else None


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """The value of every rank, in their order; tensors on a GPU come to this rank's own."""
    if count() == 1:
        return [value]
    written = io.BytesIO()
    torch.save(value, written)
    out: list[Any] = [None] * count()
    dist.all_gather_object(out, written.getvalue(), group)
    return [torch.load(io.BytesIO(part), map_location=_here, weights_only=False) for part in out]


def _here(storage: Any, location: str) -> Any:
    return storage.cuda() if location.startswith("cuda") else storage


@torch.no_grad()
def sum_gradients(parameters: Sequence[Tensor]) -> None:
    """Add up the float32 gradients of all ranks; a rank that had nothing to train counts as 0.

    Small ones go together, up to BUCKET entries at a time, large ones where they lie:
    no second copy of them all.
    """
    if count() == 1:
        return
    bucket: list[Tensor] = []
    for p in parameters:
        # Every rank must take part in every sum, or the others wait for it for ever.
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad = p.grad.contiguous()
        if sum(g.numel() for g in bucket) + p.numel() > BUCKET:
            _sum_in_place(bucket)
            bucket = []
        bucket.append(p.grad)
    _sum_in_place(bucket)


def _sum_in_place(bucket: list[Tensor]) -> None:
    if len(bucket) == 1:
        dist.all_reduce(bucket[0].view(-1))
    elif bucket:
        flat = torch.cat([g.view(-1) for g in bucket])
        dist.all_reduce(flat)
        parts = flat.split([g.numel() for g in bucket])
        torch._foreach_copy_([g.view(-1) for g in bucket], list(parts))


def norm_of_all(norm: Tensor) -> Tensor:
    """Of a vector whose parts the ranks hold, from the norm of this rank's."""
    square = norm.square()
    dist.all_reduce(square)
    return square.sqrt()


def barrier() -> None:
    if count() > 1:
        dist.barrier()
