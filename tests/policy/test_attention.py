"""Gradients of a row's entries that stand in several sequences are added in a fixed order.

On CUDA torch adds what has equal indices in the order that threads come. These tests run on the CPU the way that is
taken on CUDA, and look at the indices of every operation that adds by index.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise import policy as p
from equipoise.policy import attention
from equipoise.policy.pack import Buckets
from tests.policy import tiny_models

aten = torch.ops.aten


class SumsByIndex(TorchDispatchMode):
    """Notes the operations that add several values to one place, which on CUDA has no order."""

    ADDING = (aten.index_add_, aten.index_add, aten.scatter_add_, aten.scatter_add)

    def __init__(self):
        super().__init__()
        self.seen, self.repeated = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in self.ADDING:
            _, dim, index, *_ = args
            ordered = index.sort(dim if index.dim() > 1 else 0).values
            self.seen += 1
            if bool((ordered.diff(dim=dim if index.dim() > 1 else 0) == 0).any()):
                self.repeated.append(str(func))
        return func(*args, **(kwargs or {}))


def shared_pack(share="prompt", alike=0):
    prompts = tiny_models.prompts(3, shortest=4)
    return p.pack(prompts, *tiny_models.responses(prompts, 5, alike=alike), share=share)


def everything(pack):
    """Supports of the whole vocabulary."""
    targets = len(pack.targets)
    ids = torch.arange(tiny_models.VOCABULARY).repeat(targets)
    return p.Support.of(ids, torch.full((targets,), tiny_models.VOCABULARY))


@pytest.mark.parametrize("with_support", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "mistral", "gpt2"])
def test_no_gradient_depends_on_the_order_of_threads(monkeypatch, kind, with_support):
    policy, pack = tiny_models.policy(kind), shared_pack()
    support = everything(pack) if with_support else None
    found = []
    for fixed in (False, True):
        monkeypatch.setattr(attention, "_adds_in_any_order", lambda x, fixed=fixed: fixed)
        policy.model.zero_grad()
        value = p.token_logprobs(policy, pack, support=support).logprobs.sum()
        with SumsByIndex() as sums:
            value.backward()
        found.append({name: q.grad.clone() for name, q in policy.model.named_parameters()})
        assert sums.seen
        # Without the fixed order a prompt's entries are added once for each of its responses.
        assert bool(sums.repeated) == (not fixed), sums.repeated
    for name, wanted in found[0].items():
        assert torch.equal(found[1][name], wanted), name


@pytest.mark.parametrize("share", ["prefix", "prompt", "nothing"])
def test_the_fixed_order_is_that_of_the_sequences(share):
    """To the bit what adding one place after the other gives, padding left out."""
    buckets = shared_pack(share, alike=3).buckets
    g = torch.Generator().manual_seed(0)
    row = torch.randn(len(buckets.scatter), 3, 4, generator=g).requires_grad_()
    out = attention._Gathered.apply(row, buckets)
    assert torch.equal(out, row[buckets.gather])
    d = torch.randn(out.shape, generator=g)
    (got,) = torch.autograd.grad(out, row, d)
    real = torch.zeros(len(buckets.gather), dtype=torch.bool)
    real[buckets.places] = True
    wanted = torch.zeros_like(row)
    for place in real.nonzero()[:, 0].tolist():
        wanted[buckets.gather[place]] += d[place]
    assert torch.equal(got, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_adds_in_the_same_order_as_the_cpu(dtype):
    prompts = tiny_models.prompts(4, shortest=10)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 40), share="prompt")
    g = torch.Generator().manual_seed(0)
    d = torch.randn(len(pack.buckets.gather), 8, 64, generator=g).to(dtype)
    found = []
    for device in ("cpu", "cuda", "cuda"):
        buckets = Buckets(*(x.to(device) if isinstance(x, torch.Tensor) else x for x in pack.buckets))
        row = torch.zeros(len(pack.inputs), 8, 64, dtype=dtype, device=device).requires_grad_()
        out = attention._Gathered.apply(row, buckets)
        found.append(torch.autograd.grad(out, row, d.to(device))[0].cpu())
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


def test_bfloat16_is_rounded_once():
    buckets = shared_pack().buckets
    row = torch.zeros(len(buckets.scatter), 1, 2, dtype=torch.bfloat16).requires_grad_()
    out = attention._Gathered.apply(row, buckets)
    d = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    (got,) = torch.autograd.grad(out, row, d)
    exact = torch.zeros(row.shape, dtype=torch.float64)
    exact.index_add_(0, buckets.gather[buckets.places], d[buckets.places].double())
    assert torch.equal(got, exact.float().bfloat16())
