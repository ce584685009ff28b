"""The fused head against plain torch: its Triton passes against the torch ones, and both functions against autograd.

On a machine without CUDA the Triton passes run in Triton's interpreter: install triton and set TRITON_INTERPRET=1.
"""

import importlib.util
import math
import os

import pytest
import torch

import equipoise as eq
from equipoise import policy as p
from equipoise.kernels import fused_logprobs, fused_loss, head, logit_passes
from equipoise.kernels.logit_passes import Chunk, Softmax
from equipoise.kernels.token_terms import SLOPES, is_token_level, slopes
from equipoise.kernels.token_terms import pull as pull_of
from equipoise.objective.regularizer import KL_ESTIMATORS
from equipoise.objective.surrogate import SEQUENCE_LEVEL, SURROGATES
from equipoise.policy.logprobs import token_loss
from tests.policy import tiny_models

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs CUDA, or triton and TRITON_INTERPRET=1")

TRITON = pytest.param("triton", marks=needs_triton)
SOFTMAXES = [Softmax(1.0, None), Softmax(0.6, None), Softmax(1.3, 5.0)]
OBJECTIVES = {
    **{name: eq.Objective.preset(name) for name in eq.PRESETS if name != "distillation"},  # its credit is the teacher's
    "dfpo": eq.Objective.preset("dfpo", surrogate={"low": 0.9, "high": 20.0}),  # a region with most of the tokens in it
    "dual_clip": eq.Objective(surrogate="dual_clip"),
    "dppo kl": eq.Objective(surrogate={"name": "dppo", "divergence": "kl", "low": 0.01, "high": 0.01}),
    "balanced prefix": eq.Objective(aggregation="balanced", cancellation="prefix"),
    "recentre": eq.Objective(cancellation="recentre"),
    "gspo orthogonal": eq.Objective(surrogate="gspo", cancellation="orthogonal"),
    **{name: eq.Objective(kl=0.3, kl_estimator=name) for name in KL_ESTIMATORS},
    "entropy": eq.Objective.preset("dapo", entropy_bonus=0.2),
    "tis": eq.Objective.preset("dapo", mismatch="tis"),
    "mis": eq.Objective.preset("dapo", mismatch="mis"),
    "everything": eq.Objective.preset("dapo", kl=0.1, kl_estimator="k3_ratio", entropy_bonus=0.1, mismatch="tis"),
}


def of(kind):
    """The module of that kind of passes."""
    if kind == "torch":
        return logit_passes
    from equipoise.kernels import triton_logit_passes

    return triton_logit_passes


def skip_where_triton_cannot(kind, dtype):
    if kind == "triton" and dtype == torch.float64:
        pytest.skip("Triton passes are float32")


@pytest.fixture(params=["its own product", "torch's"])
def product(request, monkeypatch):
    """Whether the Triton passes make the product themselves. Called with a chunk: that chunk, and one to compare with,
    which has the same roundings: none, or, where torch makes logits in bfloat16, theirs.

    The interpreter has no products of bfloat16, and a Hopper no room for tiles of float32.
    """

    def compared(c):
        own, rounded = request.param == "its own product", c.z.dtype == torch.bfloat16
        if own and rounded != CUDA:
            pytest.skip("no such product")
        monkeypatch.setattr(of("triton"), "multiplies", lambda x: own)
        if not own and rounded:
            logit_passes.make_logits(c)
            make_logits = logit_passes.make_logits
            same_type = lambda x: make_logits(x) if x.z.dtype == c.z.dtype else None  # noqa: E731
            monkeypatch.setattr(logit_passes, "make_logits", same_type)
        return placed(c, "triton"), wide(c)

    return compared


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def chunk(n, V, dtype, softmax=SOFTMAXES[0], *, d=40, bias=False, top=False, seed=0):
    """Tokens from flat to nearly certain, of which every other is the likeliest.

    Logits are counted from the target's, or, as a good guess of its log-probability has it, from about the largest.
    """
    g = generator(seed)
    hidden = (torch.logspace(-1, 1.2, n)[:, None] * torch.randn(n, d, generator=g) / d**0.5).to(dtype)
    weight = torch.randn(V, d, generator=g).to(dtype)
    head_bias = torch.randn(V, generator=g).to(dtype) if bias else None
    raw = hidden.double() @ weight.double().t() + (0 if head_bias is None else head_bias.double())
    targets = torch.randint(V, (n,), generator=g)
    targets[::2] = raw[::2].argmax(1)
    own = raw.gather(1, targets[:, None])[:, 0]
    shift = (raw.amax(1) if top else own).to(dtype)
    z = torch.full((n, V), torch.nan, dtype=dtype)
    return placed(on_device(Chunk(hidden, weight, head_bias, targets, own.float(), shift.float(), softmax, z)), "torch")


