"""A process' share of a card: what it may still reserve, and that torch keeps to it."""

import pytest
import torch

from equipoise.policy import memory

GIB = 2**30


@pytest.fixture
def card(monkeypatch):
    """A card of 100 GiB of which 40 are free and 10 reserved by this process."""
    state = {"fraction": 1.0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * GIB, 100 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * GIB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: state["fraction"])
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, device: state.update(fraction=fraction),
    )
    return torch.device("cuda")


@pytest.mark.parametrize(("limit", "left"), [(None, 40), (24, 14), (10, 0), (5, 0), (500, 40)])
def test_what_is_left_is_the_smaller_of_the_free_and_the_share(card, limit, left):
    if limit is not None:
        memory.bound(card, limit * GIB)
    assert memory.unreserved(card) == pytest.approx(left * GIB, abs=1024)


def test_a_cpu_has_no_share(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *a: asked.append(a))
    memory.bound(torch.device("cpu"), 1)
    assert not asked


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_torch_gives_its_reserve_back_before_it_passes_the_share():
    device = torch.device("cuda", 0)
    torch.cuda.empty_cache()
    memory.bound(device, torch.cuda.memory_reserved(device) + GIB)
    try:
        for mebibytes in (300, 400, 500, 600, 700):
            torch.empty(mebibytes * 2**20, dtype=torch.uint8, device=device)
            assert memory.unreserved(device) >= 0
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * GIB, dtype=torch.uint8, device=device)
    finally:
        memory.bound(device, torch.cuda.mem_get_info(device)[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_sampler_finds_room_in_what_torch_keeps_in_reserve():
    from types import SimpleNamespace

    from equipoise.rollout import paged

    device = torch.device("cuda", 0)
    attention = SimpleNamespace(head_dim=64)
    config = SimpleNamespace(num_hidden_layers=8, num_key_value_heads=8)
    model = SimpleNamespace(layers=[SimpleNamespace(self_attn=attention)])
    policy = SimpleNamespace(core=SimpleNamespace(config=config, model=model), device=device, dtype=torch.bfloat16)
    a_block = paged._cache_shape(policy, 1).numel() * 2
    torch.cuda.empty_cache()
    memory.bound(device, torch.cuda.memory_reserved(device) + 2 * GIB)
    try:
        torch.empty(3 * GIB // 2, dtype=torch.uint8, device=device)  # given back to torch, not to the card
        arena, cache = paged._reserve(policy, GIB // a_block)
        assert cache.nbytes > 0.9 * GIB
        del arena, cache
    finally:
        memory.bound(device, torch.cuda.mem_get_info(device)[1])
