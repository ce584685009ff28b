"""Dropout of LoRA adapters, switched on around the passes that train and nowhere else.

The masks follow from the seed given and the order of the passes: a resumed run draws the same ones,
whatever was sampled or evaluated in between, and gradient checkpointing recomputes a layer with the
masks of its first pass (torch.utils.checkpoint puts the generators back). Another cut into
micro-batches draws others. Not covered: dropout of the model itself, which is never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equipoise.policy.logprobs import check_packing
from equipoise.policy.model import Policy, adapter_dropouts


@contextmanager
def adapter_dropout(policy: Policy, seed: int) -> Iterator[None]:
    """Drop inside, with masks from `seed`; generators and modules are left as they were."""
    dropouts = adapter_dropouts(policy.model)
    if not dropouts:
        yield
        return
    # compares hidden states when it is first asked for, which must not be inside
    check_packing(policy)
    device = policy.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for module in dropouts:
            module.train()
        try:
            yield
        finally:
            for module in dropouts:
                module.eval()
