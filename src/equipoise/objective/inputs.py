"""The arguments of `assign` as tensors on one device,
and all that can be wrong with them (formulas.md §1, §3).

Bad input is a ValueError that names the index, the value and what it must be. Not here: what one
objective in particular asks of a batch, which `Objective.assign` checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.objective.groups import Groups, group_ids

Rewards = Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]
GroupIds = Tensor | np.ndarray | Sequence[Hashable]
Lengths = Tensor | np.ndarray | Sequence[int]
Numbers = Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]


class Facts(NamedTuple):
    """What the host knows of a batch after the checks; truths are 1 or 0."""

    low: float
    high: float
    mean: float
    binary: float  # every response's reward is one of two known values
    least: float  # the smallest reward an advantage is taken of
    two_valued: float  # every reward an advantage is taken of is one of those two values
    smallest_group: float
    largest_group: float
    tokens: float
    shortest: float  # tokens of the shortest response
    known: float  # responses whose accuracy is known; 0 where none was given
    accuracy: float  # their mean
    zero_or_one: float  # every known accuracy is 0 or 1

    @property
    def right_or_wrong(self) -> bool:
        """Whether no response is in between: by the accuracies where some are known."""
        return bool(self.zero_or_one if self.known else self.binary)


class Inputs(NamedTuple):
    """The arguments of `assign` as tensors on one device."""

    r: Tensor  # [B, K] float64
    T: Tensor  # [B] float64
    counted: bool  # whether the lengths came as integers
    ids: Tensor  # [B]
    accuracy: Tensor | None  # [B] float64, NaN where it is not known
    history: Tensor | None  # [B] rates, or [B, 2] or [B, 3] counts; float64
    eps: float  # relative precision of the rewards as they came


@dataclass(frozen=True)
class PerToken:
    """What `assign` was given of each token of the batch, [N] in row order."""

    ids: Tensor | None = None
    weight: Tensor | None = None
    advantage: Tensor | None = None

    @property
    def given(self) -> bool:
        return self.weight is not None or self.advantage is not None

    def by_name(self) -> list[tuple[str, Tensor]]:
        """What was given, under its name in `assign`."""
        named = (
            ("tokens", self.ids),
            ("token_weight", self.weight),
            ("token_advantage", self.advantage),
        )
        return [(name, x) for name, x in named if x is not None]


class Rule(NamedTuple):
    """What every entry of an argument must be."""

    name: str
    value: Tensor  # [B] or [B, K], or of tokens [N]
    broken: Callable[[Tensor], Tensor]  # of the value: [B] or [N] bool
    sentence: str

    def refuse(self) -> None:
        """Name the first response or token that breaks it, if one does."""
        broken = self.broken(self.value)
        if bool(broken.any()):
            i = int(broken.to(torch.uint8).argmax())
            value = self.value[i].squeeze().tolist()
            raise ValueError(f"{self.name}[{i}] = {value}: {self.sentence}")


def read(
    rewards: Rewards,
    group: GroupIds,
    lengths: Lengths,
    *,
    accuracy: Numbers | None,
    history: Numbers | None,
    columns: int,
) -> Inputs:
    """Tensors of the right shape, or a ValueError that names the one that is not."""
    eps = _precision(rewards)
    # A list of numbers would come out in float32.
    r = _numbers("rewards", rewards, torch.float64)
    if r.ndim == 1:
        r = r[:, None]
    if r.ndim != 2 or r.shape[1] != columns:
        wanted = "[B]" if columns == 1 else f"[B, {columns}], a column per reward weight"
        raise ValueError(f"rewards has shape {tuple(r.shape)}: it must be {wanted}")
    B = len(r)
    if B == 0:
        raise ValueError("rewards is empty: there must be at least one response")
    T = _numbers("lengths", lengths, None).to(r.device)
    ids = group_ids(group, r.device)
    known, past = (None if x is None else _real(x, r.device) for x in (accuracy, history))
    for name, x in (("lengths", T), ("group", ids), ("accuracy", known), ("history", past)):
        shapes = ((B,), (B, 2), (B, 3)) if name == "history" else ((B,),)
        if x is not None and x.shape not in shapes:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, rewards has {B} rows: there must be one entry per response"
            )
        if x is not None and x.is_complex():
            raise ValueError(f"{name} has dtype {x.dtype}: it must hold real numbers")
    counted = not T.is_floating_point()
    return Inputs(r, T.to(torch.float64), counted, ids, known, past, eps)


def _precision(rewards: Rewards) -> float:
    """The relative precision of a tensor's or an array's dtype; 0 for a list, whose is not known.

    Half precision is a storage format for rewards, not their noise: what it can tell apart differs.
    """
    if isinstance(rewards, Tensor):
        return torch.finfo(torch.promote_types(rewards.dtype, torch.float32)).eps
    if isinstance(rewards, np.ndarray) and rewards.dtype.kind == "f":
        return float(np.finfo(np.promote_types(rewards.dtype, np.float32)).eps)
    return 0.0


def _numbers(name: str, x: Rewards | Lengths, dtype: torch.dtype | None) -> Tensor:
    try:
        return torch.as_tensor(x, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, one per response: {error}") from error


def _real(x: Numbers, device: torch.device) -> Tensor:
    """In float64; a complex tensor stays as it is, to be refused."""
    complex_ = isinstance(x, Tensor) and x.is_complex()
    return torch.as_tensor(x, dtype=None if complex_ else torch.float64, device=device)


def check(
    inputs: Inputs,
    tokens: PerToken,
    total: Tensor,
    judged: Tensor,
    groups: Groups,
    ends: tuple[float, float],
) -> Facts:
    """Refuse what is not a number, a length, an id or a rate, naming the first index;
    one transfer to the host.

    `total` [B]: the reward of each response; `judged`: what advantages are taken of; `ends`:
    a binary reward's values.
    """
    facts = _facts(inputs, total, judged, groups, ends)
    rules = _rules(inputs) + _token_rules(tokens)
    broken = {f"broken {k}": rule.broken(rule.value).any() for k, rule in enumerate(rules)}
    on_host = _to_host({**facts, **broken})
    # Rewards and lengths always come: their entries are looked at only where the sum of the rewards
    # or the least length says that one is wrong.
    on_host["mean"] = on_host.pop("sum") / len(total)
    if not math.isfinite(on_host["mean"]):
        _finite_rewards(inputs).refuse()
    if not on_host["shortest"] >= 0:
        _whole_lengths(inputs).refuse()
    for name, rule in zip(broken, rules, strict=True):
        if on_host.pop(name):
            rule.refuse()
    N = int(on_host["tokens"])
    for name, x in tokens.by_name():
        if len(x) != N:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}: it must be [{N}], the sum of lengths"
            )
    # where advantages are taken of the total
    same = {"least": on_host["low"], "two_valued": on_host["binary"]}
    unknown = {"known": 0.0, "accuracy": 0.0, "zero_or_one": 1.0}
    return Facts(**{**same, **unknown, **on_host})


def _facts(
    inputs: Inputs, total: Tensor, judged: Tensor, groups: Groups, ends: tuple[float, float]
) -> dict[str, Tensor]:
    """Those of `Facts` that there are, 0-dim, with the sum of the rewards for their mean."""
    low, high = total.aminmax()
    facts = {
        "low": low,
        "high": high,
        "sum": total.sum(),
        "binary": _either(total, ends),
        "smallest_group": groups.size.min(),
        "largest_group": groups.size.max(),
        "tokens": inputs.T.sum(),
        "shortest": inputs.T.min(),
    }
    if judged is not total:
        facts |= {"least": judged.min(), "two_valued": _either(judged, ends)}
    if (a := inputs.accuracy) is not None:
        known = (~a.isnan()).sum()
        facts |= {
            "known": known,
            "accuracy": a.nansum() / known.clamp(min=1),
            "zero_or_one": ((a == 0) | (a == 1) | a.isnan()).all(),
        }
    return facts


def _either(x: Tensor, ends: tuple[float, float]) -> Tensor:
    """0-dim: whether every entry is one of these two numbers."""
    return ((x == ends[0]) | (x == ends[1])).all()


def _to_host(numbers: dict[str, Tensor]) -> dict[str, float]:
    """0-dim tensors of any dtype as plain numbers, all in one transfer."""
    together = torch.stack([x.to(torch.float64) for x in numbers.values()])
    return dict(zip(numbers, together.tolist(), strict=True))


def _finite_rewards(inputs: Inputs) -> Rule:
    return Rule("rewards", inputs.r, lambda r: ~r.isfinite().all(1), "a reward is a finite number")


def _whole_lengths(inputs: Inputs) -> Rule:
    return Rule(
        "lengths",
        inputs.T,
        lambda T: ~((T >= 0) & (T.frac() == 0)),
        "a length is a whole number of tokens, 0 or more",
    )


def _rules(inputs: Inputs) -> list[Rule]:
    """Of what is not always given, or seldom as it is."""
    rules = [] if inputs.counted else [_whole_lengths(inputs)]
    if inputs.ids.is_floating_point():
        sentence = "a group id is a finite number"
        rules.append(Rule("group", inputs.ids, _not_finite, sentence))
    if inputs.accuracy is not None:
        sentence = "an accuracy lies in [0, 1], NaN where it is not known"
        rules.append(Rule("accuracy", inputs.accuracy, _no_rate, sentence))
    if (past := inputs.history) is not None and past.ndim == 1:
        sentence = "a success rate lies in [0, 1], NaN where there is none"
        rules.append(Rule("history", past, _no_rate, sentence))
    elif past is not None:
        sentence = "0 ≤ successes ≤ attempts, and steps since then, 0 or more"
        rules.append(Rule("history", past, _no_counts, sentence))
    return rules


def _not_finite(x: Tensor) -> Tensor:
    return ~x.isfinite()


def _no_rate(x: Tensor) -> Tensor:
    return (x < 0) | (x > 1)


def _no_counts(past: Tensor) -> Tensor:
    successes, attempts = past[:, 0], past[:, 1]
    fine = (past >= 0).all(1) & past.isfinite().all(1) & (successes <= attempts)
    return ~fine


def read_tokens(
    device: torch.device,
    *,
    ids: Tensor | Sequence[int] | None,
    weight: Numbers | None,
    advantage: Numbers | None,
) -> PerToken:
    """Flat tensors; `check`, which knows how many tokens there are,
    looks at their length and values.
    """
    tokens = PerToken(
        None if ids is None else torch.as_tensor(ids, device=device),
        None if weight is None else torch.as_tensor(weight, device=device).to(torch.float64),
        None if advantage is None else torch.as_tensor(advantage, device=device).to(torch.float64),
    )
    for name, x in tokens.by_name():
        if x.ndim != 1:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}: it must be flat, one entry per token of the batch"
            )
    return tokens


def _token_rules(tokens: PerToken) -> list[Rule]:
    rules = []
    # An empty tensor breaks no rule, and has no first entry to ask for.
    if (w := tokens.weight) is not None and len(w):
        sentence = "it must be a finite number, 0 or more"
        rules.append(Rule("token_weight", w, lambda w: ~(w.isfinite() & (w >= 0)), sentence))
    if (a := tokens.advantage) is not None and len(a):
        rules.append(Rule("token_advantage", a, _not_finite, "it must be a finite number"))
    return rules
