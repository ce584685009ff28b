import torch

from equipoise import policy as p
from equipoise.policy.weights import weights_of
from tests.policy import tiny_models


def test_the_weights_are_the_trainers():
    policy = tiny_models.policy("qwen3")
    weights = weights_of(policy.core, merged := {})
    memory = {q.untyped_storage().data_ptr() for q in policy.model.parameters()}
    for layer in weights.layers:
        for part in layer:
            assert part[0].untyped_storage().data_ptr() in memory
    assert not merged
    assert weights.head.weight.data_ptr() == policy.core.lm_head.weight.data_ptr()


@torch.no_grad()
def test_an_adapter_is_merged_into_copies_that_stay_where_they_are(tmp_path):
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=4, targets=("q_proj", "down_proj")))
    merged, there, x = {}, set(), torch.randn(5, policy.core.config.hidden_size)
    for _ in range(2):
        for q in policy.parameters():
            q.add_(0.1 * torch.randn_like(q))
        weights = weights_of(policy.core, merged)
        there.add(weights.addresses())
        for layer, own in zip(policy.core.model.layers, weights.layers, strict=True):
            a = layer.self_attn
            torch.testing.assert_close(own.qkv(x), torch.cat([a.q_proj(x), a.k_proj(x), a.v_proj(x)], 1))
    assert len(there) == 1
    assert {name[1:] for name in merged} == {("qkv", "weight"), ("qkv", "bias"), ("down", "weight")}