def placed(c, kind):
    """With new room, where that kind of passes has it."""
    (n, V), width = c.z.shape, -(-c.z.shape[1] // logit_passes.ALIGNED) * logit_passes.ALIGNED
    return c._replace(z=of(kind).room(c.z.new_full((n * width,), torch.nan), n, V))


def on_device(c):
    return c._replace(**{k: v.to(DEVICE) for k, v in c._asdict().items() if isinstance(v, torch.Tensor)})


def wide(c):
    """The same numbers in float64."""
    floats = {k: v for k, v in c._asdict().items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return c._replace(**{k: v.double() for k, v in floats.items()})


def numbers(n, count, seed=1):
    return torch.randn(count, n, generator=generator(seed)).to(DEVICE).unbind()


def assert_near(got, wanted, dtype, *, scale=1.0):
    if dtype == torch.bfloat16:  # rounded on the way in places: compared as a whole
        error = (got.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-6)
        assert float(error.detach()) < 4e-3 * scale
        return
    tolerance = {torch.float64: 1e-11, torch.float32: 3e-6}[dtype]
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance * scale, atol=tolerance * scale)


# The passes


@needs_triton
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("V", "d"), [(7, 1), (300, 64), (50, 1500)])
def test_target_logits_pass(V, d, dtype, bias):
    c = chunk(64, V, dtype, d=d, bias=bias)
    exact = wide(c)
    for guess in (-torch.rand(64, generator=generator()).to(DEVICE), None):
        of("triton").target_logits(c, guess)
        logit_passes.target_logits(exact, guess)
        torch.testing.assert_close(c.own.double(), exact.own, rtol=1e-5, atol=1e-4)
        rounding = 8e-3 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(c.shift.double(), exact.shift, rtol=rounding, atol=1e-4)
        assert torch.equal(c.shift, c.shift.to(dtype).float())


SHAPES = [(128, 2, 8, False), (128, 257, 64, True), (256, 1000, 136, False), (128, 5011, 40, False)]


@needs_triton
@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "V", "d", "bias"), SHAPES)
def test_statistics_pass(n, V, d, bias, dtype, softmax, product):
    c = chunk(n, V, dtype, softmax, d=d, bias=bias)
    c, exact = product(c)
    got = torch.full((3, n), torch.nan, device=DEVICE)
    wanted = got.double()
    of("triton").statistics(c, *got)
    logit_passes.statistics(exact, *wanted)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("kind", ["torch", TRITON])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [3, 1024, 1500])
def test_scale_rows_pass(kind, d, dtype):
    x = torch.randn(6, d, generator=generator()).to(dtype).to(DEVICE)
    factor = torch.tensor([1.0, -0.3, 1e-6, 0.0, 7.0, 0.0], device=DEVICE)
    x[5] = torch.nan
    wanted = (x.double() * factor.double()[:, None]).nan_to_num(0.0)
    out = torch.full_like(x, torch.inf)
    of(kind).scale_rows(x, factor, out)
    of(kind).scale_rows(x, factor, x)
    assert torch.equal(x, out)
    rounding = 8e-3 if dtype == torch.bfloat16 else 1e-6  # of the interpreter, which truncates
    torch.testing.assert_close(out.double(), wanted, rtol=rounding, atol=0)


@needs_triton
@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "V", "d", "bias"), SHAPES[1:])
@pytest.mark.parametrize("which", ["logprob", "entropy", "both"])
def test_gradient_pass(n, V, d, bias, dtype, softmax, which, product):
    c = chunk(n, V, dtype, softmax, d=d, bias=bias)
    c, exact = product(c)
    _, entropy, lse = values = torch.empty(3, n, device=DEVICE, dtype=torch.float64).unbind()
    logit_passes.statistics(exact, *values)
    g, h = numbers(n, 2)
    g, h = (None if which == "entropy" else g), (None if which == "logprob" else h)
    if h is not None:
        h[0] = 0
    of("triton").gradient_(c, lse.float(), entropy.float(), g, h)
    logit_passes.gradient_(exact, lse, entropy, *(None if x is None else x.double() for x in (g, h)))
    assert_near(c.z, exact.z, dtype, scale=20 if dtype == torch.float32 else 1)  # x is up to 100 and has seven digits


