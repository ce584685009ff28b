import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise import policy as p
from equipoise.policy import decoder, projections
from equipoise.policy.layer import describe
from equipoise.policy.projections import Projections
from tests.policy import tiny_models

KINDS = list(tiny_models.LLAMA_LIKE)


def logits(core, inputs):
    x = decoder.hidden_states(core, inputs, torch.arange(len(inputs)), decoder.causal)
    return core.lm_head(decoder.normed(core, x))


def windows(core):
    return [layer.window for layer in describe(core).layers]


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return {name: q.grad.clone() for name, q in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_transformers(kind):
    core = tiny_models.policy(kind).core
    assert decoder.is_llama_like(core)
    inputs = torch.randint(0, tiny_models.VOCABULARY, (30,), generator=torch.Generator().manual_seed(0))
    mine, theirs = logits(core, inputs), core(input_ids=inputs[None], use_cache=False).logits[0]
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-5)
    weight = torch.randn(mine.shape, generator=torch.Generator().manual_seed(1))
    got, wanted = gradients(core, (mine * weight).mean()), gradients(core, (theirs * weight).mean())
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_as_near_to_float32_as_transformers_is(kind):
    core = tiny_models.policy(kind, dtype=torch.bfloat16).core
    inputs = torch.randint(0, tiny_models.VOCABULARY, (30,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine, theirs = logits(core, inputs).float(), core(input_ids=inputs[None], use_cache=False).logits[0].float()
        exact = logits(core.float(), inputs)
    assert (mine - exact).norm() < 1.2 * (theirs - exact).norm()


def test_a_window_is_seen_and_a_long_one_changes_nothing():
    core = tiny_models.policy("mistral").core
    assert windows(core) == [7, 7]
    inputs = torch.arange(3, 23)
    near = logits(core, inputs)
    core.config.sliding_window = 20
    far = logits(core, inputs)
    core.config.sliding_window = None
    assert windows(core) == [None, None]
    torch.testing.assert_close(logits(core, inputs), far)
    torch.testing.assert_close(near[:7], far[:7])
    assert (near[7:] - far[7:]).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("setting", [{"hidden_act": "relu"}, {"hidden_act": "gelu"}])
def test_other_arithmetic_is_left_to_transformers(setting):
    core = tiny_models.policy("grouped").core
    for name, value in setting.items():
        setattr(core.config, name, value)
    assert not decoder.is_llama_like(core)


@pytest.mark.parametrize("rounds", [torch.bfloat16, torch.float32])
def test_rounding_of_bfloat16_is_no_other_arithmetic(rounds, monkeypatch):
    """States that are off in bfloat16 alone are those of the same layers; what is off in float32 too is not."""
    core = tiny_models.policy("grouped", dtype=torch.bfloat16).core
    exact = decoder.hidden_states

    def off(core, *arguments, **options):
        x = exact(core, *arguments, **options)
        return x + x.abs().max() * torch.randn_like(x) * (x.dtype in {torch.bfloat16, rounds})

    monkeypatch.setattr(decoder, "hidden_states", off)
    assert decoder.is_llama_like(core) == (rounds == torch.bfloat16)


def test_layers_that_do_not_rotate_forget_the_order_of_what_they_see():
    """Under RoPE a layer's attention changes with the order of the tokens before it; without, it does not."""
    core = tiny_models.policy("smollm3").core
    assert [layer.rotates for layer in describe(core).layers] == [True, False]
    for layer in core.model.layers:
        layer.self_attn.use_rope = False
    inputs = torch.tensor([5, 6, 7, 8, 9])
    swapped = inputs[[1, 0, 3, 2, 4]]
    # With causal masks the states under the tokens still differ; those of one layer's last token do not.
    core.model.layers = core.model.layers[:1]
    torch.testing.assert_close(logits(core, inputs)[-1], logits(core, swapped)[-1], atol=2e-5, rtol=1e-5)
    core.model.layers[0].self_attn.use_rope = True
    assert (logits(core, inputs)[-1] - logits(core, swapped)[-1]).abs().max() > 1e-3


def test_a_part_of_a_head_that_rotates_is_left_to_transformers():
    core = tiny_models.policy("phi3").core
    core.config.rope_parameters["partial_rotary_factor"] = 0.5
    assert not decoder.is_llama_like(core)


def laid_out(core):
    layers = describe(core).layers
    return all(part.joined() is not None for layer in layers for part in (layer.qkv, layer.gate_up))


@pytest.mark.parametrize("kind", ["grouped", "qwen2", "gemma"])
def test_side_by_side_moves_memory_and_nothing_else(kind):
    policy = tiny_models.policy(kind)
    before = {name: (q, q.detach().clone()) for name, q in policy.model.named_parameters()}
    assert not laid_out(policy.core)
    decoder.side_by_side(policy.core)
    assert laid_out(policy.core)
    for name, q in policy.model.named_parameters():
        assert q is before[name][0]
        assert torch.equal(q, before[name][1])
    a = policy.core.model.layers[0].self_attn
    weight, bias = Projections((a.q_proj, a.k_proj, a.v_proj)).joined()
    assert torch.equal(weight, torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]))
    assert (bias is None) == (kind != "qwen2")
    with torch.no_grad():
        a.k_proj.weight.fill_(3.0)
        assert bool((weight[len(a.q_proj.weight) :][: len(a.k_proj.weight)] == 3.0).all())
    where = a.q_proj.weight.data_ptr()
    decoder.side_by_side(policy.core)
    assert a.q_proj.weight.data_ptr() == where  # the second time there is nothing to do


