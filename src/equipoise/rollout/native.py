"""The native sampler: a decode loop of its own over the weights of a Llama-like transformers model.

What responses have in common is computed once: the prompt, and after it every prefix that several
responses drew alike (responses of the embedded model share more than half of their tokens, those of
a large model their first few).
The cache is reserved ahead and written in place; finished responses leave the batch. The weights
are copied afresh at every call into the layout the loop wants (projections that share an input side
by side, input-major), so training in place between calls needs no notice, at the price of a second
copy of the model while sampling.
Works for the models of `policy.architectures`; everything else goes to `fallback`.

Measured on two ARM cores: scaled-dot-product attention over a copied prompt beats separate products
over a shared one (2.1 ms against 22 ms a layer at 512 rows); a product with a transposed weight
costs 75 µs more per call than with a straight one; a norm in five operations instead of eight,
rotation as one complex product and residuals inside the product (addmm) halve the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.plain_layers import ACTIVATIONS
from equipoise.kernels.uniform import Key
from equipoise.policy import Policy, decoder
from equipoise.policy.layer import Layer, LayerWeights, NormModule, Parts, describe, run
from equipoise.policy.projections import Projections
from equipoise.rollout.batch import DecodeBatch, Request, collect, request
from equipoise.rollout.rollouts import Finished, Rollouts

MEMORY = 4 << 30  # bytes
GROWTH = 32  # columns the cache grows by, or a quarter of its width if that is more
DROP = 0.1  # share of finished rows at which they are dropped


class NativeSampler:
    """`rows`: the most responses decoded together (fewer if their cache and logits would exceed
    MEMORY); `stopped`: set, it ends a call with `Stopped`.
    """

    def __init__(self, policy: Policy, *, rows: int = 2048, stopped: Event | None = None) -> None:
        self.policy = policy
        self.rows = rows
        self.stopped = stopped

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        keys: Sequence[Key] | None = None,
        step: int = 0,
        finished: Finished | None = None,
    ) -> Rollouts:
        asked = request(self.policy, prompts, n, params, keys, step, finished)
        asked.stopped = self.stopped
        weights = _weights(self.policy.core)
        # Rows are decoded in rounds that fit into memory; a draw depends on its own keys alone, so
        # the rounds change nothing but the time.
        size = self._rows_that_fit(asked)
        batches = [
            _decode(self.policy, weights, asked, range(start, min(start + size, asked.rows)))
            for start in range(0, asked.rows, size)
        ]
        return collect(asked, batches)

    def _rows_that_fit(self, asked: Request) -> int:
        config = self.policy.core.config
        positions = max(map(len, asked.prompts)) + int(asked.limit.max())
        head_dim: int = self.policy.core.model.layers[0].self_attn.head_dim
        per_position: int = (
            2
            * config.num_hidden_layers
            * config.num_key_value_heads
            * head_dim
            * self.policy.dtype.itemsize
        )
        # logits, their softmax, its sum and one to spare, in float32
        probabilities: int = 4 * 4 * config.vocab_size
        return max(1, min(self.rows, MEMORY // (positions * per_position + probabilities)))


class _Linear(NamedTuple):
    """weight [in, out], bias [out] or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return (
            torch.mm(x, self.weight)
            if self.bias is None
            else torch.addmm(self.bias, x, self.weight)
        )

    def add_to_(self, residual: Tensor, x: Tensor) -> None:
        residual.addmm_(x, self.weight)
        if self.bias is not None:
            residual.add_(self.bias)


class _Norm(NamedTuple):
    """weight None: it stands in the product that follows, in float32, where that costs no accuracy."""

    weight: Tensor | None
    eps: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight is not None:
            return F.rms_norm(x, x.shape[-1:], self.weight, float(self.eps))
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps, length, length, value=1 / x.shape[-1]).rsqrt_()


class _Weights(NamedTuple):
    """And what a step would otherwise ask the model's configuration for, which is slow to answer."""

    parts: Parts
    layers: list[LayerWeights]
    norm: _Norm
    head: _Linear


def _weights(core: Any) -> _Weights:
    """A copy of the weights for decoding. The two halves that rotate together stand side by side in
    every head, so that rotation is a complex product; queries and keys are permuted alike, so their
    products stay the same.
    """
    parts = describe(core)
    pairs = _pairs(parts.layers[0].head_dim, core.device)
    norm, scale = _norm(parts.norm)
    layers = [_layer_weights(layer, pairs) for layer in parts.layers]
    return _Weights(parts, layers, norm, _linear(parts.head, scale=scale))