@needs_triton
@pytest.mark.parametrize("name", [name for name, objective in OBJECTIVES.items() if is_token_level(objective)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softmax", [Softmax(0.8, None), Softmax(1.3, 5.0)])
def test_loss_gradient_pass(name, dtype, softmax, product):
    n, V = 128, 300
    c = chunk(n, V, dtype, softmax, top=True)
    c, exact = product(c)
    wanted = torch.empty(2, n, device=DEVICE, dtype=torch.float64)
    logit_passes.statistics(exact, *wanted, torch.empty_like(wanted[0]))
    pull = Case(dtype=torch.float64).pull(OBJECTIVES[name]).padded(n)
    far = torch.tensor([0.0, 0.1, -0.1, 0.5, -0.7, 3.0, -3.0, 25.0, -25.0], dtype=torch.float64, device=DEVICE)
    old = (wanted[0] - far.repeat(n)[:n]).clamp(max=-1e-4)
    old[5] = torch.nan
    pull = pull._replace(old=old)
    logit_passes.loss_gradient_(exact, pull, *wanted)
    single = pull._replace(**{k: v.float() for k, v in pull._asdict().items() if isinstance(v, torch.Tensor)})
    got = torch.full((2, n), torch.nan, device=DEVICE)
    factor = of("triton").loss_gradient_(c, single, *got)
    gradient = c.z.double() if factor is None else c.z.double() * factor[:, None]
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=3e-5)
    assert exact.z[5].abs().max() == 0
    assert exact.z.abs().sum(1).count_nonzero() >= 8
    # ρ can be e²⁰: compare each token by its own slope. log π is a difference of numbers up to 100, with seven digits.
    g, h = slopes(pull, *wanted)
    size = (g.abs() + (0 if h is None else h.abs())).clamp_min(1e-3 * float(pull.c.abs().max()))[:, None]
    assert_near(gradient / size, exact.z / size, dtype, scale=20 if dtype == torch.float32 else 2)


@needs_triton
def test_a_tokens_numbers_do_not_depend_on_the_chunk_it_is_in(product):
    c = chunk(384, 700, torch.bfloat16 if CUDA else torch.float32)
    c, _ = product(c)
    whole = torch.empty(3, 384, device=DEVICE)
    of("triton").statistics(c, *whole)
    middle = c._replace(**{k: getattr(c, k)[128:256] for k in ("hidden", "targets", "own", "shift", "z")})
    middle = placed(middle, "triton")
    alone = torch.empty(3, 128, device=DEVICE)
    of("triton").statistics(middle, *alone)
    assert torch.equal(alone, whole[:, 128:256])


def test_the_triton_pass_knows_every_token_level_surrogate():
    assert set(SLOPES) == set(SURROGATES) - SEQUENCE_LEVEL
    for name, options in SLOPES.items():
        known = eq.Objective(surrogate=name).surrogate.options
        assert set(options) == set(known) - {"divergence"}


@pytest.mark.parametrize("kind", ["torch", TRITON])
def test_a_logit_masked_by_the_bias_has_probability_zero_and_no_gradient(kind):
    c = chunk(128, 600, torch.float32, bias=True, top=True)
    c.bias[100:500] = -torch.inf
    raw = c.hidden @ c.weight.t() + c.bias
    c.targets[:], c.own[:] = 7, raw[:, 7]
    pull = Case().pull(OBJECTIVES["dapo"]).padded(128)
    kept = torch.cat([raw[:, :100], raw[:, 500:]], 1).double().log_softmax(1)
    got = torch.empty(3, 128, device=DEVICE)
    for call in (lambda: of(kind).statistics(c, *got), lambda: of(kind).loss_gradient_(c, pull, *got[:2])):
        call()
        torch.testing.assert_close(got[0].double(), kept[:, 7], rtol=1e-5, atol=3e-5)
        torch.testing.assert_close(got[1].double(), -(kept.exp() * kept).sum(1), rtol=1e-5, atol=3e-5)
    assert c.z.isfinite().all()
    assert c.z[:, 100:500].abs().max() == 0
    of(kind).gradient_(c, got[2], got[1], *numbers(128, 2))
    assert c.z.isfinite().all()
    assert c.z[:, 100:500].abs().max() == 0


@pytest.mark.parametrize("kind", ["torch", TRITON])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["dapo", "everything"])
def test_a_token_that_is_not_finite_is_told_and_does_not_pull(kind, value, name):
    c = chunk(128, 600, torch.float32, top=True)
    c.hidden[2, 3] = value
    if name == "dapo":  # its pass caps exponents: what overflows is known from the target
        c.own[2] = torch.nan
    logprobs, entropy = torch.zeros(2, 128, device=DEVICE).unbind()
    factor = of(kind).loss_gradient_(c, Case().pull(OBJECTIVES[name]).padded(128), logprobs, entropy)
    gradient = c.z if factor is None else c.z * factor[:, None]
    assert not logprobs[2].isfinite()
    assert logprobs.isfinite().sum() == 127
    assert c.z.isfinite().all()
    assert gradient[2].abs().max() == 0
    assert gradient.abs().max() > 0


@needs_triton
@pytest.mark.parametrize("name", ["dapo", "cispo", "sapo", "k3"])
def test_a_token_that_became_all_but_impossible_stays_finite_and_does_not_pull(name):
    """Its exponents are capped at 2¹⁰⁰: log ρ is told as −69 or so, where every surrogate has given up."""
    c = chunk(128, 600, torch.float32)
    weight, bias = torch.cat([c.weight, c.weight[:1]]), torch.full((601,), 150.0, device=DEVICE)
    bias[600] = 0.0  # a column of its own for the targets, as far below all others
    own = c.hidden @ c.weight[0]
    z = torch.empty(128, 601, device=DEVICE)
    c = c._replace(weight=weight, bias=bias, targets=torch.full_like(c.targets, 600), own=own, shift=own.clone(), z=z)
    c = placed(c, "triton")
    logprobs, entropy = torch.zeros(2, 128, device=DEVICE).unbind()
    pull = Case().pull(OBJECTIVES[name]).padded(128)._replace(old=torch.full((128,), -1.0, device=DEVICE))
    factor = of("triton").loss_gradient_(c, pull, logprobs, entropy)
    assert logprobs.isfinite().all()
    assert logprobs.max() < -50
    assert (c.z * factor[:, None]).abs().max() < 1e-6


