"""AdamW with float32 masters and moments of 8 bits: held to torch's own, and to what rounding would lose."""

import copy
import importlib.util
import math
import os
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import policy as models
from equipoise.kernels import adamw as coding
from equipoise.kernels.adamw import Coded, coded_step, decode, rates
from equipoise.train import Trainer, checkpoint, ranks
from equipoise.train.optimizer import AdamW
from equipoise.train.update import Updater

from .test_resume import command, killed_run
from .tiny import last_checkpoint, outcome
from .tiny import settings as tiny_run

CUDA = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
BETAS = (0.9, 0.95)


def parameters(dtype=torch.float32, shapes=((5, 300), (7,), (2, 3, 4)), seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=draw).to(dtype)) for s in shapes]


def give_gradients(tensors, step: int, scale: float = 1.0) -> None:
    draw = torch.Generator().manual_seed(step)
    for p in tensors:
        p.grad = (torch.randn(p.shape, generator=draw) * scale).to(p.dtype)


def train(optimizer: AdamW, steps: int, lr=0.01) -> None:
    for t in range(1, steps + 1):
        optimizer.zero_grad()
        give_gradients(optimizer.masters, t)
        optimizer.step(lr * t)


@pytest.mark.parametrize(
    ("dtype", "state", "a_number"),
    [("float32", "float32", 16), ("float32", "8bit", 10.03), ("bfloat16", "float32", 18), ("bfloat16", "8bit", 12.03)],
)
def test_the_bytes_it_says_are_those_of_the_table_and_those_it_holds(dtype, state, a_number):
    """docs/scaling.md's bytes per parameter, before the first step and after it: a resumed run has moments already."""
    own = AdamW(parameters(getattr(torch, dtype), [(64, 512)]), betas=BETAS, weight_decay=0.0, state=state)
    (weight,), (master,) = own.weights, own.masters
    said = weight.nbytes + own.gradient_bytes() + own.state_bytes()
    assert said / weight.numel() == pytest.approx(a_number, abs=0.005)
    train(own, 1)
    beside = 0 if master is weight else master.nbytes
    held = own.exact.state[master].values() if own.exact else vars(own.coded[0][2]).values()
    moments = sum(tensor.nbytes for tensor in held if tensor.dim() > 1)
    assert own.state_bytes() == beside + moments
    assert own.gradient_bytes() == master.grad.nbytes


def test_float32_is_torchs_adamw_bit_for_bit():
    mine, theirs = parameters(), parameters()
    reference = torch.optim.AdamW(theirs, lr=0.01, betas=BETAS, weight_decay=0.1, fused=True)
    own = AdamW(mine, betas=BETAS, weight_decay=0.1)
    assert all(m is p for m, p in zip(own.masters, mine, strict=True))
    train(own, 5)
    for t in range(1, 6):
        give_gradients(theirs, t)
        reference.param_groups[0]["lr"] = 0.01 * t
        reference.step()
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)


def test_bfloat16_weights_are_the_rounded_masters_of_a_float32_run():
    low, high = parameters(torch.bfloat16), [torch.nn.Parameter(p.detach().float()) for p in parameters(torch.bfloat16)]
    a, b = (AdamW(p, betas=BETAS, weight_decay=0.1) for p in (low, high))
    for t in range(1, 8):
        for own in (a, b):
            own.zero_grad()
        for p, q in zip(low, high, strict=True):
            direction = torch.randn(p.shape, generator=torch.Generator().manual_seed(t)).bfloat16()
            (p * direction).sum().backward()
            (q * direction.float()).sum().backward()
        for own in (a, b):
            own.step(1e-3)
    for p, m, q in zip(low, a.masters, high, strict=True):
        assert torch.equal(m, q)
        assert torch.equal(p, q.bfloat16())