def _layer_weights(layer: Layer, pairs: Tensor) -> LayerWeights:
    input_norm, input_scale = _norm(layer.input_norm)
    mlp_norm, mlp_scale = _norm(layer.mlp_norm)
    qkv = _linear(layer.qkv, scale=input_scale, order=_head_order(layer, pairs))
    return LayerWeights(
        input_norm=input_norm,
        qkv=qkv,
        q_norm=_permuted(layer.q_norm, pairs),
        k_norm=_permuted(layer.k_norm, pairs),
        o=_linear(layer.o),
        mlp_norm=mlp_norm,
        gate_up=_linear(layer.gate_up, scale=mlp_scale),
        down=_linear(layer.down),
    )


def _pairs(head_dim: int, device: torch.device) -> Tensor:
    """0, D/2, 1, D/2 + 1, …: the order in which rotating partners are neighbours."""
    return torch.arange(head_dim, device=device).view(2, -1).t().reshape(-1)


def _head_order(layer: Layer, pairs: Tensor) -> Tensor:
    """The order of the rows of qkv in which every head of queries and keys has its entries in the
    order of `pairs`; values stay as they are.
    """
    rows = torch.arange(sum(map(len, layer.qkv.weights)), device=pairs.device).view(
        -1, layer.head_dim
    )
    rotated = len(rows) - layer.kv_heads
    return torch.cat((rows[:rotated, pairs], rows[rotated:])).flatten()


def _norm(norm: NormModule) -> tuple[_Norm, Tensor | None]:
    """The norm, and the scale that the product after it has to take over."""
    weight = norm.offset + norm.weight if norm.offset else norm.weight
    eps = torch.tensor(norm.eps, device=weight.device)
    # Folded into the next product it saves a pass over x; in bfloat16 folding would round those
    # weights once more.
    if weight.dtype == torch.float32:
        return _Norm(None, eps), weight
    return _Norm(weight, eps), None


def _permuted(norm: NormModule | None, pairs: Tensor) -> _Norm | None:
    return None if norm is None else _Norm(norm.weight[pairs], torch.tensor(norm.eps))


def _linear(
    projections: Projections, *, scale: Tensor | None = None, order: Tensor | None = None
) -> _Linear:
    """Projections side by side as [in, out], their outputs in the order given, their inputs scaled."""
    weights, biases = projections.merged_weights(), projections.biases
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    bias = None if biases is None else torch.cat(biases)
    if order is not None:
        weight = weight[order]
        bias = None if bias is None else bias[order]
    out = weight.new_empty(weight.shape[1], weight.shape[0]).copy_(weight.t())
    if scale is not None:
        out *= scale[:, None]
    return _Linear(out, bias)