@needs_triton
def test_a_target_that_is_no_column_is_told():
    c = chunk(128, 61, torch.float32)
    c.targets[0], c.targets[1] = -100, 61
    of("triton").target_logits(c, None)
    assert c.own.isnan().nonzero()[:, 0].tolist() == [0, 1]


def test_entropy_keeps_its_digits_where_a_token_is_nearly_certain():
    """H ≈ ε(1 − log ε) with one other logit at log ε; counted from 0, not from the maximum, it would be rounding."""
    below = torch.tensor([8.0, 10.0, 14.0], device=DEVICE).repeat(43)[:128]
    hidden, weight = torch.zeros(128, 8, device=DEVICE), torch.zeros(512, 8, device=DEVICE)
    hidden[:, 0], hidden[:, 1] = 1.0, -below
    weight[:, 0] = -1e4
    weight[3, 0], weight[77, :2] = 300.0, torch.tensor([300.0, 1.0], device=DEVICE)
    own, targets = torch.full((128,), 300.0, device=DEVICE), torch.full((128,), 3, device=DEVICE)
    room = torch.empty(128, 512, device=DEVICE)
    c = Chunk(hidden, weight, None, targets, own, torch.zeros_like(own), SOFTMAXES[0], room)
    q = torch.sigmoid(-below.double())
    H = -(q * q.log() + (1 - q) * torch.log1p(-q))
    for kind in ["torch", "triton"] if HAS_TRITON else ["torch"]:
        got = torch.empty(3, 128, device=DEVICE)
        of(kind).statistics(placed(c, kind), *got)
        torch.testing.assert_close(got[1].double(), H, rtol=0.05, atol=3e-7)


# The functions


class Case:
    """Responses in groups with everything an objective can ask for; hidden states and a head, all from a seed."""

    def __init__(self, *, dtype=torch.float32, d=24, V=61, bias=False, seed=0, drift=0.3):
        g = generator(seed)
        self.lengths = torch.tensor([3, 1, 4, 2, 5, 2, 3, 4])
        self.group = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
        self.rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.0, 1.0])
        n = int(self.lengths.sum())

        def draw(*shape, scale=1.0):
            return (scale * torch.randn(*shape, generator=g, dtype=torch.float64)).to(dtype).to(DEVICE)

        self.hidden, self.weight = draw(n, d), draw(V, d, scale=0.4)
        self.bias = draw(V) if bias else None
        self.targets = torch.randint(V, (n,), generator=g).to(DEVICE)
        self.targets[3] = self.targets[0]  # a shared first token
        self.response, self.position = eq.response_ids(self.lengths).to(DEVICE), eq.positions(self.lengths).to(DEVICE)
        with torch.no_grad():
            logp = self.logprobs(*self.leaves(), Softmax(1.0, None), V)[0]
        wide = torch.promote_types(dtype, torch.float32)
        near = [(logp + draw(n, scale=drift)).clamp(max=-1e-3).to(wide) for _ in range(3)]
        self.old, self.ref, self.rollout = near

    def leaves(self):
        leaves = (
            None if x is None else x.detach().clone().requires_grad_() for x in (self.hidden, self.weight, self.bias)
        )
        return tuple(leaves)

    def logprobs(self, hidden, weight, bias, softmax, vocabulary):
        """Plain torch in float64: log-probabilities and entropies."""
        z = hidden.double() @ weight.double().t()[:, :vocabulary]
        z = z if bias is None else z + bias.double()[:vocabulary]
        z = z if softmax.softcap is None else softmax.softcap * torch.tanh(z / softmax.softcap)
        logp = (z / softmax.temperature).log_softmax(-1)
        return logp.gather(1, self.targets[:, None])[:, 0], -(logp.exp() * logp).sum(1)

    def credit(self, objective):
        batch = (x.to(DEVICE) for x in (self.rewards, self.group, self.lengths))
        return objective.assign(*batch, tokens=self.targets)

    def others(self):
        return {"position": self.position, "ref_logprobs": self.ref, "rollout_logprobs": self.rollout}

    def pull(self, objective):
        return pull_of(
            objective, self.old, self.credit(objective), self.response, self.old.dtype, position=self.position,
            ref=self.ref, rollout=self.rollout,
        )  # fmt: skip


