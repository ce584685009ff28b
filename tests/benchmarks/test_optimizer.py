"""What the benchmark of optimizers compares, on the CPU with small matrices."""

import optimizer
import pytest


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(optimizer, "SHAPES", ((6, 300), (5, 40)))
    monkeypatch.setattr(optimizer, "STEPS", 8)


def test_movements_are_compared_with_those_of_float32_moments():
    wanted = optimizer.moved(optimizer.fused, device="cpu")
    assert optimizer.apart(wanted, wanted) == 0
    assert optimizer.apart([2 * x for x in wanted], wanted) == pytest.approx(1)
    assert 0 < optimizer.apart(optimizer.moved(optimizer.ours, device="cpu"), wanted) < 0.1
