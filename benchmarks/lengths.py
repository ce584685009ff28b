"""Lengths of responses as training sees them: many short ones and a long tail."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def lognormal(count: int, mean: float, cv: float, longest: int) -> Tensor:
    """[count] whole numbers of this mean and coefficient of variation, up to rounding and the longest."""
    variance = math.log(1 + cv**2)
    # The distribution's own quantiles, in random order: a sample of this size would be off by a tenth of its CV.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    z = torch.special.ndtri((order + 0.5) / count)
    drawn = torch.exp(math.log(mean) - variance / 2 + math.sqrt(variance) * z)
    return drawn.round().long().clamp(1, longest)
