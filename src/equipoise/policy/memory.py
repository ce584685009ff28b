"""How much of a card this process means to take, and how much of that is left.

The limit is kept by what plans: the passes of training and the sampler's cache, before which torch
gives back the reserve that would not fit beside it. Within a pass torch is not held to the limit:
where it had to give memory back there, a step took 1.7 times as long.
Not covered: what fragments within a pass, and what CUDA and other libraries take.
"""

from __future__ import annotations

import torch

_LIMITS: dict[torch.device, int] = {}
_ASLEEP: dict[torch.device, int] = {}


def limit(device: torch.device, most: int | None) -> None:
    """Plan for `most` bytes on a card from now on; None for all that is free. Nothing on a CPU."""
    _LIMITS.pop(device, None)
    if device.type == "cuda" and most is not None:
        _LIMITS[device] = most


def asleep(device: torch.device, size: int) -> None:
    """`size` bytes that torch counts as allocated are not on the card from now on: an engine that
    sleeps has given them back behind torch's back. 0 once it is awake.
    """
    _ASLEEP[device] = size


def taken(device: torch.device) -> int:
    """Bytes of a card that this process holds; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.memory_allocated(device) - _ASLEEP.get(device, 0)


def free(device: torch.device) -> int:
    """Bytes of a card that nothing is allocated in: free, or in torch's reserve."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def room(device: torch.device) -> int:
    """Bytes that may be allocated beyond what is, within the limit; below 0 past it."""
    if device not in _LIMITS:
        return free(device)
    return min(free(device), _LIMITS[device] - taken(device))


def fits_beside_reserve(device: torch.device, size: int) -> bool:
    """Whether `size` bytes are free on the card, and within the limit beside all that torch holds."""
    held = torch.cuda.memory_reserved(device)
    within = device not in _LIMITS or held + size <= _LIMITS[device]
    return within and size <= torch.cuda.mem_get_info(device)[0]
