"""How much of a card this process may take, and how much of that is left.

`bound` is what several runs on one card need: torch then gives back what it keeps in reserve before
it asks for more than its share. Not covered: what CUDA itself and other libraries take, about half
a gigabyte a process.
"""

from __future__ import annotations

import torch


def bound(device: torch.device, limit: int) -> None:
    """Let torch reserve no more than `limit` bytes on a card; nothing on a CPU."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)


def unreserved(device: torch.device) -> int:
    """Bytes of a card that torch may still reserve: free, and within this process' share."""
    free, total = torch.cuda.mem_get_info(device)
    share = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return max(0, min(free, share - torch.cuda.memory_reserved(device)))
