"""The kernels of a decode step: the reference against slow loops and transformers, Triton against the reference.

On a machine without CUDA the Triton kernels run in Triton's interpreter: install triton and set TRITON_INTERPRET=1.
On one with CUDA nearly all the time goes into compiling, above all float32's products: options and shapes are tried in
bfloat16, and in float32 one of each; the rest of float32 is slow.
"""

import importlib.util
import os

import numpy as np
import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from equipoise.kernels import decode, plain_decode
from equipoise.kernels import draw as inverse_cdf
from equipoise.kernels.decode import DecodeRows, Norm
from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.uniform import uniforms

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")
DTYPES = [torch.float32, torch.bfloat16]
NAN = float("nan")


@pytest.fixture(params=["reference", pytest.param("triton", marks=needs_triton)])
def kernel(request, monkeypatch):
    """The module; what it allocates is NaN (or −1) until written."""
    if request.param == "reference":
        return plain_decode
    from equipoise.kernels import triton_decode

    if not CUDA:
        teach_the_interpreter_bfloat16(monkeypatch)

    def poisoned(make):
        def call(*args, **kwargs):
            made = make(*args, **kwargs)
            return made.fill_(NAN if made.is_floating_point() else -1)

        return call

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    return triton_decode


def teach_the_interpreter_bfloat16(monkeypatch):
    """Triton 3.6's interpreter cuts float32 to bfloat16 instead of rounding, and multiplies its bits in a dot."""
    from triton.runtime import interpreter

    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot
    tl = interpreter.tl

    def rounded(x, source, target, mode):
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(x.astype("float32")).bfloat16().view(torch.int16).numpy().view("uint16")
        return convert(x, source, target, mode)

    def widened(self, a, b, *others):
        def wide(x):
            if x.dtype.scalar != tl.bfloat16:
                return x
            data = torch.from_numpy(x.data.view("int16")).view(torch.bfloat16).float().numpy()
            return interpreter.TensorHandle(data, tl.float32)

        return dot(self, wide(a), wide(b), *others)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", widened)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=generator(seed)).to(dtype).to(DEVICE)


def assert_near(got, wanted, dtype, scale=1.0):
    assert got.dtype == dtype
    assert got.isfinite().all()
    error = (got.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-9)
    assert float(error) < scale * {torch.float32: 2e-6, torch.bfloat16: 4e-3}[dtype]


