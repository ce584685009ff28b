"""What the paged sampler computes: one step of decoding for many rows, as it is captured into a CUDA
graph, and the attention inside prompts.

Tensors in, tensors out. Not here: which row has which response and which blocks, and when a step is
taken (paged.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.kernels import decode, varlen
from equipoise.kernels.decode import Activation, DecodeRows
from equipoise.kernels.draw import SamplingParams, draw
from equipoise.kernels.fp8 import Fp8Rows
from equipoise.kernels.plain_layers import Norm
from equipoise.kernels.segments import Segments, sent
from equipoise.policy import decoder
from equipoise.policy.layer import Layer, LayerWeights, run
from equipoise.policy.projections import Linear
from equipoise.policy.weights import Fp8Linear, Weights
from equipoise.rollout.paged_cache import Cache
from equipoise.rollout.step_buffers import StepBuffers

LOGITS = 1 << 27  # entries of logits that are made or truncated together outside the plain step


def decode_step(
    weights: Weights, buffers: StepBuffers, cache: Cache, size: int, params: SamplingParams
) -> None:
    """One token for each of the first `size` rows, and as many more as its drafts are right:
    what the buffers say goes in, what is drawn is written there.
    """
    parts, all_rows, record, memory = weights.parts, buffers.rows, buffers.record, buffers.memory
    width = buffers.size.width
    rows = DecodeRows(
        all_rows.table[:size], all_rows.length[:size], all_rows.prompt[:size], *all_rows[3:]
    )
    tokens = record.recent[:size]
    if memory is not None:
        tokens = decode.draft(memory, rows.prompt, tokens, width - 1)
    # a draft that was not found (−1) is computed too: the shape of a step is fixed
    known = tokens if memory is None else tokens.clamp_min(0)
    in_eight_bits = isinstance(weights.layers[0].qkv, Fp8Linear)
    stream = _PagedStream(parts.embed(known.flatten()), parts.activation, in_eight_bits)
    programs = size * cache.keys.shape[2]
    # rows are of many lengths: the longest would be read alone at last
    splits = (
        _splits(programs, 1056, min(32, rows.table.shape[1] // 2)),
        _splits(programs, 264, min(16, rows.prompt_table.shape[1])),
    )
    for layer, own in zip(parts.layers, weights.layers, strict=True):
        kept = cache.of_layer(layer.index)
        rope = buffers.rope if layer.rotates else buffers.no_rotation
        run(own, stream, functools.partial(_attend, layer, own, kept, rows, rope, splits))
    y = stream.last(weights.norm)
    # a copy: of one row, `expand` alone would stay a view of a single key
    keys = buffers.keys[:size, None].expand(-1, width).contiguous()
    u = decode.uniform(keys.flatten(), (rows.length[:, None] + buffers.ahead).flatten())
    drawn, logprobs = draw_rows(
        weights.logits(y), u, params, functools.partial(_list_step, buffers)
    )
    decode.accept(drawn, logprobs, tokens, rows, cache.keys.shape[3], record, memory)
    record.at.add_(1)
    if memory is not None:
        memory.clock.add_(1)


class _PagedStream:
    """The residual stream, changed in place: a sum and the norm after it are one pass. In 8 bits,
    what projections read is rounded in the pass that makes it; attention's output is by itself.
    """

    def __init__(self, x: Tensor, activation: Activation, in_eight_bits: bool) -> None:
        self.x, self.activation, self.in_eight_bits = x, activation, in_eight_bits
        self.delta: Tensor | None = None

    def norm(self, norm: Norm) -> Tensor | Fp8Rows:
        add_norm = decode.add_norm_fp8 if self.in_eight_bits else decode.add_norm
        y = add_norm(self.delta, self.x, norm)
        self.delta = None
        return y

    def add(self, projection: Linear | Fp8Linear, y: Any) -> None:
        self.delta = projection(y)

    def gated(self, gate_up: Tensor) -> Tensor | Fp8Rows:
        gated = decode.gated_fp8 if self.in_eight_bits else decode.gated
        return gated(gate_up, self.activation)

    def last(self, norm: Norm) -> Tensor:
        """What the head reads."""
        return decode.add_norm(self.delta, self.x, norm)


def _attend(
    layer: Layer,
    own: LayerWeights,
    cache: Cache,
    rows: DecodeRows,
    rope: Tensor,
    splits: tuple[int, int],
    qkv: Tensor,
) -> Tensor:
    """Write this step's keys and values into the cache, and attend to it."""
    qkv = qkv.view(len(qkv), -1, layer.head_dim)
    keys, values, scales = cache
    q = decode.store(qkv, keys, values, rows, rope, own.q_norm, own.k_norm, scales)
    own_splits, prompt_splits = splits
    return decode.attend(
        q, keys, values, rows, layer.scale, None, layer.window, own_splits, scales, prompt_splits
    ).view(len(qkv), -1)


def _splits(programs: int, together: int, most: int) -> int:
    """Into how many parts to cut what so many programs read, at most `together` of them all, where
    there are too few to keep a GPU of some 130 processors busy.
    """
    splits = 1
    while programs <= 264 and 2 * splits <= most and 2 * splits * programs <= together:
        splits *= 2
    return splits


def _list_step(buffers: StepBuffers, kept: Tensor, rows: slice) -> None:
    """Those of rows that only pad the batch (block 0 is theirs) would take up room."""
    assert buffers.supports is not None
    buffers.supports.add(kept & (buffers.rows.table[rows, :1] != 0), buffers.record.at, rows)


def draw_rows(
    logits: Tensor, u: Tensor, params: SamplingParams, heard: Callable[[Tensor, slice], None]
) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities [R]; `heard` gets the supports [r, V] of truncated draws,
    and whose.
    """
    if not params.truncates:
        return decode.draw(logits, u, params.temperature, None)
    size, parts = max(1, LOGITS // logits.shape[1]), []
    for at in range(0, len(logits), size):
        rows = slice(at, min(at + size, len(logits)))
        drawn = draw(logits[rows], u[rows], params)
        assert drawn.kept is not None
        heard(drawn.kept, rows)
        parts.append((drawn.tokens, drawn.logprobs))
    tokens, logprobs = (torch.cat(part) for part in zip(*parts, strict=True))
    return tokens, logprobs


def attend_prompts(qkv: Tensor, segments: Segments, layer: Layer) -> Tensor:
    """Causal attention inside each of the prompts that follow each other: [U, H + 2 Hk, D] →
    [U, H, D]. In half precision on CUDA it is the trainer's own, but for windows.
    """
    q, k, v = qkv.split((qkv.shape[1] - 2 * layer.kv_heads, layer.kv_heads, layer.kv_heads), 1)
    lengths = np.diff(segments.cuts).tolist()
    if varlen.serves(qkv):
        if layer.window is None:
            return varlen.attend(qkv.contiguous(), layer.kv_heads, segments, layer.scale)[0]
        starts = sent(torch.from_numpy(segments.cuts.astype(np.int32)), qkv.device)
        attended: Tensor = torch.ops.aten._flash_attention_forward(
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            starts,
            starts,
            max(lengths),
            max(lengths),
            0.0,
            True,
            False,
            scale=layer.scale,
            window_size_left=layer.window - 1,
            window_size_right=0,
        )[0]
        return attended
    out = []
    for one in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        q_one, k_one, v_one = (x.transpose(0, 1)[None] for x in one)
        mask = decoder.window_mask(len(one[0]), layer.window, q.device)
        o = decoder.causal_attention(q_one, k_one, v_one, mask, layer.scale)
        out.append(o[0].transpose(0, 1))
    return torch.cat(out)
