"""What kernels ask of a GPU."""

from __future__ import annotations

import functools
import sys

import torch


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Or later: these load tiles through tensor descriptors, and start a kernel before the one it
    waits for has ended.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have: 227 KiB on a Hopper, 163 on an A100, 99 on consumers' cards."""
    if device.type != "cuda":
        return sys.maxsize
    from triton.runtime import driver

    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])
