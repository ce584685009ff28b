"""Our attention over packed rows against what libraries offer for the same rows: python benchmarks/attention.py

A row of a training step: 7 prompts of 100 tokens with 16 responses each, 256 tokens in the mean (CV 0.8). That is
about 29,000 entries where a prompt stands once (`shared`); with a prompt before each response (`repeated`), as
libraries want them, about 40,000.
bfloat16, heads as in SmolLM2-135M (9 over 3 of 64) and Qwen3-0.6B (16 over 8 of 128). Forward, and forward with
backward, in milliseconds; each is first compared with float32 arithmetic on the same numbers.

- ours: `varlen_attention`, the same bits in every run;
- flex: compiled FlexAttention with a block mask of the same rows; making the mask is timed apart (once a row, not once
  a layer);
- varlen: `torch.nn.attention.varlen`; where prompts are shared their keys and values are gathered before each response;
- sdpa_padded, sdpa_each: `scaled_dot_product_attention` over padded sequences, and over one after the other;
- fa3: FlashAttention 3 where it is installed, from its own package, or from vLLM's wheel, which has no backward.

A peer that is missing, fails or takes too long is a line that says so. Compiling FlexAttention takes most of the time:
one call a model (--model) leaves enough of it. Writes benchmarks/results/attention.json.

--prefill instead: the sampler's attention over whole prompts, as many as it computes together (32,768 tokens), of 512,
2,048 and 8,192 tokens each, heads of Qwen3-1.7B and 8B, forward alone. TFLOP/s of `sampler` (`attend_prompts`), `ours`,
`varlen`, `fa3`, and scaled_dot_product_attention over all prompts in one call by its backends flash and cuDNN; half of
the scores are counted, and outputs are compared with `sdpa_flash`'s. Writes benchmarks/results/prefill.json.
"""

from __future__ import annotations

import argparse
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from lengths import lognormal  # benchmarks/lengths.py
from report import earlier, write
from timing import attempt, seconds
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from equipoise.kernels.segments import Segments
from equipoise.kernels.varlen import varlen_attention
from equipoise.policy import pack
from equipoise.rollout.paged import PREFILL
from equipoise.rollout.paged_step import attend_prompts

PROMPTS, PROMPT, GROUP = 7, 100, 16
MEAN, CV, LONGEST = 256, 0.8, 1024
DEVICE = "cuda"
MOST = 25.0  # seconds a candidate may take in one case: compiling FlexAttention is the most of it


class Heads(NamedTuple):
    query: int
    key: int
    size: int


HEADS = {"SmolLM2-135M": Heads(9, 3, 64), "Qwen3-0.6B": Heads(16, 8, 128)}
PREFILL_HEADS = {"Qwen3-1.7B": Heads(16, 8, 128), "Qwen3-8B": Heads(32, 8, 128)}


@dataclass(frozen=True)
class Row:
    """A packed row as plain numbers. `own` are the entries of each segment, `seen` those of its prompt before it."""

    segments: Segments
    own: list[range]
    seen: list[range]

    @property
    def entries(self) -> int:
        return self.own[-1].stop

    @cached_property
    def keys(self) -> list[list[int]]:
        """What each segment attends to, in order."""
        return [[*seen, *own] for own, seen in zip(self.own, self.seen, strict=True)]