class _Cache:
    """Keys and values of every layer, [rows, 2, Hk, columns, D]; `height` rows and `width` columns
    of them are filled. The others are reserved but not touched, and cost nothing.
    """

    def __init__(self, layers: list[Tensor], rows: int) -> None:
        self.layers = layers
        self.rows = rows
        self.height, self.width = layers[0].shape[0], layers[0].shape[3]
        self._reserve()

    def _reserve(self) -> None:
        columns = self.width + max(GROWTH, self.width // 4)
        for i, old in enumerate(self.layers):
            new = old.new_empty(self.rows, *old.shape[1:3], columns, old.shape[4])
            new[: self.height, :, :, : self.width] = old[: self.height, :, :, : self.width]
            self.layers[i] = new

    def open_column(self) -> None:
        if self.width == self.layers[0].shape[3]:
            self._reserve()
        self.width += 1

    def rearrange(self, source: Tensor) -> None:
        """Row i becomes a copy of row source[i]; rows that stay are not copied. No row is
        overwritten that is a source of another one: `_fork` and `_fill_gaps` put rows into places
        that nothing goes on from.
        """
        self.height = len(source)
        moved = (source != torch.arange(self.height, device=source.device)).nonzero()[:, 0]
        if len(moved):
            origin = source[moved]
            for layer in self.layers:
                filled = layer[:, :, :, : self.width]
                filled.index_copy_(0, moved, filled.index_select(0, origin))


def _decode(policy: Policy, weights: _Weights, asked: Request, rows: range) -> DecodeBatch:
    """Decode responses `rows`. A row of the model's batch is a distinct prefix: at first one for
    each prompt, then, as responses part, one for each of the ways they went.
    """
    core = policy.core
    batch = DecodeBatch(asked, rows)
    device = batch.limit.device
    first = rows.start // asked.n
    prompts = asked.prompts[first : (rows.stop - 1) // asked.n + 1]
    length = torch.tensor([len(p) for p in prompts], device=device)
    x, layers, visible = _prefill(core, weights.parts, prompts, length, batch.longest)
    x, cache = weights.norm(x), _Cache(layers, len(rows))
    # The row each response stands in; None once there is one for each,
    # in the order of the responses.
    row: Tensor | None = torch.arange(rows.start, rows.stop, device=device) // asked.n - first

    positions = length
    table = torch.arange(int(length.max()) + batch.longest, device=device)
    # Once for all positions: rows of different lengths take theirs from this table at every step.
    rope = torch.complex(*weights.parts.rope(x, table).map(Tensor.float))
    while True:
        # A row per distinct prefix: responses that are still alike share one forward pass.
        logits = weights.head(x)
        tokens = batch.draw(logits if row is None else logits[row])
        left = batch.left()
        if left == 0:
            return batch
        finished = len(batch.slots) - left
        source = None
        if row is not None:
            if finished:
                keep = (~batch.finished).nonzero()[:, 0]
                batch.keep(keep)
                row, tokens = row[keep], tokens[keep]
            source, row, tokens = _fork(row, tokens, logits.shape[1])
            # Every response has a row of its own from here on: no more looking for equal prefixes.
            if len(source) == len(row):
                batch.keep(row.argsort())
                row = None
        # Dropping rows copies part of the cache: worth it only for a good share of them at once.
        elif finished >= DROP * len(tokens):
            source = _fill_gaps(batch.finished)
            batch.keep(source)
            tokens = tokens[source]
        if source is not None:
            cache.rearrange(source)
            positions = positions[source]
            visible = None if visible is None else visible[source]
        cache.open_column()
        x = _step(weights, cache, tokens, rope[positions], visible)
        positions = positions + 1


def _fork(row: Tensor, tokens: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Responses in `row` [r] drew `tokens` [r]: the distinct pairs are the u new rows. Returns the
    old row each comes from [u], the new row of each response [r] and the token of each new row [u].
    An old row's first continuation stays where it was if that is below u; all others go where
    nothing stays.
    """
    pairs, response = torch.unique(row * vocabulary + tokens, return_inverse=True)
    parent, u = pairs // vocabulary, len(pairs)
    stays = parent < u
    stays[1:] &= parent[1:] != parent[:-1]
    free = torch.ones(u, dtype=torch.bool, device=row.device)
    free[parent[stays]] = False
    place = parent.clone()
    place[~stays] = free.nonzero()[:, 0]
    source, token = torch.empty_like(parent), torch.empty_like(parent)
    source[place] = parent
    token[place] = pairs % vocabulary
    return source, place[response], token


def _fill_gaps(finished: Tensor) -> Tensor:
    """The unfinished rows [k], with those behind the first k put into the places of finished ones
    before it.
    """
    left = (~finished).nonzero()[:, 0]
    k = len(left)
    keep = torch.arange(k, device=finished.device)
    keep[finished[:k]] = left[left >= k]
    return keep


def _prefill(
    core: Any, parts: Parts, prompts: list[list[int]], length: Tensor, longest: int
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Run the P prompts, flush right. Returns the last hidden states [P, d],
    keys and values of every layer
    [P, 2, Hk, width, D] and, if lengths differ, what to add to the scores [P, 1, 1, width +
    longest]: −∞ left of shorter prompts, 0 elsewhere.
    """
    device, width = length.device, int(length.max())
    column = torch.arange(width, device=device)
    inside = column >= width - length[:, None]
    inputs = torch.zeros(inside.shape, dtype=torch.int64, device=device)
    inputs[inside] = torch.tensor([t for p in prompts for t in p], device=device)
    positions = (column - (width - length[:, None])).clamp_min(0)
    even = bool(inside.all())
    masks = {w: _prefill_mask(inside, w) for w in {layer.window for layer in parts.layers}}
    pairs = _pairs(parts.layers[0].head_dim, device)
    layers: list[Tensor] = []

    def attend(layer: Layer, qkv: Tensor) -> Tensor:
        q, k, v = decoder.heads_first(qkv.view(*inside.shape, *qkv.shape[1:]), layer.kv_heads)
        layers.append(torch.stack((k[..., pairs], v), 1))
        out = decoder.causal_attention(q, k, v, masks[layer.window], layer.scale)
        return out.transpose(1, 2).flatten(0, 1)

    x = decoder.hidden_states(core, inputs.view(-1), positions.view(-1), attend).view(
        *inside.shape, -1
    )[:, -1]
    visible = None
    if not even:
        visible = torch.zeros(len(prompts), 1, 1, width + longest, device=device, dtype=x.dtype)
        visible[..., :width].masked_fill_(~inside[:, None, None], -torch.inf)
    return x, layers, visible


def _prefill_mask(inside: Tensor, window: int | None) -> Tensor | None:
    """Who sees whom [P, 1, width, width]; None: all that came before."""
    width = inside.shape[1]
    mask = decoder.window_mask(width, window, inside.device)
    if inside.all():
        return mask
    column = torch.arange(width, device=inside.device)
    visible = inside[:, None, None] & (column[:, None] >= column if mask is None else mask)
    return visible | (column[:, None] == column)  # an empty column sees itself, to stay finite


def _step(
    weights: _Weights, cache: _Cache, tokens: Tensor, rope: Tensor, visible: Tensor | None
) -> Tensor:
    """Feed one token a row into the cache's newest column; returns the normed hidden states [r, d]."""
    parts = weights.parts
    stream = _CachedStream(parts.embed(tokens), ACTIVATIONS[parts.activation])
    rope = rope[:, None]
    for layer, own, whole in zip(parts.layers, weights.layers, cache.layers, strict=True):
        seen = slice(0 if layer.window is None else max(0, cache.width - layer.window), cache.width)
        kv, mask = whole[: len(tokens), :, :, seen], None if visible is None else visible[..., seen]
        run(own, stream, functools.partial(_attend, layer, own, kv, mask, rope))
    return weights.norm(stream.x)


class _CachedStream:
    """The residual stream, changed in place: a product and its sum are one call."""

    def __init__(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> None:
        self.x, self.activation = x, activation

    def norm(self, norm: _Norm) -> Tensor:
        return norm(self.x)

    def add(self, projection: _Linear, y: Tensor) -> None:
        projection.add_to_(self.x, y)

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return self.activation(gate).mul_(up)


def _attend(
    layer: Layer, own: LayerWeights, kv: Tensor, mask: Tensor | None, rope: Tensor, qkv: Tensor
) -> Tensor:
    """Put keys and values into the last column of kv [r, 2, Hk, columns, D],
    and attend to all its columns.
    """
    kv_heads, head_dim = layer.kv_heads, layer.head_dim
    r = len(qkv)
    qkv = qkv.view(r, -1, head_dim)
    heads = qkv.shape[1] - 2 * kv_heads
    if own.q_norm is not None and own.k_norm is not None:
        qkv[:, :heads] = own.q_norm(qkv[:, :heads])
        qkv[:, heads:-kv_heads] = own.k_norm(qkv[:, heads:-kv_heads])
    if layer.rotates:
        _rotate_(qkv, heads + kv_heads, rope)
    # The new column is the last one, for every row alike: prompts lie flush right.
    kv.select(3, -1).copy_(qkv[:, heads:].view(r, 2, kv_heads, head_dim))
    keys, values = kv.unbind(1)
    o = F.scaled_dot_product_attention(
        qkv[:, :heads, None],
        keys,
        values,
        attn_mask=mask,
        scale=layer.scale,
        enable_gqa=heads != kv_heads,
    )
    return o.view(r, -1)


def _rotate_(qkv: Tensor, heads: int, rope: Tensor) -> None:
    """Rotate the first `heads` heads of qkv [r, H, D] by `rope` [r, 1, D/2] complex, in place."""
    pairs = torch.view_as_complex(qkv.float().view(*qkv.shape[:2], -1, 2)[:, :heads])
    pairs.mul_(rope)
    if qkv.dtype != torch.float32:
        qkv[:, :heads] = torch.view_as_real(pairs).flatten(-2)