@pytest.fixture(params=["torch", TRITON])
def kind(request, monkeypatch):
    """Both kinds of passes behind the functions, on whatever device there is."""
    monkeypatch.setattr(head, "_passes", lambda *rows: of(request.param))
    return request.param


def gradients(leaves):
    return [x.grad for x in leaves if x is not None and x.requires_grad]


@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("V", "vocabulary", "bias"), [(61, None, False), (64, 59, True), (7, 3, False)])
@pytest.mark.parametrize("chunk", [1 << 20, 500])
def test_fused_logprobs_and_their_gradient(kind, softmax, dtype, V, vocabulary, bias, chunk, monkeypatch):
    skip_where_triton_cannot(kind, dtype)
    monkeypatch.setattr(head, "_chunk_bytes", lambda x: chunk)
    case = Case(dtype=dtype, V=V, bias=bias)
    case.targets %= vocabulary or V
    a, b = case.leaves(), case.leaves()
    got = fused_logprobs(
        a[0], a[1], case.targets, bias=a[2], temperature=softmax.temperature, softcap=softmax.softcap,
        vocabulary=vocabulary,
    )  # fmt: skip
    wanted = case.logprobs(*b, softmax, vocabulary or V)
    weights = numbers(len(case.targets), 2)
    sum((x * w).sum() for x, w in zip(got, weights, strict=True)).backward()
    sum((x * w).sum() for x, w in zip(wanted, weights, strict=True)).backward()
    for x, y in zip(got, wanted, strict=True):
        assert x.dtype == torch.promote_types(dtype, torch.float32)
        assert_near(x, y, dtype, scale=5)
    for x, y in zip(gradients(a), gradients(b), strict=True):
        assert x.dtype == dtype
        assert x.is_contiguous()
        assert_near(x, y, dtype, scale=6)  # the interpreter truncates


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_loss_is_the_objectives(kind, name, dtype):
    skip_where_triton_cannot(kind, dtype)
    objective = OBJECTIVES[name]
    case = Case(dtype=dtype)
    credit = case.credit(objective)
    a, b = case.leaves(), case.leaves()
    out = fused_loss(*a[:2], case.targets, objective, case.old, credit, case.response, temperature=0.8, **case.others())
    logprobs, entropy = case.logprobs(*b, Softmax(0.8, None), len(case.weight))
    wanted = objective.loss(logprobs, case.old, credit, case.response, entropy=entropy, **case.others())
    (3 * out.loss).backward()
    (3 * wanted.loss).backward()
    assert bool(out.ok)
    assert_near(out.loss, wanted.loss, dtype, scale=10)
    for x, y in zip(gradients(a), gradients(b), strict=True):
        size = y.abs().max()
        assert size > 0
        assert_near(x / size, y / size, dtype, scale=10)
    assert out.metrics.keys() == wanted.metrics.keys()
    for key in ("kl", "entropy", "clip_ratio/region", "ratio/mean"):
        assert_near(out.metrics[key], wanted.metrics[key], dtype, scale=10)


@pytest.mark.parametrize("surrogate", ["ppo_clip", "cispo", {"name": "gspo", "low": 0.5, "high": 0.5}])
def test_bfloat16_gradients_point_where_float64_ones_do(kind, surrogate):
    """With logits up to 20, which rounded as they are would be off by up to 0.06 each."""
    objective = eq.Objective(surrogate=surrogate, kl=0.1, entropy_bonus=0.01)
    case = Case(dtype=torch.bfloat16, d=64, V=1000, drift=0.02)
    case.hidden += 4 * torch.nn.functional.normalize(case.weight[case.targets].float()).bfloat16()
    case.old = case.logprobs(*case.leaves(), SOFTMAXES[0], 1000)[0].detach().float() + 0.01
    credit = case.credit(objective)
    a, b = case.leaves(), case.leaves()
    fused_loss(*a[:2], case.targets, objective, case.old, credit, case.response, **case.others()).loss.backward()
    logprobs, entropy = case.logprobs(*b, Softmax(1.0, None), 1000)
    objective.loss(logprobs, case.old, credit, case.response, entropy=entropy, **case.others()).loss.backward()
    for x, y in zip(gradients(a), gradients(b), strict=True):
        assert float(torch.cosine_similarity(x.double().flatten(), y.double().flatten(), 0)) > 0.99999


@pytest.mark.parametrize("name", [name for name, objective in OBJECTIVES.items() if is_token_level(objective)])
def test_slopes_are_the_losss_derivatives(name):
    """The closed forms against autograd through `Objective.loss`, clipped and far-off ratios included."""
    objective, case = OBJECTIVES[name], Case(dtype=torch.float64, drift=1.0)
    case.old[:4] -= torch.tensor([0.0, 25.0, -25.0, torch.nan], device=DEVICE)
    case.ref[4], case.rollout[6] = torch.inf, torch.nan
    credit = case.credit(objective)
    logp, entropy = (x.detach().requires_grad_() for x in case.logprobs(*case.leaves(), Softmax(1.0, None), 61))
    out = objective.loss(logp, case.old, credit, case.response, entropy=entropy, **case.others())
    g, h = torch.autograd.grad(out.loss, (logp, entropy), allow_unused=True, materialize_grads=True)
    pull = case.pull(objective)
    got_g, got_h = slopes(pull, logp.detach(), entropy.detach())
    torch.testing.assert_close(got_g, g, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.zeros_like(h) if got_h is None else got_h, h, rtol=1e-12, atol=1e-14)


