"""Whether a GPU is a Hopper or later: these load tiles through tensor descriptors, and start a
kernel before the one it waits for has ended.
"""

from __future__ import annotations

import functools

import torch


@functools.cache
def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