def test_small_updates_accumulate_with_masters_and_vanish_without():
    """Steps of a 300th of a weight's rounding step: the weight must move after 300 of them."""
    step, count = 2.0**-7 / 300, 450  # around 1.5 numbers of bfloat16 are 2⁻⁷ apart
    ends = {}
    for name in ("float32", "masters", "without"):
        p = torch.nn.Parameter(torch.full((4,), 1.5, dtype=torch.float32 if name == "float32" else torch.bfloat16))
        own = torch.optim.AdamW([p], betas=BETAS, weight_decay=0.0) if name == "without" else None
        own = own or AdamW([p], betas=BETAS, weight_decay=0.0)
        for _ in range(count):
            own.zero_grad()
            p.float().sum().backward()
            if name == "without":
                own.param_groups[0]["lr"] = step
                own.step()
            else:
                own.step(step)
        ends[name] = float(p.detach()[0])
    assert ends["float32"] == pytest.approx(1.5 - step * count, rel=1e-4)
    assert abs(ends["masters"] - ends["float32"]) <= 2.0**-8
    assert ends["without"] == 1.5


@pytest.mark.parametrize("shape", [(3,), (5, 300)], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no CUDA"))])
def test_gradients_of_micro_batches_add_up_in_float32(shape, device):
    """In bfloat16, 256 + 1 is 256."""
    p = torch.nn.Parameter(torch.ones(shape, dtype=torch.bfloat16, device=device))
    own = AdamW([p], betas=BETAS, weight_decay=0.0)
    own.zero_grad()
    for part in [256.0] + [1.0] * 100:
        (p * part).sum().backward()
        assert p.grad is None  # its memory is free again
    assert own.masters[0].grad.dtype == torch.float32
    assert (own.masters[0].grad == 356.0).all()
    own.zero_grad()
    assert own.masters[0].grad is None


def float64_reference(start, gradients, lr, weight_decay):
    p, m, v = start.double().clone(), torch.zeros_like(start).double(), torch.zeros_like(start).double()
    for t, g in enumerate(gradients, 1):
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g.double(), BETAS[1] * v + (1 - BETAS[1]) * g.double() ** 2
        p = p * (1 - lr * weight_decay) - lr * (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt() + 1e-8)
    return p


@pytest.mark.parametrize("shape", [(3, 256), (5, 300), (2, 1024), (300, 7), (4, 3, 90), (1, 1)], ids=str)
def test_the_first_step_in_8_bits_is_exact(shape):
    """The update is made before the moments are rounded."""
    start, g = torch.randn(shape), torch.randn(shape)
    master, moments = start.clone(), Coded.zeros(start)
    coded_step(master, master, g, moments, rates(0.01, BETAS, 0.1, 1))
    expected = float64_reference(start, [g], 0.01, 0.1)
    assert torch.allclose(master.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_8_bits_deviate_little(spread):
    """Over 60 steps of noisy gradients whose sizes differ by e^±spread inside each block."""
    torch.manual_seed(0)
    size = torch.exp(torch.randn(16, 512) * spread)
    gradients = [size * (0.3 * torch.sin(torch.arange(512.0)) + torch.randn(16, 512)) for _ in range(60)]
    start = torch.randn(16, 512)
    master, moments = start.clone(), Coded.zeros(start)
    for t, g in enumerate(gradients, 1):
        coded_step(master, master, g, moments, rates(0.01, BETAS, 0.0, t))
    moved = float64_reference(start, gradients, 0.01, 0.0) - start.double()
    error = float((master.double() - start - moved).norm() / moved.norm())
    assert error < {0.5: 0.05, 2.0: 0.15}[spread]


@given(st.integers(0, 2**31), st.sampled_from([3, 64, 256, 700]), st.floats(-12, 4))
@settings(max_examples=40, deadline=None)
def test_a_code_is_next_to_its_number(seed, columns, exponent):
    x = torch.randn(4, columns, generator=torch.Generator().manual_seed(seed)) ** 3 * 10.0**exponent
    for codes, levels, roots, values in (
        (torch.empty(4, columns, dtype=torch.int8), coding.M_LEVELS, coding.M_ROOTS, x),
        (torch.empty(4, columns, dtype=torch.uint8), coding.V_LEVELS, coding.V_ROOTS, x.abs()),
    ):
        scale, dither = torch.empty(4), torch.rand(columns, generator=torch.Generator().manual_seed(seed))
        coding.encode(values, codes, scale, levels, roots, dither)
        found = decode(codes, scale, levels, roots)
        assert torch.equal(scale, values.abs().amax(1))
        assert (found * values >= 0).all()
        root = 1 / 2**roots
        off = ((found.abs() / scale[:, None]) ** root - (values.abs() / scale[:, None]) ** root).abs() * levels
        assert off.max() < 1.001
        if codes.dtype == torch.uint8:
            assert ((codes == 0) == (values == 0)).all()


def test_rounding_loses_nothing_on_average():
    torch.manual_seed(0)
    x = torch.randn(8, 256)
    for codes, levels, roots, values in (
        (torch.empty(8, 256, dtype=torch.int8), coding.M_LEVELS, coding.M_ROOTS, x),
        (torch.empty(8, 256, dtype=torch.uint8), coding.V_LEVELS, coding.V_ROOTS, x.square()),
    ):
        total, scale, steps = torch.zeros(8, 256), torch.empty(8), 1000
        for t in range(1, steps + 1):
            now = rates(0.0, BETAS, 0.0, t)
            stride, phase = (coding.M_STRIDE, now.m_phase) if levels == 127 else (coding.V_STRIDE, now.v_phase)
            coding.encode(values, codes, scale, levels, roots, (torch.arange(256) * stride + phase) % 1)
            total += decode(codes, scale, levels, roots)
        level = values.abs().amax() * 2**roots / levels  # the widest
        assert float((total / steps - values).abs().max()) < 0.005 * level


def test_moments_whose_gradient_stops_fade_as_in_float32():
    """Rounding to the nearest level would keep them for ever: 0.95 of a level's number is nearest to that level."""
    g = torch.ones(1, 256)
    g[0, 1::2] = 0.01
    master, moments = torch.zeros(1, 256), Coded.zeros(g)
    for t in range(1, 21):
        coded_step(master, master, g, moments, rates(0.0, BETAS, 0.0, t))
    before = decode(moments.v, moments.v_scale[:, 0], coding.V_LEVELS, coding.V_ROOTS)
    g[0, 1::2] = 0.0
    for t in range(21, 81):
        coded_step(master, master, g, moments, rates(0.0, BETAS, 0.0, t))
    after = decode(moments.v, moments.v_scale[:, 0], coding.V_LEVELS, coding.V_ROOTS)
    faded = float((after[0, 1::2] / before[0, 1::2]).mean())
    assert math.log(faded) == pytest.approx(60 * math.log(0.95), abs=0.25)


def regression(state: str | None, dtype=torch.float32, steps: int = 150, lr: float = 3e-3) -> float:
    """Two layers learn a function of two others; the loss at the end. State None is torch's AdamW, without masters."""
    draw = torch.Generator().manual_seed(0)
    w = [torch.randn(s, generator=draw) / s[1] ** 0.5 for s in ((300, 20), (3, 300))]
    x = torch.randn(256, 20, generator=draw)
    y = torch.tanh(x @ w[0].t()) @ w[1].t()
    p = [torch.nn.Parameter((torch.randn(s, generator=draw) / s[1] ** 0.5).to(dtype)) for s in ((300, 20), (3, 300))]
    if state is None:
        own = torch.optim.AdamW(p, betas=BETAS, weight_decay=0.0)
    else:
        own = AdamW(p, betas=BETAS, weight_decay=0.0, state=state)

    def loss():
        return (torch.tanh(x @ p[0].float().t()) @ p[1].float().t() - y).square().mean()

    for t in range(steps):
        own.zero_grad()
        loss().backward()
        if state is None:
            own.param_groups[0]["lr"] = lr * (1 - t / steps)
            own.step()
        else:
            own.step(lr * (1 - t / steps))
    return float(loss().detach())


def test_8_bits_learn_as_well_as_32():
    exact = regression("float32")
    assert exact < 0.02
    assert regression("8bit") < 1.1 * exact
    assert regression("8bit", torch.bfloat16) < 1.1 * exact + 1e-3


def test_bfloat16_training_follows_float32_with_masters_alone():
    options = {"lr": 1e-4, "steps": 100}
    start, wanted = regression("float32", lr=0.0, steps=1), regression("float32", **options)
    learned = start - wanted
    assert learned > 0.01 * start
    assert abs(regression("float32", torch.bfloat16, **options) - wanted) < 0.05 * learned
    assert abs(regression("8bit", torch.bfloat16, **options) - wanted) < 0.05 * learned
    assert abs(regression(None, torch.bfloat16, **options) - wanted) > 0.3 * learned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state", ["float32", "8bit"])
def test_the_state_goes_on_bit_for_bit(dtype, state):
    whole, torn = parameters(dtype), parameters(dtype)
    a = AdamW(whole, betas=BETAS, weight_decay=0.1, state=state)
    train(a, 4)
    b = AdamW(torn, betas=BETAS, weight_decay=0.1, state=state)
    b.load_state_dict(copy.deepcopy(a.state_dict()))
    for p, q in zip(torn, whole, strict=True):
        if dtype == torch.float32:
            p.data.copy_(q)  # the checkpoint's weights are their masters
        else:
            assert torch.equal(p, q)
    for own in (a, b):
        own.zero_grad()
        give_gradients(own.masters, 9)
        own.step(0.02)
    for p, q in zip((*torn, *b.masters), (*whole, *a.masters), strict=True):
        assert torch.equal(p, q)
    assert a.t == b.t == 5


@pytest.mark.parametrize(
    ("dtype", "state", "least", "most"),
    [(torch.float32, "float32", 8, 8), (torch.bfloat16, "float32", 12, 12), (torch.float32, "8bit", 2, 2.1),
     (torch.bfloat16, "8bit", 6, 6.1)],
)  # fmt: skip
def test_bytes_per_parameter(dtype, state, least, most):
    """What the optimizer keeps beside weights and gradients: the figures of docs/scaling.md."""
    own = AdamW(parameters(dtype, shapes=((512, 512),)), betas=BETAS, weight_decay=0.0, state=state)
    train(own, 1)
    kept = own.state_dict()
    tensors = [t for s in (*kept["state"].values(), *kept["coded"]) for t in s.values() if t.dim()] + kept["masters"]
    assert least <= sum(t.numel() * t.element_size() for t in tensors) / 512**2 <= most


def test_a_parameter_without_a_gradient_stays():
    for state in ("float32", "8bit"):
        p = parameters()
        before = [q.detach().clone() for q in p]
        own = AdamW(p, betas=BETAS, weight_decay=0.1, state=state)
        p[1].grad = torch.ones(7)
        own.step(0.1)
        assert [torch.equal(a, b) for a, b in zip(p, before, strict=True)] == [True, False, True]


@pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("shape", [(3, 256), (5, 300), (9, 1024), (30, 7), (4, 3, 90), (1, 1), (0, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_triton_step_is_the_plain_one(shape, dtype):
    from equipoise.kernels import triton_adamw

    device = "cuda" if CUDA else "cpu"
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=draw).to(dtype).float().to(device)
    size = torch.exp(torch.randn(shape, generator=draw)).to(device)
    ends = []
    for step in (coded_step, triton_adamw.coded_step):
        draw.manual_seed(1)
        master, moments = start.clone(), Coded.zeros(start)
        weight = master if dtype == torch.float32 else master.to(dtype)
        for t in range(1, 6):
            g = size * torch.randn(shape, generator=draw).to(device)
            step(weight, master, g, moments, rates(0.01, BETAS, 0.1, t), torch.zeros((), device=device))
        before = [x.clone() for x in (weight, master, *vars(moments).values())]
        step(weight, master, g * math.nan, moments, rates(0.01, BETAS, 0.1, 6), torch.ones((), device=device))
        assert all(map(torch.equal, before, (weight, master, *vars(moments).values())))
        ends.append((weight, master, moments))
    (_, p1, c1), (w2, p2, c2) = ends
    assert torch.equal(w2, p2.to(dtype)) if CUDA else torch.allclose(w2.float(), p2, rtol=2**-7)  # there it truncates
    if start.numel():
        # A quotient rounded otherwise now and then takes the other of two levels.
        assert float((p1 - p2).norm() / (p1 - start).norm()) < 1e-3
        for name in ("m", "v"):
            assert float((getattr(c1, name) != getattr(c2, name)).float().mean()) < 0.002
            a, b = getattr(c1, f"{name}_scale"), getattr(c2, f"{name}_scale")
            assert torch.allclose(a, b, rtol=1e-3)


@pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("shape", [(3, 1024), (5, 300), (1, 1), (7, 293), (0, 8)], ids=str)
def test_the_triton_sum_is_torchs_bit_for_bit(shape):
    from equipoise.kernels import triton_adamw

    device = "cuda" if CUDA else "cpu"
    draw = torch.Generator().manual_seed(0)
    total, part = (torch.randn(shape, generator=draw).to(device) for _ in range(2))
    wanted = total + part.bfloat16()
    triton_adamw.add(total, part.bfloat16())
    assert torch.equal(total, wanted)


@pytest.mark.parametrize("state", ["8bit", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_killed_bfloat16_run_resumes_bit_for_bit(server, model, tmp_path, state):
    whole, file = tmp_path / "whole", tmp_path / "empty.toml"
    options = {"model__dtype": "bfloat16", "optim__state": state, "optim__lr": 1e-4, "train__checkpoint_every": 1}
    options |= {"train__steps": 4, "eval__every": 0, "optim__weight_decay": 0.1}
    assert server.run(command(model, whole, file, **options)).code == 0
    out = killed_run(server, model, tmp_path, file, 1, random.Random(3), **options)
    assert outcome(out) == outcome(whole)
    kept = torch.load(last_checkpoint(out) / checkpoint.STATE, weights_only=False)["optimizer"]
    trained = models.load(last_checkpoint(out), dtype=torch.bfloat16).parameters()
    for master, weight in zip(kept["masters"], trained, strict=True):
        assert torch.equal(master.bfloat16(), weight)
    assert any((master != weight).any() for master, weight in zip(kept["masters"], trained, strict=True))
    assert bool(kept["coded"]) == (state == "8bit")


def test_a_bfloat16_gradient_is_as_good_from_many_micro_batches_as_from_one(model, tmp_path, monkeypatch):
    """Each one's gradient is rounded once; their sum is not."""
    apply, found = Updater._apply, []

    def watched(self, norm, fine):
        found.append(torch.cat([p.grad.flatten() for p in self.parameters]))
        apply(self, norm, fine)

    monkeypatch.setattr(Updater, "_apply", watched)
    for size in (0, 1):
        options = {"model__dtype": "bfloat16", "train__micro_batch": size, "train__steps": 1, "eval__every": 0}
        Trainer(tiny_run(model, tmp_path / str(size), log__terminal=False, **options)).run()
    assert found[0].dtype == torch.float32
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 2**-7


def test_gradients_are_summed_in_buckets_without_a_copy_of_all(monkeypatch):
    sizes = []

    def all_reduce(flat):
        sizes.append(flat.numel())
        flat.mul_(2)

    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "BUCKET", 10)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    p = [torch.zeros(s) for s in (4, 6, 1, 25, 3, (2, 2), (3, 4))]
    for i, q in enumerate(p):
        q.grad = None if i == 2 else torch.full_like(q, float(i))
    p[6].grad = torch.full((4, 3), 6.0).t()
    ranks.sum_gradients(p)
    assert sizes == [10, 1, 25, 7, 12]
    assert [float(q.grad.mean()) for q in p] == [0, 2, 0, 6, 8, 10, 12]
    assert p[6].grad.shape == (3, 4)
