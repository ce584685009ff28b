"""The native sampler: a decode loop of its own over the weights of a Llama-like transformers model.

A prompt is computed once and its keys and values are shared out to its responses; the cache is allocated ahead and
written in place; finished responses leave the batch. Weights are read afresh at every call (projections that share an
input are fused into one matrix), so training in place between calls needs no notice.
Works for the models of `policy.decoder`; everything else goes to `fallback`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.policy import Policy, decoder
from equipoise.rollout.batch import Batch, Request, collect, request
from equipoise.rollout.rollouts import Key, Rollouts, SamplingParams

CACHE_BYTES = 4 << 30
ROOM = 128  # positions the cache starts with; doubled when they are used up


class NativeSampler:
    """`rows`: the most responses decoded together (fewer if their cache would exceed CACHE_BYTES)."""

    def __init__(self, policy: Policy, *, rows: int = 512) -> None:
        self.policy = policy
        self.rows = rows

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        keys: Sequence[Key] | None = None,
        step: int = 0,
    ) -> Rollouts:
        asked = request(self.policy, prompts, n, params, keys, step)
        weights = _weights(self.policy)
        size = self._rows_that_fit(asked)
        batches = [
            _decode(self.policy, weights, asked, range(start, min(start + size, asked.rows)))
            for start in range(0, asked.rows, size)
        ]
        return collect(asked, batches)

    def _rows_that_fit(self, asked: Request) -> int:
        config = self.policy.core.config
        positions = max(map(len, asked.prompts)) + int(asked.limit.max())
        head_dim = self.policy.core.model.layers[0].self_attn.head_dim
        per_position = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * self.policy.dtype.itemsize
        return max(1, min(self.rows, CACHE_BYTES // (positions * per_position)))


class _Layer(NamedTuple):
    """Projections as [in, out] with their bias or None, and the norms' modules."""

    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    before_attention: Any
    before_mlp: Any
    q_norm: Any
    k_norm: Any


def _weights(policy: Policy) -> list[_Layer]:
    layers = []
    for layer in policy.core.model.layers:
        a, m = layer.self_attn, layer.mlp
        layers.append(
            _Layer(
                *_fused(a.q_proj, a.k_proj, a.v_proj),
                *_fused(a.o_proj),
                *_fused(m.gate_proj, m.up_proj),
                *_fused(m.down_proj),
                layer.input_layernorm,
                layer.post_attention_layernorm,
                getattr(a, "q_norm", None),
                getattr(a, "k_norm", None),
            )
        )
    return layers


def _fused(*projections: Any) -> tuple[Tensor, Tensor | None]:
    weights = [_merged_weight(p) for p in projections]
    biases = [p.bias for p in projections]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    return weight.t(), None if biases[0] is None else torch.cat(biases)


def _merged_weight(projection: Any) -> Tensor:
    weight = projection.weight
    for adapter in getattr(projection, "active_adapters", ()):  # a LoRA layer of peft
        if adapter in projection.lora_A and not projection.disable_adapters:
            weight = weight + projection.get_delta_weight(adapter)
    return weight


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # F.linear goes through oneDNN on the CPU, whose set-up costs more than a small product.
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


