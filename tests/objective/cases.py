"""Random batches for the property tests, and a toy softmax policy whose logits take the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import equipoise as eq

AGGREGATIONS = {
    "token batch": {"name": "token", "over": "batch"},
    "token group": {"name": "token", "over": "group"},
    "sequence": "sequence",
    "constant": {"name": "constant", "length": 7.0},
    "balanced": "balanced",
    "balanced batch": {"name": "balanced", "over": "batch"},
    "balanced pass": {"name": "balanced", "masked": "pass"},
    "power": {"name": "power", "alpha": 0.6},
}
DIFFICULTIES = {
    "none": "none",
    "hadw kalman": "hadw",
    "hadw window": {"name": "hadw", "anchor": "window", "include_current": True, "lam": 1.5},
    "hadw fixed": {"name": "hadw", "anchor": "fixed", "threshold": 0.3, "recentre": True},
    "debias": "debias",
}


@dataclass
class Case:
    """B responses in ragged groups; each token has a context (a row of logits) and a token id."""

    rewards: Tensor
    group: Tensor
    lengths: Tensor
    context: Tensor  # [N]
    token: Tensor  # [N]
    response: Tensor  # [N]
    position: Tensor  # [N]
    logits: Tensor  # [contexts, vocabulary]
    old: Tensor  # [N]

    def logprobs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, -1)[self.context, self.token]

    def gradient(
        self, objective: eq.Objective, parts: list[Tensor], credit: eq.Credit | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient by the logits, summed over micro-batches given as token indices."""
        if credit is None:
            credit = self.assign(objective)
        logits = self.logits.clone().requires_grad_()
        total = torch.zeros((), dtype=logits.dtype)
        for i in parts:
            logp = self.logprobs(logits)[i]
            out = objective.loss(logp, self.old[i], credit, self.response[i], position=self.position[i])
            out.loss.backward()
            total = total + out.loss.detach()
        return total, logits.grad

    def assign(self, objective: eq.Objective) -> eq.Credit:
        return objective.assign(self.rewards, self.group, self.lengths, tokens=self.token)

    def all(self) -> list[Tensor]:
        return [torch.arange(len(self.token))]

    def permuted(self, order: np.ndarray, names: np.ndarray) -> Case:
        """The same batch with its responses in another order and its groups under other names."""
        rows = torch.as_tensor(order)
        index = torch.cat([torch.where(self.response == int(i))[0] for i in order])
        return Case(
            self.rewards[rows], torch.as_tensor(names)[self.group][rows], self.lengths[rows], self.context[index],
            self.token[index], eq.response_ids(self.lengths[rows]), eq.positions(self.lengths[rows]), self.logits,
            self.old[index],
        )  # fmt: skip


def draw(
    seed: int, dtype: torch.dtype = torch.float64, binary: bool = True, empty: bool = True, drift: float = 0.3
) -> Case:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, size=rng.integers(1, 5))
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    B = len(group)
    lengths = torch.as_tensor(rng.integers(0 if empty else 1, 7, size=B))
    lengths[rng.integers(B)] = 4
    rewards = rng.integers(0, 2, size=B).astype(float) if binary else rng.normal(size=B).round(2)
    N = int(lengths.sum())
    logits = torch.as_tensor(rng.normal(size=(5, 4)), dtype=torch.float64)
    context, token = torch.as_tensor(rng.integers(0, 5, size=N)), torch.as_tensor(rng.integers(0, 4, size=N))
    logp = torch.log_softmax(logits, -1)[context, token]
    old = logp + torch.as_tensor(rng.normal(scale=drift, size=N))
    return Case(
        torch.as_tensor(rewards, dtype=dtype), torch.as_tensor(group), lengths, context, token,
        eq.response_ids(lengths), eq.positions(lengths), logits.to(dtype), old.clamp(max=-1e-3).to(dtype),
    )  # fmt: skip


def split(case: Case, objective: eq.Objective, seed: int) -> list[Tensor]:
    """A random partition of the tokens as fine as the objective allows: tokens, whole responses or whole groups."""
    rng = np.random.default_rng(seed)
    if objective.needs_whole_groups:
        unit = case.group[case.response]
    elif objective.needs_whole_responses:
        unit = case.response
    else:
        unit = torch.arange(len(case.token))
    parts = int(rng.integers(2, 5))
    label = torch.as_tensor(rng.integers(0, parts, size=int(unit.max()) + 1))[unit]
    found = [torch.where(label == k)[0] for k in range(parts)]
    return [torch.as_tensor(rng.permutation(i.numpy())) for i in found if len(i)]


def relative(a: Tensor, b: Tensor) -> float:
    scale = max(float(a.abs().max()), float(b.abs().max()), 1e-30)
    return float((a - b).abs().max()) / scale
