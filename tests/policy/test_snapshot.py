"""A copy for sampling: today's weights at a refresh, and nothing in common with what is trained."""

import pytest
import torch

from equipoise import policy as models
from equipoise.policy.snapshot import Snapshot

LORA = models.Lora(rank=2, targets=("q_proj", "v_proj"))


def state(policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def move(policy) -> None:
    """What an optimizer does: change what is trained, in place."""
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(1.0)


@pytest.mark.parametrize("lora", [None, LORA])
def test_it_has_the_weights_of_the_last_refresh(lora):
    if lora:
        pytest.importorskip("peft")
    policy = models.load("abacus", lora=lora)
    snapshot = Snapshot(policy)
    begun = state(policy)
    move(policy)
    held = state(snapshot.policy)
    assert held.keys() == begun.keys()
    assert all(torch.equal(held[name], begun[name]) for name in begun)
    snapshot.refresh()
    now = state(snapshot.policy)
    assert all(torch.equal(now[name], p) for name, p in state(policy).items())
    assert any(not torch.equal(now[name], begun[name]) for name in begun)


def test_what_is_kept_can_be_put_back():
    policy = models.load("abacus")
    snapshot = Snapshot(policy)
    kept = [w.clone() for w in snapshot.weights]
    move(policy)
    snapshot.refresh()
    snapshot.load(kept)
    assert all(torch.equal(a, b) for a, b in zip(snapshot.weights, kept, strict=True))


def test_it_shares_no_memory_with_what_is_trained_and_all_of_what_is_not():
    pytest.importorskip("peft")
    policy = models.load("abacus", lora=LORA)
    snapshot = Snapshot(policy)
    trained = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    copies = {p.untyped_storage().data_ptr() for p in snapshot.policy.model.parameters()}
    frozen = {p.untyped_storage().data_ptr() for p in policy.model.parameters() if not p.requires_grad}
    assert not copies & trained
    assert frozen < copies
    assert snapshot.nbytes == sum(p.nbytes for p in policy.parameters())
    assert snapshot.policy.tokenizer is not policy.tokenizer


def test_layers_in_few_bits_are_shared():
    pytest.importorskip("peft")
    from equipoise.policy import quantized

    class Whole:
        """Packs nothing, which needs no package."""

        def __init__(self, weight):
            self.weight, self.shape = weight.clone(), weight.shape

        def whole(self):
            return self.weight

    plain = models.load("abacus")
    quantized.quantize(plain.model, "cpu", Whole)
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(plain.model, LoraConfig(**LORA.arguments()))
    policy = models.Policy(model, plain.tokenizer, "abacus")
    packed = [m.packed for m in policy.model.modules() if isinstance(m, quantized.QuantizedLinear)]
    copied = [m.packed for m in Snapshot(policy).policy.model.modules() if isinstance(m, quantized.QuantizedLinear)]
    assert len(packed) > 0
    assert all(a is b for a, b in zip(packed, copied, strict=True))


def test_nothing_of_it_is_trained_and_its_tensors_are_ordinary():
    snapshot = Snapshot(models.load("abacus"))
    assert not any(p.requires_grad or p.is_inference() for p in snapshot.policy.model.parameters())