class Case:
    """DecodeRows and a cache in which everything that nobody may read is NaN.

    lengths [R], the prompt that each answers [R] (−1: the row is padding), prompt_lengths [P].
    """

    def __init__(self, lengths, prompt, prompt_lengths, *, heads, kv_heads, D, dtype, block=64, holes=1, seed=0):
        g = generator(seed)
        self.lengths, self.prompt, self.prompt_lengths = lengths, prompt, prompt_lengths
        R, P, n = len(lengths), len(prompt_lengths), max(prompt.count(p) for p in range(len(prompt_lengths)))
        self.heads, self.kv_heads, self.D, self.block, self.dtype = heads, kv_heads, D, block, dtype
        most = max(lengths) // block + 2
        most_prompt = max(prompt_lengths) // block + 2
        unused = R * most + P * most_prompt + 1  # nobody's block: all NaN
        blocks = unused + 1
        free = iter((1 + torch.randperm(unused - 1, generator=g)).tolist())
        table, prompt_table = torch.full((R, most), unused), torch.full((P, most_prompt), unused)
        self.keys, self.values = torch.full((2, blocks, kv_heads, block, D), NAN)
        for own, pages, tokens in [(table, r, lengths[r]) for r in range(R)] + [
            (prompt_table, p, prompt_lengths[p]) for p in range(P)
        ]:
            is_row = own is table
            if is_row and prompt[pages] < 0:
                own[pages] = 0
                continue
            for b in range(tokens // block + 1 if is_row else -(-tokens // block)):
                own[pages, b] = next(free)
            for t in range(tokens):
                for pool in (self.keys, self.values):
                    pool[own[pages, t // block], :, t % block] = torch.randn(kv_heads, D, generator=g)
        members = torch.full((P, n + holes), -1)
        for p in range(P):
            answering = [r for r in range(R) if prompt[r] == p]
            members[p, torch.randperm(n + holes, generator=g)[: len(answering)]] = torch.tensor(answering).long()
        padding = torch.tensor(prompt) < 0
        self.keys, self.values = (x.to(dtype).to(DEVICE) for x in (self.keys, self.values))
        fields = table, torch.tensor(lengths), torch.tensor(prompt).masked_fill(padding, 0), prompt_table
        self.rows = DecodeRows(*(x.int().to(DEVICE) for x in (*fields, torch.tensor(prompt_lengths), members)))
        self.qkv = torch.randn(R, heads + 2 * kv_heads, D, generator=g).to(dtype).to(DEVICE)
        angle = torch.randn(max(prompt_lengths) + max(lengths) + 1, D // 2, generator=g)
        self.rope = torch.cat((angle.cos(), angle.sin()), 1).to(dtype).float().to(DEVICE)

    def stored(self):
        """Queries of this step; its keys and values are in the cache."""
        return plain_decode.store(self.qkv, self.keys, self.values, self.rows, self.rope, None, None)

    def real(self):
        return torch.tensor([p >= 0 for p in self.prompt], device=DEVICE)

    def attended_by_hand(self, q, scale, softcap, window):
        """In float64, one row and one head at a time; in numpy, whose loops here start no threads."""
        out = np.zeros(q.shape)
        table, prompt_table = self.rows.table.tolist(), self.rows.prompt_table.tolist()
        keys, values, q = (x.double().cpu().numpy() for x in (self.keys, self.values, q))
        for r, (length, p) in enumerate(zip(self.lengths, self.prompt, strict=True)):
            past = self.prompt_lengths[p] if p >= 0 else 0
            places = [(prompt_table[p][t // self.block], t % self.block) for t in range(past)]
            places += [(table[r][t // self.block], t % self.block) for t in range(length + 1)]
            if window is not None:
                places = places[-window:]
            block, slot = zip(*places, strict=True)
            k, v = keys[block, :, slot], values[block, :, slot]
            for h in range(self.heads):
                kv = h // (self.heads // self.kv_heads)
                z = (k[:, kv] * q[r, h]).sum(-1) * scale
                if softcap is not None:
                    z = softcap * np.tanh(z / softcap)
                e = np.exp(z - z.max())
                out[r, h] = (e[:, None] * v[:, kv]).sum(0) / e.sum()
        return torch.from_numpy(out).to(DEVICE)


def case(heads=6, kv_heads=2, D=32, dtype=torch.float32, **options):
    """Ragged: nothing yet, ends of blocks and just after; prompts of none of the same length; two padding rows."""
    lengths, prompt = [0, 63, 64, 65, 200, 1, 0, 127, 0], [0, 1, 0, 1, 2, 1, -1, 0, -1]
    return Case(lengths, prompt, [5, 64, 130], heads=heads, kv_heads=kv_heads, D=D, dtype=dtype, **options)


# store


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [None, "llama", "gemma"])
def test_the_reference_stores_what_transformers_computes(dtype, normed):
    c = case(dtype=dtype)
    module = {"llama": LlamaRMSNorm, "gemma": Gemma2RMSNorm, None: None}[normed]
    modules = [None, None]
    if module is not None:
        modules = [module(c.D, eps=1e-5).to(dtype).to(DEVICE) for _ in range(2)]
        for i, m in enumerate(modules):
            m.weight.data.copy_(randn(c.D, seed=i))
    norms = [None if m is None else Norm(m.weight.data, 1e-5, float(normed == "gemma")) for m in modules]
    got = plain_decode.store(c.qkv, c.keys, c.values, c.rows, c.rope, *norms)
    q, k, v = c.qkv.split((c.heads, c.kv_heads, c.kv_heads), 1)
    q, k = (x if m is None else m(x) for x, m in zip((q, k), modules, strict=True))
    position = [c.prompt_lengths[max(p, 0)] + n for n, p in zip(c.lengths, c.prompt, strict=True)]
    cos, sin = (torch.cat((x, x), -1).to(dtype) for x in c.rope[position].chunk(2, -1))
    q, k = apply_rotary_pos_emb(q[None].transpose(1, 2), k[None].transpose(1, 2), cos[None], sin[None])
    assert torch.equal(got, q[0].transpose(0, 1))
    for r in c.real().nonzero()[:, 0].tolist():
        block, slot = c.rows.table[r, c.lengths[r] // c.block], c.lengths[r] % c.block
        assert torch.equal(c.keys[block, :, slot], k[0, :, r])
        assert torch.equal(c.values[block, :, slot], v[r])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "D", "offsets", "dtype"),
    [
        (6, 2, 32, (None, None), torch.bfloat16),
        (6, 2, 16, (None, None), torch.float32),
        (9, 3, 64, (0.0, 1.0), torch.bfloat16),
        (9, 3, 64, (1.0, 0.0), torch.float32),
        (1, 1, 128, (0.0, None), torch.bfloat16),
        (14, 2, 256, (None, 0.0), torch.float32),
        (14, 2, 256, (1.0, 1.0), torch.bfloat16),
    ],
)
def test_store(kernel, heads, kv_heads, D, offsets, dtype):
    c = case(heads, kv_heads, D, dtype)
    norms = [None if o is None else Norm(randn(D, dtype=dtype, seed=i), 1e-3, o) for i, o in enumerate(offsets)]
    before = c.keys.clone(), c.values.clone()
    q = kernel.store(c.qkv, c.keys, c.values, c.rows, c.rope, *norms)
    got, (c.keys, c.values) = (c.keys, c.values), before
    wanted = plain_decode.store(c.qkv, c.keys, c.values, c.rows, c.rope, *norms)
    # A sum in another order moves x̂ past a rounding boundary now and then, and then it is off by one unit.
    unit = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(q, wanted, rtol=unit, atol=unit)
    assert dtype == torch.float32 or (q != wanted).float().mean() < 0.02
    for x, y in zip(got, (c.keys, c.values), strict=True):
        torch.testing.assert_close(x[1:], y[1:], rtol=unit, atol=unit, equal_nan=True)  # block 0 is waste


# attend


@pytest.mark.parametrize(
    ("softcap", "window", "splits", "dtype"),
    [
        (None, None, 1, torch.bfloat16),
        (None, None, 3, torch.bfloat16),
        (2.0, None, 1, torch.bfloat16),
        (None, 1, 1, torch.bfloat16),
        (None, 1, 3, torch.bfloat16),
        (2.0, 50, 1, torch.float32),
        (2.0, 50, 3, torch.bfloat16),
        (None, 64, 1, torch.bfloat16),
        (None, 150, 3, torch.bfloat16),
        pytest.param(None, None, 3, torch.float32, marks=pytest.mark.slow),
        pytest.param(None, 1, 1, torch.float32, marks=pytest.mark.slow),
        pytest.param(None, 150, 3, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_attend_over_options(kernel, softcap, window, splits, dtype):
    """Against a loop over keys."""
    c = case(dtype=dtype)
    q = c.stored()
    got = kernel.attend(q, c.keys, c.values, c.rows, 0.3, softcap, window, splits, None, splits)
    assert_near(got, c.attended_by_hand(q, 0.3, softcap, window), dtype)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "D", "splits", "dtype"),
    [
        (3, 3, 16, 1, torch.bfloat16),
        (4, 2, 32, 4, torch.float32),
        (24, 1, 32, 1, torch.bfloat16),
        (6, 2, 64, 4, torch.bfloat16),
        (9, 3, 64, 1, torch.bfloat16),
        (6, 1, 128, 1, torch.bfloat16),
        (2, 1, 256, 1, torch.bfloat16),
        pytest.param(9, 3, 64, 1, torch.float32, marks=pytest.mark.slow),
        pytest.param(6, 1, 128, 1, torch.float32, marks=pytest.mark.slow),
        pytest.param(2, 1, 256, 1, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_attend_over_shapes(kernel, heads, kv_heads, D, splits, dtype):
    c = case(heads, kv_heads, D, dtype)
    q = c.stored()
    got = kernel.attend(q, c.keys, c.values, c.rows, D**-0.5, None, None, splits)
    assert_near(got, c.attended_by_hand(q, D**-0.5, None, None), dtype)


@pytest.mark.parametrize(("n", "block"), [(1, 64), (5, 32), (23, 64), (40, 32)])
def test_attend_over_groups(kernel, n, block):
    """Groups that fill one tile of queries or several, with as many holes as members; two prompts and a third that
    nobody answers."""
    lengths, prompt = [(7 * r) % 70 for r in range(2 * n)], [r % 2 for r in range(2 * n)]
    shape = {"heads": 6, "kv_heads": 2, "D": 32, "dtype": torch.bfloat16}
    c = Case(lengths, prompt, [2 * block, 33, 7], block=block, holes=n, **shape)
    q = c.stored()
    got = kernel.attend(q, c.keys, c.values, c.rows, 0.2, None, None, 1)
    assert_near(got, c.attended_by_hand(q, 0.2, None, None), torch.bfloat16)


def test_attend_where_one_key_has_all_the_weight(kernel):
    """Scores of ±thousands: the running maximum keeps sums finite."""
    c = case()
    q = c.stored()
    got = kernel.attend(q, c.keys, c.values, c.rows, 1000.0, None, None, 1)
    assert_near(got, c.attended_by_hand(q, 1000.0, None, None), torch.float32, scale=100)


def test_splits_and_the_order_of_members_change_nothing_but_rounding(kernel):
    """A row of many blocks beside rows of one, which are not cut; in more shares than their prompt, and in fewer."""
    lengths, prompt = [700, 3, 200, 64, 0], [0, 1, 1, 0, -1]
    c = Case(lengths, prompt, [330, 5], heads=6, kv_heads=2, D=32, dtype=torch.bfloat16)
    q = c.stored()
    once = kernel.attend(q, c.keys, c.values, c.rows, 0.3, None, None, 1)
    for splits, prompt_splits in ((2, 1), (16, 1), (1, 4), (2, 16), (16, 2)):
        cut = kernel.attend(q, c.keys, c.values, c.rows, 0.3, None, None, splits, None, prompt_splits)
        assert_near(cut, once, torch.bfloat16)
    turned = c.rows._replace(members=c.rows.members.flip(1).contiguous())
    assert torch.equal(kernel.attend(q, c.keys, c.values, turned, 0.3, None, None, 1), once)


# add_norm, gated


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 24, 576, 4100])
@pytest.mark.parametrize(("module", "offset"), [(LlamaRMSNorm, 0.0), (Gemma2RMSNorm, 1.0)])
@pytest.mark.parametrize("alone", [False, True])
def test_add_norm(kernel, module, offset, d, dtype, alone):
    norm = module(d, eps=1e-5).to(dtype).to(DEVICE)
    norm.weight.data.copy_(randn(d))
    x, residual = 3 * randn(5, d, dtype=dtype, seed=1), randn(5, d, dtype=dtype, seed=2)
    added = residual.clone() if alone else residual + x
    y = kernel.add_norm(None if alone else x, residual, Norm(norm.weight.data, 1e-5, offset))
    assert torch.equal(residual, added)
    wanted = norm(added)
    if kernel is plain_decode:
        assert torch.equal(y, wanted)
    unit = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(y, wanted, rtol=unit, atol=unit)
    assert dtype == torch.float32 or (y != wanted).float().mean() < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [1, 96, 1024, 1536])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(kernel, activation, f, dtype):
    gate_up = 4 * randn(3, 2 * f, dtype=dtype)
    gate, up = gate_up.double()[:, :f], gate_up.double()[:, f:]
    active = gate / (1 + torch.exp(-gate))
    if activation == "gelu_tanh":
        active = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    got = kernel.gated(gate_up, activation)
    unit = {torch.float32: 2e-6, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(got.double(), active * up, rtol=unit, atol=unit)


# draw, uniform


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_references_draw_is_the_samplers(temperature, softcap):
    logits, u = 3 * randn(64, 1000, dtype=torch.bfloat16), torch.rand(64, generator=generator()).to(DEVICE)
    z = logits.float() if softcap is None else softcap * torch.tanh(logits.float() / softcap)
    drawn = inverse_cdf.draw(z, u, SamplingParams(temperature=temperature))
    tokens, logprobs = plain_decode.draw(logits, u, temperature, softcap)
    assert torch.equal(tokens, drawn.tokens)
    assert torch.equal(logprobs, drawn.logprobs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", [1, 1000, 8191, 20_000])
@pytest.mark.parametrize(("temperature", "softcap"), [(1.0, None), (0.6, None), (1.3, 5.0)])
def test_draw(kernel, temperature, softcap, V, dtype):
    """Against float64: u lies between the token's bounds, to float32's rounding."""
    R = 40
    logits = torch.logspace(-1, 1, R, device=DEVICE)[:, None] * randn(R, V)
    logits[:, 2::7] = -torch.inf
    logits = logits.to(dtype)
    u = torch.rand(R, generator=generator(1)).to(DEVICE)
    u[:2], u[2:4] = 0.0, 1 - 2**-24
    tokens, logprobs = kernel.draw(logits, u, temperature, softcap)
    z = logits.double() if softcap is None else softcap * torch.tanh(logits.double() / softcap)
    logp = (z / temperature).log_softmax(1)
    p = logp.exp()
    above = p.cumsum(1).gather(1, tokens[:, None])[:, 0]
    own = p.gather(1, tokens[:, None])[:, 0]
    assert tokens.dtype == torch.int64
    assert (own > 0).all()
    assert (above > u - 1e-5).all()
    assert (above - own < u + 1e-5).all()
    torch.testing.assert_close(logprobs.double(), logp.gather(1, tokens[:, None])[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("V", [2, 64, 16_384])
def test_draw_is_exact_where_the_arithmetic_is(kernel, V):
    """Equal logits, a power of two: nothing is rounded, and the token is the whole part of u·V, boundaries included."""
    u = (torch.arange(64) / 64 + torch.tensor([[0.0], [2**-10]])).flatten()
    tokens, logprobs = kernel.draw(torch.full((len(u), V), 3.0, device=DEVICE), u.to(DEVICE), 1.0, None)
    assert torch.equal(tokens.cpu(), (u.double() * V).floor().long())
    torch.testing.assert_close(logprobs, torch.full_like(logprobs, 1 / V).log(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_greedy_takes_the_first_largest_at_temperature_one(kernel, softcap, dtype):
    logits = 3 * randn(30, 9000, dtype=dtype)
    logits[:10, 5000] = logits[:10].amax(1)
    logits[10:20, 8999] = 30
    tokens, logprobs = kernel.draw(logits, torch.rand(30, device=DEVICE), 0.0, softcap)
    z = logits.float() if softcap is None else softcap * torch.tanh(logits.float() / softcap)
    logp = z.double().log_softmax(1)
    torch.testing.assert_close(logprobs.double(), logp.amax(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logp.gather(1, tokens[:, None])[:, 0], logp.amax(1), rtol=1e-5, atol=1e-5)
    if softcap is None:
        first = torch.tensor([row.index(max(row)) for row in logits.tolist()], device=DEVICE)
        assert torch.equal(tokens, first)


def test_draw_from_a_view_of_wider_logits(kernel):
    """The head's padding is not drawn."""
    wide = randn(20, 1024)
    wide[:, 1000:] = 100.0
    u = torch.rand(20, generator=generator()).to(DEVICE)
    tokens, logprobs = kernel.draw(wide[:, :1000], u, 1.0, None)
    again = kernel.draw(wide[:, :1000].contiguous(), u, 1.0, None)
    assert torch.equal(tokens, again[0])
    torch.testing.assert_close(logprobs, again[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("R", "V", "share"), [(1, 1, 1.0), (5, 40, 0.3), (3, 5000, 0.01), (4, 2048, 1.0), (2, 9, 0.0)])
def test_what_is_kept_is_listed_row_by_row(kernel, R, V, share):
    kept = torch.rand(R, V, generator=generator()) < share
    size = kept.sum(1)
    begin = 7 + size.cumsum(0) - size
    ids = torch.full((7 + int(size.sum()) + 3,), -5, dtype=torch.int32, device=DEVICE)
    kernel.list_kept(kept.to(DEVICE), begin.to(DEVICE), ids)
    wanted = [column for row in kept for column in range(V) if row[column]]
    assert ids.tolist() == [-5] * 7 + wanted + [-5] * 3
    short = torch.full((7 + len(wanted) // 2,), -5, dtype=torch.int32, device=DEVICE)
    kernel.list_kept(kept.to(DEVICE), begin.to(DEVICE), short)
    assert short.tolist() == ids.tolist()[: len(short)]


def test_uniform_is_the_samplers_number(kernel):
    keys = torch.randint(-(2**63), 2**63 - 1, (300,), generator=generator(), dtype=torch.int64)
    position = torch.randint(0, 100_000, (300,), generator=generator())
    position[:3] = torch.tensor([0, 1, 2**31 - 2])
    wanted = torch.stack([uniforms(k[None], p[None])[0, 0] for k, p in zip(keys, position, strict=True)])
    assert torch.equal(kernel.uniform(keys.to(DEVICE), position.int().to(DEVICE)).cpu(), wanted)


# All of them


def test_the_cpu_and_float64_go_to_the_reference():
    assert decode._of(torch.zeros(1)) is plain_decode
    assert decode._of(torch.zeros(1, dtype=torch.float64, device=DEVICE)) is plain_decode


@needs_triton
def test_heads_that_are_no_power_of_two_are_refused():
    from equipoise.kernels import triton_decode

    c = Case([3], [0], [2], heads=2, kv_heads=1, D=80, dtype=torch.float32)
    with pytest.raises(ValueError, match="heads of 80"):
        triton_decode.store(c.qkv, c.keys, c.values, c.rows, c.rope, None, None)


@needs_triton
def test_tensors_that_are_not_contiguous_are_refused():
    from equipoise.kernels import triton_decode

    c, wide = case(), randn(4, 8)
    with pytest.raises(ValueError, match=r"strides \(16, 1\)"):
        triton_decode.gated(randn(4, 16)[:, :8], "silu")
    with pytest.raises(ValueError, match=r"strides \(1, 4\)"):
        triton_decode.add_norm(wide, randn(8, 4).t(), Norm(wide[0], 1e-5, 0.0))
    with pytest.raises(ValueError, match="contiguous"):
        triton_decode.draw(randn(8, 4).t(), wide[:, 0], 1.0, None)
    rows = c.rows._replace(table=c.rows.table[:, :1])
    with pytest.raises(ValueError, match="contiguous"):
        triton_decode.attend(c.qkv[:, :6].contiguous(), c.keys, c.values, rows, 0.3, None, None, 1)


def step(c, residual, u_keys):
    """Every kernel once."""
    norm = Norm(residual[0], 1e-5, 0.0)
    q = decode.store(c.qkv, c.keys, c.values, c.rows, c.rope, None, None)
    o = decode.attend(q, c.keys, c.values, c.rows, 0.3, None, None, 2)
    x = decode.add_norm(o.flatten(1), residual.clone(), norm)
    tokens, logprobs = decode.draw(decode.gated(x, "silu"), decode.uniform(u_keys, c.rows.length), 1.0, None)
    return q, o, x, tokens, logprobs


@needs_cuda
def test_kernels_that_begin_before_others_have_ended_give_the_same_bits(monkeypatch):
    """Store and attend 40 times, one right after the other, with and without overlap."""
    from equipoise.kernels import triton_decode, triton_paged

    lengths = torch.randint(0, 300, (128,), generator=generator()).tolist()
    c = Case(lengths, [r // 8 for r in range(128)], [90] * 16, heads=9, kv_heads=3, D=64, dtype=torch.bfloat16)
    norms = [Norm(randn(64, dtype=torch.bfloat16, seed=i), 1e-5, 0.0) for i in range(40)]
    found = []
    for overlap in (True, False, True):
        if not overlap:
            monkeypatch.setattr(triton_paged, "is_hopper", lambda _: False)
        keys, values, outs = c.keys.clone(), c.values.clone(), []
        for i, norm in enumerate(norms):
            q = triton_decode.store(c.qkv, keys, values, c.rows, c.rope, norm, norm)
            outs.append(triton_decode.attend(q, keys, values, c.rows, 0.2, None, None, 1 + i % 2))
        found.append(torch.stack(outs))
        monkeypatch.undo()
    assert found[0].isfinite().all()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_cuda
def test_a_graph_of_a_step_follows_the_lengths_and_never_waits():
    c, earlier = case(dtype=torch.bfloat16), case(dtype=torch.bfloat16)
    residual, u_keys = randn(9, 6 * 32, dtype=torch.bfloat16), torch.arange(9, device=DEVICE)
    fields = DecodeRows(*(x.clone() for x in c.rows))
    earlier.rows = earlier.rows._replace(length=(earlier.rows.length - 20).clamp_min(0))
    step(c, residual, u_keys)  # compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(c, residual, u_keys)
    for x, y in zip(c.rows, earlier.rows, strict=True):
        x.copy_(y)
    graph.replay()
    wanted = step(earlier, residual, u_keys)
    assert all(torch.equal(x[earlier.real()], y[earlier.real()]) for x, y in zip(out, wanted, strict=True))
    for x, y in zip(c.rows, fields, strict=True):
        x.copy_(y)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        first, second = step(c, residual, u_keys), step(c, residual, u_keys)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(x[c.real()], y[c.real()]) for x, y in zip(first, second, strict=True))
