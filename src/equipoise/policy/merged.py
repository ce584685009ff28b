"""A model's weights as a plain one has them: adapters merged, 4-bit layers made whole.

Not covered: weights that ranks share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from equipoise.policy.quantized import QuantizedLinear

BASE = ".base_layer."  # where peft keeps the layer that an adapter hangs on


def merged_weight(module: Any) -> Tensor:
    """[out, in] of a linear layer; with a LoRA adapter of peft, a copy with it added."""
    weight: Tensor = module.weight
    for adapter in getattr(module, "active_adapters", ()):
        if adapter in module.lora_A and not module.disable_adapters:
            change = module.get_delta_weight(adapter)  # in float32, which peft keeps adapters in
            weight = (weight.float() + change.float()).to(weight.dtype)
    return weight


@torch.no_grad()
def plain_weights(core: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its name in a checkpoint, made as it is asked for. A head that shares the
    embedding's weights comes under its own name as well.
    """
    for name, tensor in core.state_dict().items():
        layer, adapted, leaf = name.partition(BASE)
        if ".lora_" in name:
            continue
        if adapted and leaf == "weight":
            yield f"{layer}.weight", merged_weight(core.get_submodule(layer))
        else:
            yield name.replace(BASE, "."), tensor
    for name, module in core.named_modules():
        if isinstance(module, QuantizedLinear):  # its weight is no entry of the state_dict
            layer = f"{name}.".removesuffix(BASE) if f"{name}.".endswith(BASE) else name
            yield f"{layer}.weight", merged_weight(core.get_submodule(layer))
