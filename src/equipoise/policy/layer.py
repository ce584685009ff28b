"""What a decoder layer is made of, and the order in which it computes:
the one description that the trainer and all samplers read.

`describe` reads it off a transformers model, of the families in `policy.architectures`. `run` is
the layer itself. Its callers bring what differs between them: the residual stream (how sums, norms
and the gate are computed and what is kept) and attention with its cache. Modules are held, never
their weights, which change and, where ranks share them, are whole for the moment only. Not covered:
which families there are (`policy.architectures`), and attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.kernels.plain_decode import Activation
from equipoise.policy.architectures import ARCHITECTURES, Architecture
from equipoise.policy.projections import Projections

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# The other types depend on how long the sequence is, not on the position alone.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(eq=False, slots=True)
class NormModule:
    """x̂·(offset + weight), x̂ = x/√(mean x² + eps)."""

    module: Any
    eps: float
    offset: float

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.module.weight
        return weight


@dataclass(eq=False, slots=True)
class Layer:
    """One decoder layer: x += o(attention(qkv(norm(x)))), then x += down(gate·up of norm(x)).

    `scale` multiplies the scores; `window` is how many positions, its own included,
    a token sees (None: all).
    """

    index: int
    module: Any
    input_norm: NormModule
    qkv: Projections
    q_norm: NormModule | None  # of each head
    k_norm: NormModule | None
    o: Projections
    mlp_norm: NormModule
    gate_up: Projections
    down: Projections
    head_dim: int
    kv_heads: int
    scale: float
    window: int | None
    rotates: bool

    @property
    def projections(self) -> tuple[Projections, ...]:
        return self.qkv, self.o, self.gate_up, self.down


@dataclass(eq=False, slots=True)
class Parts:
    """A decoder taken apart: what comes before its layers, the layers, and what comes after them."""

    embedding: Any
    embedding_scale: float | None
    rotary: Any
    layers: list[Layer]
    norm: NormModule
    head: Projections
    activation: Activation

    def embed(self, tokens: Tensor) -> Tensor:
        """[U] → [U, d]; a scale is rounded to the embeddings' precision first."""
        x: Tensor = self.embedding(tokens)
        if self.embedding_scale is not None:
            x = x * float(torch.tensor(self.embedding_scale, dtype=x.dtype))
        return x

    def rope(self, like: Tensor, positions: Tensor) -> Rope:
        """For positions [U], in the precision of `like`."""
        half = self.layers[0].head_dim // 2
        cos, sin = self.rotary(like, positions[None])
        return Rope(cos[0, :, :half], sin[0, :, :half])


@dataclass(eq=False, slots=True)
class Rope:
    """The RoPE table of some positions: cos, sin [U, D/2]. The halves of a head rotate together."""

    cos: Tensor
    sin: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.cos, self.sin))

    def map(self, change: Callable[[Tensor], Tensor]) -> Rope:
        return Rope(change(self.cos), change(self.sin))

    def without_rotation(self) -> Rope:
        """The table of a layer that does not rotate: multiplying by it changes no bit."""
        return Rope(torch.ones_like(self.cos), torch.zeros_like(self.sin))


def is_described(core: Any) -> bool:
    """Whether `describe` covers this model: its family, and every setting of its arithmetic."""
    config = core.config
    return (
        type(core).__name__ in ARCHITECTURES
        and config.hidden_act in ACTIVATIONS
        and config.rope_parameters.get("rope_type", "default") in ROPE_TYPES
        and config.rope_parameters.get("partial_rotary_factor", 1.0) == 1.0
        and not getattr(config, "use_bidirectional_attention", False)
    )


def describe(core: Any) -> Parts:
    """Read the description off a transformers model; configurations are asked once."""
    family = ARCHITECTURES[type(core).__name__]
    base, config = core.model, core.config
    kv_heads = config.num_key_value_heads
    windows = _windows(config, len(base.layers))
    table = base.embed_tokens
    # transformers 5.20 and later scale inside the embedding's own module.
    scales = family.scales_embeddings and not hasattr(table, "embed_scale")
    return Parts(
        embedding=table,
        embedding_scale=config.hidden_size**0.5 if scales else None,
        rotary=base.rotary_emb,
        layers=[
            _layer(family, i, module, kv_heads, windows[i]) for i, module in enumerate(base.layers)
        ],
        norm=final_norm(core),
        head=Projections((core.lm_head,)),
        activation=ACTIVATIONS[config.hidden_act],
    )


def final_norm(core: Any) -> NormModule:
    """The norm between the last layer and the head."""
    return _norm(ARCHITECTURES[type(core).__name__], core.model.norm)


def _layer(
    family: Architecture, index: int, module: Any, kv_heads: int, window: int | None
) -> Layer:
    attention, mlp = module.self_attn, module.mlp
    has_head_norms = hasattr(attention, "q_norm")
    return Layer(
        index=index,
        module=module,
        input_norm=_norm(family, module.input_layernorm),
        qkv=Projections(family.qkv(attention)),
        q_norm=_norm(family, attention.q_norm) if has_head_norms else None,
        k_norm=_norm(family, attention.k_norm) if has_head_norms else None,
        o=Projections((attention.o_proj,)),
        mlp_norm=_norm(family, module.post_attention_layernorm),
        gate_up=Projections(family.gate_up(mlp)),
        down=Projections((mlp.down_proj,)),
        head_dim=attention.head_dim,
        kv_heads=kv_heads,
        scale=attention.scaling,
        window=window,
        rotates=family.rotates(attention),
    )


def _norm(family: Architecture, module: Any) -> NormModule:
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return NormModule(module, eps, family.norm_offset)


def _windows(config: Any, layers: int) -> list[int | None]:
    size = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return [size if kind == "sliding_attention" else None for kind in kinds]


class Stream(Protocol):
    """The residual stream [U, d] on its way through the layers.
    What is added may be added later, with the next norm, if that is quicker; norms and gate give
    what a projection reads.
    """

    def norm(self, norm: Any) -> Any: ...
    def add(self, projection: Any, y: Any) -> None: ...
    def gated(self, gate_up: Tensor) -> Any: ...


class LayerWeights(NamedTuple):
    """A layer's weights for a sampler or a kernel; names and order of use are `Layer`'s."""

    input_norm: Any
    qkv: Any
    q_norm: Any | None
    k_norm: Any | None
    o: Any
    mlp_norm: Any
    gate_up: Any
    down: Any


def run(layer: Layer | LayerWeights, stream: Stream, attend: Callable[[Tensor], Tensor]) -> None:
    """The stream through one layer; `attend`: [U, (H + 2 Hk)·D] → [U, H·D] with norms and RoPE."""
    # Nothing is held by a name here: what the next step has read may go.
    stream.add(layer.o, attend(layer.qkv(stream.norm(layer.input_norm))))
    stream.add(layer.down, stream.gated(layer.gate_up(stream.norm(layer.mlp_norm))))
