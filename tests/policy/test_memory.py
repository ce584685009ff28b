"""A process' share of a card: what may still be allocated within it."""

from types import SimpleNamespace

import pytest
import torch

from equipoise.policy import memory

GIB = 2**30


@pytest.fixture
def card(monkeypatch):
    """A card of 100 GiB of which 40 are free; of 10 GiB that torch has reserved, 4 are allocated."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * GIB, 100 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 4 * GIB)
    device = torch.device("cuda", 0)
    yield device
    memory.limit(device, None)


@pytest.mark.parametrize(("most", "left"), [(None, 46), (24, 20), (4, 0), (3, -1), (500, 46)])
def test_what_is_left_is_the_smaller_of_the_free_and_the_share(card, most, left):
    memory.limit(card, None if most is None else most * GIB)
    assert memory.room(card) == left * GIB


def test_the_last_limit_holds(card):
    memory.limit(card, 8 * GIB)
    memory.limit(card, None)
    assert memory.room(card) == 46 * GIB


def test_what_an_engine_gave_back_asleep_counts_as_left(card):
    """Torch still calls 3 of the 4 GiB allocated; the card has them free again."""
    memory.limit(card, 8 * GIB)
    memory.asleep(card, 3 * GIB)
    assert (memory.taken(card), memory.room(card)) == (1 * GIB, 7 * GIB)
    memory.asleep(card, 0)
    assert (memory.taken(card), memory.room(card)) == (4 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("most", "size", "fits"), [(None, 40, True), (None, 41, False), (24, 14, True), (24, 15, False)]
)
def test_what_torch_keeps_in_reserve_counts_until_it_is_given_back(card, most, size, fits):
    memory.limit(card, None if most is None else most * GIB)
    assert memory.fits_beside_reserve(card, size * GIB) is fits


def test_a_cpu_has_no_card():
    assert memory.taken(torch.device("cpu")) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("short", ["the card", "the limit"])
def test_a_sampler_takes_its_room_from_what_torch_keeps_in_reserve(monkeypatch, short):
    from equipoise.rollout import paged_cache

    device = torch.device("cuda", 0)
    attention = SimpleNamespace(head_dim=64)
    config = SimpleNamespace(num_hidden_layers=8, num_key_value_heads=8)
    model = SimpleNamespace(layers=[SimpleNamespace(self_attn=attention)])
    policy = SimpleNamespace(core=SimpleNamespace(config=config, model=model), device=device, dtype=torch.bfloat16)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    torch.empty(GIB, dtype=torch.uint8, device=device)  # given back to torch, not to the card
    assert torch.cuda.memory_reserved(device) >= before + GIB
    if short == "the card":
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 100 * GIB))
    else:
        memory.limit(device, before + GIB)
    _, cache = paged_cache.reserve(policy, 16)
    memory.limit(device, None)
    assert torch.cuda.memory_reserved(device) <= before + 2 * cache.nbytes
