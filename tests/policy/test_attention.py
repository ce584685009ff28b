"""Attention over stretches of a row against the buckets of SDPA, which are held to transformers' own elsewhere."""

import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policy import pack
from equipoise.policy.attention import packed_attention
from equipoise.policy.kernels import varlen


def both(packed, heads, kv_heads, dtype, head_dim=8, seed=0):
    """Outputs and gradients by stretches and by buckets."""
    g = torch.Generator().manual_seed(seed)
    size = (len(packed.inputs), heads + 2 * kv_heads, head_dim)
    qkv = torch.randn(size, generator=g, dtype=torch.float64).to(packed.inputs.device, dtype).requires_grad_()
    d = torch.randn(size[0], heads, head_dim, generator=g, dtype=torch.float64).to(packed.inputs.device, dtype)
    found = []
    for out in (
        varlen.varlen_attention(qkv, kv_heads, packed.own, packed.to_prompt, packed.prompts),
        packed_attention(qkv.double(), kv_heads, packed).to(dtype),
    ):
        found.append((out.detach(), torch.autograd.grad(out, qkv, d)[0]))
    return found


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=9),
    share=st.sampled_from(["prompt", "nothing"]),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
)
def test_stretches_and_buckets_agree(sizes, lengths, share, heads):
    prompts = [list(range(3, 3 + size)) for size in sizes]
    prompt = torch.tensor([i % len(sizes) for i, _ in lengths])
    length = torch.tensor([n for _, n in lengths])
    packed = pack(prompts, torch.arange(int(length.sum())), length, prompt, share=share)
    (out, grad), (wanted, wanted_grad) = both(packed, *heads, torch.float64)
    torch.testing.assert_close(out, wanted, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(grad, wanted_grad, atol=1e-12, rtol=1e-10)


def test_what_is_shared_changes_no_attention():
    """The same queries, keys and values in each layout give each target the same output."""
    prompts = tiny_models.prompts(4)
    tokens, lengths, prompt = tiny_models.responses(prompts, 3, alike=3)
    outputs = []
    for share in ("prefix", "prompt", "nothing"):
        packed = pack(prompts, tokens, lengths, prompt, share=share)
        table = torch.randn(tiny_models.VOCABULARY, 6, 8, generator=torch.Generator().manual_seed(0)).double()
        qkv = table[packed.inputs] + 0.1 * packed.positions[:, None, None]
        outputs.append(packed_attention(qkv, 1, packed)[packed.predict])
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(outputs[2], outputs[0])


def test_merging_is_the_softmax_over_both():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 7, generator=g, dtype=torch.float64) * 4
    values = torch.randn(7, 2, 3, generator=g, dtype=torch.float64)

    def attend(keys):
        s = scores[..., keys]
        return torch.einsum("hqk,khd->qhd", s.softmax(-1), values[keys]), s.logsumexp(-1)

    (out, lse), merged = attend(slice(0, 4)), torch.empty(2, 5, dtype=torch.float64)
    varlen.merge_(out, lse, *attend(slice(4, 7)), merged)
    wanted, wanted_lse = attend(slice(0, 7))
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(merged, wanted_lse)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs CUDA")
@pytest.mark.parametrize("heads", [(9, 3, 64), (16, 8, 128), (4, 4, 32), (8, 1, 256)])
@pytest.mark.parametrize("share", ["prompt", "nothing"])
def test_flash_attention(heads, share):
    prompts = [[3] * n for n in (1, 100, 7, 300, 64)]
    lengths = torch.tensor([1, 1, 1, 200, 3, 17, 500, 1, 64, 65, 128, 129, 2, 33, 40])
    prompt = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4])
    tokens = torch.zeros(int(lengths.sum()), dtype=torch.int64, device="cuda")
    packed = pack(prompts, tokens, lengths, prompt, share=share)
    (out, grad), (wanted, wanted_grad) = both(packed, *heads[:2], torch.bfloat16, heads[2])
    again = both(packed, *heads[:2], torch.bfloat16, heads[2])[0]
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], grad)
    torch.testing.assert_close(out, wanted, atol=2e-2, rtol=2e-2)
    assert float((grad.double() - wanted_grad.double()).norm() / wanted_grad.double().norm()) < 1e-2
