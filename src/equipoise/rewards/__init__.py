"""Rewards: text in, :class:`Verdict` out."""

from equipoise.rewards.verdict import SCORES, Verdict

__all__ = ["SCORES", "Verdict"]