def test_a_token_level_objective_takes_three_products_and_others_four(monkeypatch):
    case = Case()
    products = []
    for name in ("mm", "addmm"):
        original = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, f=original, **k: products.append(1) or f(*a, **k))
    counts = {}
    for name in ("dapo", "cispo", "gspo", "mis"):
        products.clear()
        objective, (hidden, weight, _) = OBJECTIVES[name], case.leaves()
        out = fused_loss(
            hidden, weight, case.targets, objective, case.old, case.credit(objective), case.response, **case.others()
        )
        out.loss.backward()
        counts[name] = len(products)
    assert counts == {"dapo": 3, "cispo": 3, "gspo": 4, "mis": 4}


@pytest.mark.parametrize("name", ["dapo", "gspo"])
def test_what_needs_no_gradient_gets_none(kind, name):
    objective, case = OBJECTIVES[name], Case(bias=True)
    credit = case.credit(objective)

    def run(*wanted):
        leaves = [x.detach().requires_grad_(w) for x, w in zip(case.leaves(), wanted, strict=True)]
        out = fused_loss(*leaves[:2], case.targets, objective, case.old, credit, case.response, bias=leaves[2])
        if any(wanted):
            out.loss.backward()
        return out.loss.detach(), [x.grad for x in leaves]

    loss, whole = run(True, True, True)
    for wanted in [(True, False, False), (False, True, False), (False, False, True), (False, False, False)]:
        same, some = run(*wanted)
        torch.testing.assert_close(same, loss, rtol=1e-5, atol=1e-7)
        for w, x, y in zip(wanted, some, whole, strict=True):
            assert (x is not None) == w
            if w:
                assert torch.equal(x, y)