@pytest.mark.parametrize("kind", ["grouped", "qwen2"])
def test_one_product_has_the_gradients_of_several(kind):
    core = tiny_models.policy(kind).core
    decoder.side_by_side(core)
    a = core.model.layers[0].self_attn
    parts = (a.q_proj, a.k_proj, a.v_proj)
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.randn(9, sum(q.out_features for q in parts), generator=torch.Generator().manual_seed(1))
    inputs = [x, *(q.weight for q in parts), *(q.bias for q in parts if q.bias is not None)]
    both = Projections(parts)
    mine = projections._Joined.apply(x, *both.joined(), *both.weights, *(both.biases or ()))
    plain = torch.cat([F.linear(x, q.weight, q.bias) for q in parts], -1)
    torch.testing.assert_close(mine, plain)
    got, wanted = (torch.autograd.grad((y * weight).sum(), inputs) for y in (mine, plain))
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5)


def test_training_saving_copying_and_restoring_work_side_by_side(tmp_path):
    policies = [tiny_models.policy("qwen2") for _ in range(2)]
    decoder.side_by_side(policies[0].core)
    prompts = tiny_models.prompts(4)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 3))
    for policy in policies:
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            p.token_logprobs(policy, pack).logprobs.mean().backward()
            optimizer.step()
    ours, plain = (policy.model.state_dict() for policy in policies)
    assert all(torch.equal(ours[k], plain[k]) for k in plain)
    assert laid_out(policies[0].core)

    copied = copy.deepcopy(policies[0].model)
    p.save(policies[0], tmp_path)
    loaded = p.load(tmp_path)
    for state in (copied.state_dict(), loaded.model.state_dict()):
        assert all(torch.equal(state[k], plain[k]) for k in plain)
    with torch.no_grad():
        for q in policies[0].parameters():
            q.zero_()
    assert not any(bool((q == 0).all()) for q in copied.parameters())  # a copy of its own
    p.restore(policies[0], tmp_path)
    assert laid_out(policies[0].core)
    assert all(torch.equal(v, plain[k]) for k, v in policies[0].model.state_dict().items())


def test_an_adapter_on_some_projections_leaves_those_alone(tmp_path):
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=4, targets=("q_proj", "v_proj")))
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.05 * torch.randn_like(q))
    prompts = tiny_models.prompts(3)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 2))
    before = p.token_logprobs(policy, pack).logprobs
    decoder.side_by_side(policy.core)
    assert describe(policy.core).layers[0].gate_up.joined() is not None
    after = p.token_logprobs(policy, pack).logprobs
    assert torch.equal(before, after)
    after.sum().backward()
    assert all(q.grad is not None for q in policy.parameters())
    p.save(policy, tmp_path / "saved")
    assert torch.allclose(p.token_logprobs(p.load(tmp_path / "saved"), pack).logprobs, after, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_an_adapter_are_in_the_models_precision(tmp_path, dtype):
    """peft's own, in float32 for any model, are the reference; the adapter's weights stay in float32."""
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, dtype=dtype, lora=p.Lora(rank=4, alpha=6.0))
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.1 * torch.randn(q.shape, generator=g))
    assert {q.dtype for q in policy.parameters()} == {torch.float32}
    layer = policy.core.model.layers[0].self_attn.q_proj
    x = torch.randn(9, layer.in_features, generator=g).to(dtype).requires_grad_()
    d = torch.randn(9, layer.out_features, generator=g).to(dtype)
    products = Products()
    with products:
        ours = Projections((layer,))(x)
    assert ours.dtype == dtype
    assert products.dtypes == {dtype}
    weights = (x, layer.lora_A["default"].weight, layer.lora_B["default"].weight)
    got = torch.autograd.grad(ours, weights, d)
    wanted = torch.autograd.grad(layer(x), weights, d)
    precision = 1e-5 if dtype == torch.float32 else 2**-6
    for a, b in zip((ours, *got), (layer(x), *wanted), strict=True):
        assert a.dtype == b.dtype
        assert (a - b).float().norm() <= precision * b.float().norm()
    with policy.model.disable_adapter():
        assert torch.equal(Projections((layer,))(x), layer.base_layer(x))


class Products(TorchDispatchMode):
    """The precisions in which matrices are multiplied."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.dtypes |= {x.dtype for x in arguments if isinstance(x, torch.Tensor)}
        return function(*arguments, **(options or {}))