class _Cache:
    """Keys and values of every layer, [r, Hk, capacity, D]; columns 0 … width−1 are filled."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], longest: int) -> None:
        self.keys, self.values = keys, values
        self.width = keys[0].shape[2]
        self.longest = longest
        self._resize()

    def _resize(self) -> None:
        capacity = min(self.longest, max(2 * self.width, self.width + ROOM))
        for store in (self.keys, self.values):
            for i, old in enumerate(store):
                new = old.new_empty(*old.shape[:2], capacity, old.shape[3])
                new[:, :, : self.width] = old[:, :, : self.width]
                store[i] = new

    def advance(self) -> None:
        """Open the next column."""
        if self.width == self.keys[0].shape[2]:
            self._resize()
        self.width += 1

    def keep(self, rows: Tensor) -> None:
        for store in (self.keys, self.values):
            for i, old in enumerate(store):
                new = old[: len(rows)]
                new[:, :, : self.width] = old[:, :, : self.width].index_select(0, rows)
                store[i] = new


def _decode(policy: Policy, weights: list[_Layer], asked: Request, rows: range) -> Batch:
    core = policy.core
    batch = Batch(asked, rows)
    device = batch.keys.device
    first = rows.start // asked.n
    prompts = asked.prompts[first : (rows.stop - 1) // asked.n + 1]
    prompt = torch.arange(rows.start, rows.stop, device=device) // asked.n - first
    length = torch.tensor([len(p) for p in prompts], device=device)
    x, cache, hidden_columns = _prefill(policy, prompts, length, prompt, int(length.max()) + int(batch.limit.max()))

    positions = length[prompt]
    table = torch.arange(int((positions + batch.limit).max()), device=device)
    cos, sin = (c[0] for c in core.model.rotary_emb(x, table[None]))
    sin = decoder.signed(sin)
    while True:
        tokens = batch.draw(core.lm_head(x))
        if batch.length == batch.tokens.shape[1]:
            break
        left = int(batch.alive.sum())
        if left == 0:
            break
        if left <= 0.9 * len(batch.active):
            keep = batch.alive.nonzero()[:, 0]
            batch.compact(keep)
            cache.keep(keep)
            tokens, positions = tokens[keep], positions[keep]
            hidden_columns = None if hidden_columns is None else hidden_columns[keep]
        cache.advance()
        x = _step(core, weights, cache, tokens, cos[positions], sin[positions], hidden_columns)
        positions = positions + 1
    return batch


def _prefill(
    policy: Policy, prompts: list[list[int]], length: Tensor, prompt: Tensor, longest: int
) -> tuple[Tensor, _Cache, Tensor | None]:
    """Run the prompts once; returns what predicts each row's first token [r, d], the rows' cache and the score mask
    [r, 1, 1, longest] of −∞ at the columns left of shorter prompts (None if there are none): prompts end flush.
    """
    core, device = policy.core, length.device
    width = int(length.max())
    column = torch.arange(width, device=device)
    valid = column >= width - length[:, None]
    inputs = torch.zeros(valid.shape, dtype=torch.int64, device=device)
    inputs[valid] = torch.tensor([t for p in prompts for t in p], device=device)
    place = (column - (width - length[:, None])).clamp_min(0)
    mask = None if bool(valid.all()) else valid[:, None, None] & (column[:, None] >= column)[None, None]
    if mask is not None:
        mask |= (column[:, None] == column)[None, None]  # a padded column sees itself, to stay finite
    keys, values = [], []
    p, w = valid.shape

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.view(p, w, -1, t.shape[-1]).transpose(1, 2) for t in (q, k, v))
        keys.append(k[prompt])
        values.append(v[prompt])
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2).reshape(p * w, q.shape[1], -1)

    x = decoder.hidden_states(core, inputs.view(-1), place.view(-1), attend).view(p, w, -1)[:, -1]
    x = decoder.rms_norm(core.model.norm, x)[prompt]
    bias = None
    if mask is not None:
        bias = x.new_zeros(len(prompt), 1, 1, longest)
        bias[..., :width].masked_fill_(~valid[prompt][:, None, None], -torch.inf)
    return x, _Cache(keys, values, longest), bias


def _step(
    core: Any,
    weights: list[_Layer],
    cache: _Cache,
    tokens: Tensor,
    cos: Tensor,
    sin: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Feed one token a row into the cache's newest column; returns the normed hidden states [r, d]."""
    base, width = core.model, cache.width
    x = F.embedding(tokens, base.embed_tokens.weight)
    cos, sin = cos[:, None], sin[:, None]
    r, head_dim = len(tokens), cos.shape[-1]
    mask = None if bias is None else bias[..., :width]
    for i, layer in enumerate(weights):
        h = decoder.rms_norm(layer.before_attention, x)
        keys, values = cache.keys[i], cache.values[i]
        shared = keys.shape[1]
        qkv = _linear(h, layer.qkv, layer.qkv_bias).view(r, -1, head_dim)
        v = qkv[:, -shared:]
        if layer.q_norm is None:
            qk = decoder.rotate(qkv[:, :-shared], cos, sin)
        else:
            q = decoder.rms_norm(layer.q_norm, qkv[:, : -2 * shared])
            k = decoder.rms_norm(layer.k_norm, qkv[:, -2 * shared : -shared])
            qk = decoder.rotate(torch.cat((q, k), 1), cos, sin)
        keys[:, :, width - 1] = qk[:, -shared:]
        values[:, :, width - 1] = v
        o = F.scaled_dot_product_attention(
            qk[:, :-shared, None],
            keys[:, :, :width],
            values[:, :, :width],
            attn_mask=mask,
            enable_gqa=qk.shape[1] != 2 * shared,
        )
        x = x + _linear(o.view(r, -1), layer.o, layer.o_bias)
        h = decoder.rms_norm(layer.before_mlp, x)
        gate, up = _linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        x = x + _linear(F.silu(gate) * up, layer.down, layer.down_bias)
    return decoder.rms_norm(base.norm, x)
