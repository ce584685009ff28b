"""What `loss` costs is memory traffic: passes over the tokens, counted here because times depend on the machine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from benchmarks.passes import Passes, counted

ROWS, LENGTH = 64, 128
N = ROWS * LENGTH


def batch() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    lengths = torch.full((ROWS,), LENGTH)
    old = -torch.rand(N, generator=g)
    return {
        "rewards": (torch.rand(ROWS, generator=g) < 0.4).float(),
        "group": torch.arange(ROWS) // 8,
        "lengths": lengths,
        "response": eq.response_ids(lengths),
        "old": old,
        "logp": (old + 0.05 * torch.randn(N, generator=g)).requires_grad_(),
    }


def bare(b: dict[str, Tensor]) -> None:
    (torch.exp(b["logp"] - b["old"]) * b["rewards"][b["response"]]).sum().backward()


def step(objective: eq.Objective) -> Callable[[dict[str, Tensor]], None]:
    def run(b: dict[str, Tensor]) -> None:
        credit = objective.assign(b["rewards"], b["group"], b["lengths"])
        out = objective.loss(b["logp"], b["old"], credit, b["response"])
        out.loss.backward()
        assert out.metrics

    return run


def passes_of(run: Callable[[dict[str, Tensor]], None]) -> Passes:
    b = batch()
    with counted(N) as passes:
        run(b)
    return passes


def test_passes_and_bytes_are_counted():
    x, y = torch.rand(N), torch.rand(N)
    with counted(N) as passes:
        z = x + y  # two read, one written
        z.mul_(2.0)  # one read, one written
        z[: N // 2].sum()  # half of one read
        torch.rand(10).exp()
        x.detach().view(2, -1)
    assert passes.number == 2.5
    assert passes.bytes == 4 * (3 + 2 + 0.5)


def test_the_bare_product_is_seven_passes():
    found = passes_of(bare)
    assert (found.number, found.bytes) == (7, 68)  # − exp gather · Σ, and two products backward


@pytest.mark.parametrize("preset", eq.PRESETS)
def test_no_preset_moves_two_and_a_half_times_the_bytes_of_a_bare_product(preset):
    assert passes_of(step(eq.Objective.preset(preset))).bytes < 2.5 * passes_of(bare).bytes


def test_balanced_and_hadw_add_no_pass():
    plain = passes_of(step(eq.Objective.preset("grpo")))
    both = passes_of(step(eq.Objective.preset("grpo+balanced+hadw")))
    assert (both.number, both.bytes) == (plain.number, plain.bytes)


class Operations(TorchDispatchMode):
    """Counts the torch operations while it is active: what small tensors cost."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def operations_of(preset: str) -> int:
    b, objective = batch(), eq.Objective.preset(preset)
    with Operations() as operations:
        objective.assign(b["rewards"], b["group"], b["lengths"])
    return operations.number


def test_assign_takes_few_operations():
    plain = operations_of("grpo")
    assert plain <= 166
    assert operations_of("grpo+balanced+hadw") <= plain + 25
