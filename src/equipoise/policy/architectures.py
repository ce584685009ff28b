"""The model families that training and all samplers compute themselves: one entry each.

An entry says where a family departs from Llama; whatever it does not say is Llama's. What an entry
can say is what `policy.layer` can compute. docs/architectures.md shows how one is added. Models
that are not here still train and sample, through transformers. Not covered: Gemma 2 and 3 (norms
behind the blocks, capped scores, two RoPE tables), mixtures of experts, and RoPE tables that depend
on the length of the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """The defaults are Llama's."""

    norm_offset: float = 0.0
    """What is added to a norm's weight; with one, the norm is rounded once,
    after the product with the weight.
    """
    scales_embeddings: bool = False
    """Whether embeddings are multiplied by √d."""
    rotates: Callable[[Any], bool] = lambda attention: True
    """Whether a layer, given its attention module, applies RoPE."""
    qkv: Callable[[Any], tuple[Any, ...]] = lambda a: (a.q_proj, a.k_proj, a.v_proj)
    """Of the attention module, the projections to queries, keys and values;
    one where they are one matrix.
    """
    gate_up: Callable[[Any], tuple[Any, ...]] = lambda mlp: (mlp.gate_proj, mlp.up_proj)
    """Of the MLP, the projections to gate and up; one where they are one matrix."""


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(),
    "MistralForCausalLM": Architecture(),
    "Qwen2ForCausalLM": Architecture(),
    "Qwen3ForCausalLM": Architecture(),
    "GemmaForCausalLM": Architecture(norm_offset=1.0, scales_embeddings=True),
    # Every fourth layer has no positions.
    "SmolLM3ForCausalLM": Architecture(rotates=lambda attention: bool(attention.use_rope)),
    "Phi3ForCausalLM": Architecture(
        qkv=lambda attention: (attention.qkv_proj,), gate_up=lambda mlp: (mlp.gate_up_proj,)
    ),
}
"""By the name of transformers' class."""