@pytest.mark.parametrize("name", ["dapo", "gspo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tokens_no_gradient(kind, name, dtype):
    objective, case = OBJECTIVES[name], Case(dtype=dtype)
    credit = case.credit(objective)
    hidden, weight, _ = case.leaves()
    nothing = torch.empty(0, dtype=torch.int64, device=DEVICE)
    out = fused_loss(hidden[:0], weight, nothing, objective, case.old[:0], credit, nothing)
    out.loss.backward()
    assert float(out.loss.detach()) == 0
    assert weight.grad.abs().max() == 0


@pytest.mark.parametrize("name", ["dapo", "gspo", "everything"])
def test_strides_change_nothing(kind, name):
    """Every tensor as a view of a larger one, its entries not side by side."""
    objective, case = OBJECTIVES[name], Case()

    def spread(x):
        return torch.stack([x, torch.zeros_like(x)], -1)[..., 0]

    found = []
    for change in (lambda x: x, spread):
        hidden, weight = (change(x.detach()).requires_grad_() for x in (case.hidden, case.weight))
        targets, old, response = (change(x) for x in (case.targets, case.old, case.response))
        others = {k: change(v) for k, v in case.others().items()}
        out = fused_loss(hidden, weight, targets, objective, old, case.credit(objective), response, **others)
        out.loss.backward()
        found.append([out.loss.detach(), hidden.grad, weight.grad])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-7)


def test_a_second_derivative_is_refused():
    case = Case()
    hidden, weight, _ = case.leaves()
    logprobs = fused_logprobs(hidden, weight, case.targets)[0]
    (g,) = torch.autograd.grad(logprobs.square().sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


@pytest.mark.parametrize("halves", [False, True])
def test_one_sum_or_two_halves_give_the_same_gradient(kind, halves, monkeypatch):
    objective, case = OBJECTIVES["dapo"], Case(dtype=torch.bfloat16)
    b = case.leaves()
    monkeypatch.setattr(head, "_chunk_bytes", lambda x: 2000 if halves else 1 << 20)
    leaves = case.leaves()
    credit = case.credit(objective)
    fused_loss(*leaves[:2], case.targets, objective, case.old, credit, case.response).loss.backward()
    objective.loss(case.logprobs(*b, SOFTMAXES[0], 61)[0], case.old, credit, case.response).loss.backward()
    for x, y in zip(gradients(leaves), gradients(b), strict=True):
        assert_near(x, y, torch.bfloat16, scale=5)


def test_two_runs_give_the_same_bits(kind):
    objective, case = OBJECTIVES["everything"], Case(dtype=torch.bfloat16, d=64, V=1000)
    credit = case.credit(objective)
    runs = []
    for _ in range(2):
        leaves = case.leaves()
        out = fused_loss(*leaves[:2], case.targets, objective, case.old, credit, case.response, **case.others())
        out.loss.backward()
        runs.append([out.loss.detach(), *gradients(leaves)])
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


def test_backward_a_second_time_is_refused():
    objective, case = OBJECTIVES["dapo"], Case()
    hidden, weight, _ = case.leaves()
    out = fused_loss(hidden, weight, case.targets, objective, case.old, case.credit(objective), case.response)
    out.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call fused_loss again"):
        out.loss.backward()


def test_a_number_that_is_not_finite_is_told_and_leaves_the_rest_alone(kind):
    objective, case = OBJECTIVES["everything"], Case()
    credit = case.credit(objective)
    case.old[2] = torch.nan
    case.ref[5] = torch.inf
    a, b = case.leaves(), case.leaves()
    out = fused_loss(*a[:2], case.targets, objective, case.old, credit, case.response, **case.others())
    out.loss.backward()
    assert not bool(out.ok)
    assert int(out.metrics["nonfinite_tokens"]) == 2
    logprobs, entropy = case.logprobs(*b, Softmax(1.0, None), 61)
    objective.loss(logprobs, case.old, credit, case.response, entropy=entropy, **case.others()).loss.backward()
    assert a[0].grad[[2, 5]].abs().max() == 0
    for x, y in zip(gradients(a), gradients(b), strict=True):
        assert_near(x, y, torch.float32, scale=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": lambda x: x[:, :5]}, r"d alike"),
        ({"hidden": lambda x: x.half(), "weight": lambda x: x.half()}, r"underflow in float16"),
        ({"hidden": lambda x: x.bfloat16()}, r"one precision for both"),
        ({"targets": lambda x: x[1:]}, r"targets has shape \(23,\)"),
        ({"targets": lambda x: x.int()}, r"int32"),
        ({"bias": lambda x: x[1:]}, r"bias has shape \(60,\)"),
        ({"temperature": lambda x: 0.0}, r"temperature = 0.0"),
        ({"softcap": lambda x: -1.0}, r"softcap = -1.0"),
        ({"vocabulary": lambda x: 62}, r"vocabulary = 62: must be 1 to 61"),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_door(change, message):
    case = Case(bias=True)
    given = {"hidden": case.hidden, "weight": case.weight, "targets": case.targets, "bias": case.bias}
    given |= {"temperature": 1.0, "softcap": None, "vocabulary": None}
    given |= {key: f(given[key]) for key, f in change.items()}
    with pytest.raises(ValueError, match=message):
        fused_logprobs(given.pop("hidden"), given.pop("weight"), given.pop("targets"), **given)


@pytest.mark.parametrize("tokens", [0, 128, 5120, 16384])
@pytest.mark.parametrize("most", [1, 200, 256, 700, 2560, 10**6])
def test_chunks_cover_every_token_once_and_stay_small(tokens, most):
    chunks = head._chunks(tokens, 10, 10 * most)
    assert [i for c in chunks for i in range(tokens)[c]] == list(range(tokens))
    sizes = [c.stop - c.start for c in chunks]
    assert max(sizes, default=0) <= max(most, 128)
    assert all(size % 128 == 0 for size in sizes)
    assert len(sizes) <= math.ceil(tokens / max(128, most // 256 * 256))


@pytest.mark.parametrize(("V", "d"), [(1, 3), (2, 8), (511, 8), (512, 3), (513, 16), (1999, 8)])
def test_narrowing_in_place_is_narrowing(V, d):
    half = -(-V // 2)
    whole = torch.randn(V, d, generator=generator()).to(DEVICE)
    first, second = whole[:half].clone(), whole[half:].clone()
    scale = torch.tensor(0.37, device=DEVICE)
    out = head._narrowed(first, second, torch.bfloat16, scale)
    assert torch.equal(out, (whole * scale).bfloat16())
    assert out.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()


@pytest.mark.parametrize("tied", [False, True])
def test_a_models_head_and_tied_embeddings(tied):
    """Through a model: the gradient of a tied weight is the sum of both its uses."""
    policy = tiny_models.policy()
    if tied:
        policy.model.config.tie_word_embeddings = True
        policy.model.lm_head.weight = policy.model.model.embed_tokens.weight
    ids = torch.randint(3, tiny_models.VOCABULARY, (1, 20), generator=generator())
    objective = eq.Objective.preset("dapo")
    rewards, group, lengths = torch.tensor([1.0, 0.0]), [0, 0], torch.tensor([10, 9])
    credit = objective.assign(rewards, group, lengths)
    response, targets = eq.response_ids(lengths), ids[0, 1:]
    old = torch.full((19,), -3.0)
    found = []
    for fused in (False, True):
        policy.model.zero_grad()
        hidden = policy.model.model(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
        weight = policy.model.lm_head.weight
        if fused:
            loss = fused_loss(hidden, weight, targets, objective, old, credit, response).loss
        else:
            logp = (hidden @ weight.t()).log_softmax(-1).gather(1, targets[:, None])[:, 0]
            loss = objective.loss(logp, old, credit, response).loss
        loss.backward()
        found.append({name: q.grad.clone() for name, q in policy.model.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for name, wanted in found[0].items():
        torch.testing.assert_close(found[1][name], wanted, atol=1e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("preset", ["dapo", "gspo"])
def test_token_loss_is_the_objectives_loss_of_the_packs_logprobs(preset):
    policy = tiny_models.policy()
    policy.model.to(DEVICE)
    prompts = tiny_models.prompts(3)
    tokens, lengths, prompt = (x.to(DEVICE) for x in tiny_models.responses(prompts, 4))
    pack = p.pack(prompts, tokens, lengths, prompt)
    objective = eq.Objective.preset(preset)
    credit = objective.assign((torch.arange(12) % 3).to(DEVICE), prompt, lengths)
    response, old = eq.response_ids(lengths), torch.full((len(tokens),), -3.0, device=DEVICE)
    found = []
    for _ in range(2):
        policy.model.zero_grad()
        if found:
            loss = token_loss(policy, pack, objective, old, credit, response, temperature=0.7).loss
        else:
            logprobs = p.token_logprobs(policy, pack, temperature=0.7).logprobs
            loss = objective.loss(logprobs, old, credit, response).loss
        loss.backward()
        found.append({"loss": loss.detach(), **{name: q.grad.clone() for name, q in policy.model.named_parameters()}})
    for name, wanted in found[0].items():
        torch.testing.assert_close(found[1][name], wanted, atol=1e-5, rtol=1e-3, msg=name)


# On a GPU only


@needs_cuda
@pytest.mark.parametrize("name", ["dapo", "gspo"])
def test_memory_does_not_grow_with_the_tokens(name):
    objective = OBJECTIVES[name]
    V, d = 151_936, 64
    weight = (0.02 * torch.randn(V, d, device="cuda", dtype=torch.bfloat16)).requires_grad_()
    extra = {}
    for n in (5120, 51200):
        lengths = torch.full((n // 1024,), 1024, device="cuda")
        credit = objective.assign(
            torch.arange(len(lengths), device="cuda") % 2, torch.arange(len(lengths)) // 4, lengths
        )
        hidden = torch.randn(n, d, device="cuda", dtype=torch.bfloat16).requires_grad_()
        targets = torch.randint(V, (n,), device="cuda")
        old = torch.full((n,), -11.0, device="cuda")
        weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fused_loss(hidden, weight, targets, objective, old, credit, eq.response_ids(lengths)).loss.backward()
        torch.cuda.synchronize()
        products = hidden.numel() * 2 + V * d * 4
        extra[n] = torch.cuda.max_memory_allocated() - before - products
    assert max(extra.values()) < 0.75 * 2**30
    assert extra[51200] - extra[5120] < 16 * 2**20


@needs_cuda
def test_more_logits_than_32_bits_can_count():
    """N·V = 2.5·10⁹: the last tokens are as right as the first."""
    n, V, d = 16384, 151_936, 32
    g = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(n, d, device="cuda", generator=g).bfloat16()
    weight = (0.3 * torch.randn(V, d, device="cuda", generator=g)).bfloat16()
    targets = torch.randint(V, (n,), device="cuda", generator=g)
    logprobs, entropy = fused_logprobs(hidden, weight, targets)
    for rows in (slice(0, 64), slice(n - 64, n)):
        logp = (hidden[rows].double() @ weight.double().t()).log_softmax(-1)
        own = logp.gather(1, targets[rows, None])[:, 0]
        torch.testing.assert_close(logprobs[rows].double(), own, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(entropy[rows].double(), -(logp.exp() * logp).sum(1), rtol=1e-3, atol=1e-3)


@needs_cuda
@pytest.mark.parametrize("name", ["dapo", "gspo"])
def test_the_host_never_waits(name):
    objective, case = OBJECTIVES[name], Case(dtype=torch.bfloat16)
    credit = case.credit(objective)
    hidden, weight, _ = case.leaves()
    arguments = (hidden, weight, case.targets, objective, case.old, credit, case.response)
    wanted = torch.autograd.grad(fused_loss(*arguments).loss, (hidden, weight))  # compiled
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # whoever waits raises
    try:
        got = torch.autograd.grad(fused_loss(*arguments).loss, (hidden, weight))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


@needs_cuda
def test_a_policy_on_the_gpu_takes_the_fused_head():
    prompts = tiny_models.prompts(4)
    batch = tiny_models.responses(prompts, 3)
    on_cpu = tiny_models.policy()
    wanted = p.token_logprobs(on_cpu, p.pack(prompts, *batch), temperature=0.7)
    policy = tiny_models.policy()
    policy.model.cuda()
    got = p.token_logprobs(policy, p.pack(prompts, *(x.cuda() for x in batch)), temperature=0.7)
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x.cpu(), y, atol=2e-3, rtol=0)
