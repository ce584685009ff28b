"""On the way that is taken on CUDA, `assign` makes the host wait once, `loss` and its metrics never."""

import pytest
import torch

import equipoise as eq

from .cases import draw
from .test_cuda import STACKS
from .waits import waits_of

MASK = torch.tensor([True, False, True])
X = torch.arange(3.0)
WAITING = {
    "item": lambda: X[0].item(),
    "bool": lambda: bool(MASK.any()),
    "float": lambda: float(X.sum()),
    "tolist": lambda: X.tolist(),
    "nonzero": lambda: MASK.nonzero(),
    "where": lambda: torch.where(MASK),
    "mask": lambda: X[MASK],
    "masked assignment": lambda: X.clone().__setitem__(MASK, X[:2]),
    "unique": lambda: X.unique(),
    "repeat_interleave": lambda: X.repeat_interleave(MASK.long()),
    "from a list": lambda: torch.tensor([1.0, 2.0]),
}
NOT_WAITING = {
    "index": lambda: X[torch.arange(2)],
    "fill": lambda: X.clone().__setitem__(MASK, 0.0),
    "where of three": lambda: torch.where(MASK, X, 0.0),
    "repeat_interleave": lambda: X.repeat_interleave(MASK.long(), output_size=2),
    "sum": lambda: X.sum(),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_counted(name):
    assert len(waits_of(WAITING[name])[1]) == 1


@pytest.mark.parametrize("name", NOT_WAITING)
def test_what_does_not_wait_is_not(name):
    assert waits_of(NOT_WAITING[name])[1] == []


def test_tensors_say_that_they_lie_on_cuda():
    assert waits_of(lambda: X.is_cuda)[0]
    assert not X.is_cuda


@pytest.mark.parametrize("aggregation", ["sequence", "token", "balanced"])
@pytest.mark.parametrize("cancellation", ["none", "both"])
def test_assign_waits_once_whatever_the_cancellation(cancellation, aggregation):
    case = draw(3, torch.float64)
    objective = eq.Objective(cancellation=cancellation, aggregation=aggregation)
    _, waits = waits_of(lambda: objective.assign(case.rewards, case.group, case.lengths))
    assert waits == ["tolist"]


@pytest.mark.parametrize("given", [("token_weight",), ("token_advantage",), ("token_weight", "token_advantage")])
def test_numbers_of_each_token_are_checked_in_the_same_transfer(given):
    case = draw(3, torch.float64)
    numbers = {name: torch.ones(len(case.token)) for name in given}
    objective = eq.Objective.preset("reinforce")
    _, waits = waits_of(lambda: objective.assign(case.rewards, case.group, case.lengths, **numbers))
    assert waits == ["tolist"]


@pytest.mark.parametrize(("preset", "knobs"), STACKS)
def test_assign_waits_once_and_loss_never(preset, knobs):
    case = draw(7, torch.float64)
    tokens = case.token if knobs.get("cancellation") == "prefix" else None
    more = {"entropy": case.old, "ref_logprobs": case.old, "rollout_logprobs": case.old} if "kl" in knobs else {}
    objective = eq.Objective.preset(preset, **knobs)
    credit, waits = waits_of(lambda: objective.assign(case.rewards, case.group, case.lengths, tokens=tokens))
    assert waits == ["tolist"]
    logp = case.logprobs(case.logits).requires_grad_()
    out, waits = waits_of(lambda: objective.loss(logp, case.old, credit, case.response, position=case.position, **more))
    assert waits == []
    assert waits_of(lambda: out.metrics)[1] == []