def row(lengths: Tensor, group: int, prompt: int, *, shared: bool) -> Row:
    """Responses of these lengths, `group` to each prompt of `prompt` tokens."""
    tokens = torch.zeros(int(lengths.sum()), dtype=torch.int64, device=DEVICE)
    texts = [[3] * prompt for _ in range(len(lengths) // group)]
    of = torch.arange(len(texts)).repeat_interleave(group)
    segments = pack(texts, tokens, lengths, of, share="prompt" if shared else "nothing").segments
    cuts = segments.cuts.tolist()
    own = [range(a, b) for a, b in pairwise(cuts)]
    seen = [range(0)] * len(own)
    if segments.prompts is not None and segments.groups is not None:
        p, g = segments.prompts.tolist(), segments.groups.tolist()
        for i, segment in enumerate(own):
            if segment.start >= g[0]:
                at = max(k for k in range(len(p) - 1) if g[k] <= segment.start)
                seen[i] = range(p[at], p[at + 1])
    return Row(segments, own, seen)


def split(qkv: Tensor, heads: Heads) -> tuple[Tensor, ...]:
    return qkv.split((heads.query, heads.key, heads.key), 1)


def reference(qkv: Tensor, heads: Heads, r: Row) -> Tensor:
    """Softmax attention written out, one segment after the other, in the precision of `qkv` [U, H + 2 Hk, D]."""
    q, k, v = split(qkv, heads)
    out = []
    for own, keys in zip(r.own, r.keys, strict=True):
        at = torch.tensor(keys, device=qkv.device)
        k_seen, v_seen = (x[at].repeat_interleave(heads.query // heads.key, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[own.start : own.stop], k_seen) * heads.size**-0.5
        later = torch.ones_like(scores[0], dtype=torch.bool).triu(len(keys) - len(own) + 1)
        p = scores.masked_fill(later, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", p, v_seen))
    return torch.cat(out)


class Attention(NamedTuple):
    """`attend`: [U, H + 2 Hk, D] -> [U, H, D]. `beside`: figures of what is done once for all layers."""

    attend: Callable[[Tensor], Tensor]
    beside: dict[str, float]


def ours(heads: Heads, r: Row) -> Attention:
    return Attention(lambda qkv: varlen_attention(qkv, heads.key, r.segments), {})


def visible(r: Row) -> Callable[..., Tensor]:
    """FlexAttention's question, whether a query sees a key: of its prompt, or of its own segment up to itself."""
    begin = torch.zeros(r.entries, dtype=torch.int32, device=DEVICE)
    first, last = torch.zeros_like(begin), torch.zeros_like(begin)
    for own, seen in zip(r.own, r.seen, strict=True):
        begin[own.start : own.stop] = own.start
        first[own.start : own.stop], last[own.start : own.stop] = seen.start, seen.stop

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((k >= begin[q]) & (k <= q)) | ((k >= first[q]) & (k < last[q]))

    return mask


def flex(heads: Heads, r: Row) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # another row is another shape: compiled for it, not for any
    mask, make = visible(r), torch.compile(create_block_mask, dynamic=False)
    made = make(mask, None, None, r.entries, r.entries, DEVICE)
    mask_ms = 1e3 * seconds(lambda: make(mask, None, None, r.entries, r.entries, DEVICE), budget=0.1)
    compiled = torch.compile(flex_attention, dynamic=False)

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in split(qkv, heads))
        return compiled(q, k, v, block_mask=made, enable_gqa=True)[0].transpose(0, 1)

    return Attention(attend, {"mask_ms": mask_ms})


def gathered(r: Row) -> tuple[Tensor | None, Tensor, Tensor, int, int]:
    """Keys of all segments one after the other (None where that is the row itself), and where each one's begin."""
    q = torch.tensor([0, *(len(x) for x in r.own)]).cumsum(0)
    k = torch.tensor([0, *(len(x) for x in r.keys)]).cumsum(0)
    at = None if torch.equal(q, k) else torch.tensor([i for keys in r.keys for i in keys], device=DEVICE)
    most_q, most_k = max(map(len, r.own)), max(map(len, r.keys))
    return at, q.int().to(DEVICE), k.int().to(DEVICE), most_q, most_k


def by_function(function: Callable[..., Any], heads: Heads, r: Row) -> Attention:
    """`function`(q, k, v, cu_q, cu_k, most_q, most_k), causal with the last query at the last key."""
    at, *places = gathered(r)

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (x.contiguous() for x in split(qkv, heads))
        if at is not None:
            k, v = k[at], v[at]
        out = function(q, k, v, *places)
        return out[0] if isinstance(out, tuple) else out

    return Attention(attend, {})


def varlen(heads: Heads, r: Row) -> Attention:
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters  # they differ between releases of torch
    causal: dict[str, Any] = {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    if "enable_gqa" in known:
        causal["enable_gqa"] = True
    return by_function(partial(varlen_attn, **causal), heads, r)


def fa3(heads: Heads, r: Row) -> Attention:
    try:
        from flash_attn_interface import flash_attn_varlen_func
    except ImportError:
        return by_function(_of_vllm(), heads, r)
    return by_function(partial(flash_attn_varlen_func, causal=True), heads, r)


def _of_vllm() -> Callable[..., Any]:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    def call(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, most_q: int, most_k: int) -> Any:
        return flash_attn_varlen_func(
            q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=most_q, max_seqlen_k=most_k,
            causal=True, fa_version=3,
        )  # fmt: skip

    return call


def sdpa_padded(heads: Heads, r: Row) -> Attention:
    at = torch.nn.utils.rnn.pad_sequence([torch.arange(x.start, x.stop) for x in r.own], True).to(DEVICE)
    there = torch.arange(at.shape[1])[None] < torch.tensor([len(x) for x in r.own])[:, None]
    there = there.to(DEVICE)

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (x[at].transpose(1, 2) for x in split(qkv, heads))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2)[there]

    return Attention(attend, {})


def sdpa_each(heads: Heads, r: Row) -> Attention:
    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in split(qkv, heads))
        parts = []
        for own in r.own:
            at = slice(own.start, own.stop)
            part = [x[:, :, at] for x in (q, k, v)]
            parts.append(scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True)[0])
        return torch.cat(parts, 1).transpose(0, 1)

    return Attention(attend, {})


ANY: dict[str, Callable[[Heads, Row], Attention]] = {"ours": ours, "varlen": varlen, "fa3": fa3, "flex": flex}
# These know nothing of prompts that stand once.
REPEATED = {"sdpa_padded": sdpa_padded, "sdpa_each": sdpa_each}


@torch.no_grad()
def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


class Case(NamedTuple):
    heads: Heads
    row: Row
    qkv: Tensor
    d: Tensor
    out: Tensor
    gradient: Tensor


def case(heads: Heads, r: Row, dtype: torch.dtype = torch.bfloat16) -> Case:
    g = torch.Generator().manual_seed(0)
    qkv = torch.randn(r.entries, heads.query + 2 * heads.key, heads.size, generator=g).to(DEVICE, dtype)
    d = torch.randn(r.entries, heads.query, heads.size, generator=g).to(DEVICE, dtype)
    exact = qkv.float().clone().requires_grad_()
    out = reference(exact, heads, r)
    (gradient,) = torch.autograd.grad(out, exact, d.float())
    return Case(heads, r, qkv, d, out.detach(), gradient)


def measure(name: str, c: Case, limit: float) -> dict[str, Any]:
    """Forward, then forward with backward: a peer that cannot do the second keeps its first figure."""
    begin, built = time.perf_counter(), []

    def forward() -> dict[str, Any]:
        built.append((ANY | REPEATED)[name](c.heads, c.row))
        attend, beside = built[0]
        with torch.no_grad():
            off = error(attend(c.qkv), c.out)
            first = time.perf_counter() - begin  # with what had to be compiled
            took = 1e3 * seconds(lambda: attend(c.qkv), budget=0.2)
        return {"error": off, "first_s": first, "forward_ms": took, **beside}

    def both() -> dict[str, Any]:
        leaf = c.qkv.detach().requires_grad_()

        def once() -> Tensor:
            return torch.autograd.grad(built[0].attend(leaf), leaf, c.d)[0]

        return {"gradient_error": error(once(), c.gradient), "both_ms": 1e3 * seconds(once, budget=0.3)}

    found = attempt(forward, limit)
    if "failed" in found:
        return found
    more = attempt(both, limit - (time.perf_counter() - begin))
    return found | ({"backward_failed": more["failed"]} if "failed" in more else more)


def of_sampler(heads: Heads, r: Row) -> Attention:
    cuts = np.cumsum([0, *map(len, r.own)])
    segments = Segments(cuts, None, None, torch.device(DEVICE))
    layer: Any = SimpleNamespace(scale=heads.size**-0.5, window=None, kv_heads=heads.key)
    return Attention(lambda qkv: attend_prompts(qkv, segments, layer), {})


def sdpa_equal(backend: SDPBackend, heads: Heads, r: Row) -> Attention:
    """Of sequences of one length, all in one call."""

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (x.unflatten(0, (len(r.own), -1)).transpose(1, 2) for x in split(qkv, heads))
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(0, 1)

    return Attention(attend, {})


# Outputs are compared with those of the first that runs.
PROMPT_ATTENTION: dict[str, Callable[[Heads, Row], Attention]] = {
    "sdpa_flash": partial(sdpa_equal, SDPBackend.FLASH_ATTENTION),
    "sampler": of_sampler,
    "ours": ours,
    "varlen": varlen,
    "sdpa_cudnn": partial(sdpa_equal, SDPBackend.CUDNN_ATTENTION),
    "fa3": fa3,
}


@torch.no_grad()
def prefill(heads: Heads, length: int, tokens: int = PREFILL, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """TFLOP/s of each over prompts of `length`; a prompt's last token is its response's first input."""
    r = row(torch.full((tokens // length,), 2), 1, length - 1, shared=False)
    qkv = torch.randn(r.entries, heads.query + 2 * heads.key, heads.size, device=DEVICE, dtype=dtype)
    operations = 2 * heads.query * heads.size * sum(len(x) ** 2 for x in r.own)
    outputs: list[Tensor] = []

    def measured(name: str) -> dict[str, Any]:
        attend, _ = PROMPT_ATTENTION[name](heads, r)
        outputs.append(attend(qkv))
        s = seconds(lambda: attend(qkv), budget=0.2)
        return {"ms": 1e3 * s, "tflops": operations / s / 1e12, "error": error(outputs[-1], outputs[0])}

    return {name: attempt(partial(measured, name), MOST) for name in PROMPT_ATTENTION}


def time_prefill(end: float) -> None:
    results: dict[str, Any] = {}
    for model, heads in PREFILL_HEADS.items():
        for length in (512, 2048, 8192):
            if time.monotonic() < end:
                results[f"{model}, {length}"] = found = prefill(heads, length)
                rates = [f"{n} {x['tflops']:.0f}" if "ms" in x else f"{n} {x['failed']}" for n, x in found.items()]
                print(f"{model}, prompts of {length} tokens, TFLOP/s: {', '.join(rates)}", flush=True)
                write("prefill", {"results": results})


def show(name: str, found: dict[str, Any], own: dict[str, Any]) -> None:
    if "failed" in found:
        print(f"  {name:12s} {found['failed']}", flush=True)
        return
    words = []
    for part in ("forward_ms", "both_ms"):
        if part in found:
            ratio = found[part] / own[part] if part in own else math.nan
            words.append(f"{part.removesuffix('_ms')} {found[part]:7.3f} ms ({ratio:5.2f} ×)")
    words.append("error " + ", ".join(f"{found[k]:.1e}" for k in ("error", "gradient_error") if k in found))
    words += [f"mask {found['mask_ms']:.3f} ms"] if "mask_ms" in found else []
    words += [f"backward: {found['backward_failed']}"] if "backward_failed" in found else []
    print(f"  {name:12s} {'  '.join(words)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=85, help="nothing is begun after this")
    parser.add_argument("--model", choices=[*HEADS, "all"], default="all")
    parser.add_argument("--without", default="", help="candidates to leave out, with commas")
    parser.add_argument("--prefill", action="store_true", help="the sampler's attention over prompts instead")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    if options.prefill:
        time_prefill(end)
        return
    models = list(HEADS) if options.model == "all" else [options.model]
    left_out = options.without.split(",")
    cases, results = {}, earlier("attention")
    lengths = lognormal(PROMPTS * GROUP, MEAN, CV, LONGEST)
    for model in models:
        for layout in ("shared", "repeated"):
            r = row(lengths, GROUP, PROMPT, shared=layout == "shared")
            cases[model, layout] = case(HEADS[model], r)
            results[f"{model}, {layout}"] = {"entries": r.entries, "heads": HEADS[model]._asdict()}
    # What is compiled comes last, so that running out of time costs the others nothing.
    order = [n for n in ("ours", "varlen", "sdpa_padded", "sdpa_each", "fa3", "flex") if n not in left_out]
    for name in order:
        for (model, layout), c in cases.items():
            if name in REPEATED and layout == "shared":
                continue
            found = results[f"{model}, {layout}"]
            found[name] = measure(name, c, min(MOST, end - time.monotonic()))
            write("attention", {"results": results})
    for title, found in results.items():
        if title.partition(",")[0] not in models:
            continue
        print(f"{title}: {found['entries']:,} entries, {found['heads']}")
        for name in order:
            if name in found:
                show(name, found[name], found["ours"])


if __name__ == "__main__":
    main()
