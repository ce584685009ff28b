"""Several processes of one machine under `torchrun`: each samples and trains its share, all hold the same weights.

`assign` runs on the gathered batch on every rank, so the numbers are those of one process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def start() -> None:
    """Join the other processes, where `torchrun` started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


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


def gather(value: T) -> list[T]:
    """The value of every rank, in their order."""
    if count() == 1:
        return [value]
    out: list[Any] = [None] * count()
    dist.all_gather_object(out, value)
    return out


@torch.no_grad()
def sum_gradients(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Add up the gradients of all ranks; a rank that had nothing to train counts as 0."""
    if count() == 1:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().float() for p in parameters])
    dist.all_reduce(flat)
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = g.view_as(p).to(p.dtype)


def barrier() -> None:
    if count() > 1:
        dist.barrier()
