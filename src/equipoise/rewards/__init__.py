"""Rewards: text in, :class:`Verdict` out."""

from equipoise.rewards.grade import check_golds, grade_code, grade_many, grade_math, submit_code, submit_math
from equipoise.rewards.pools import close
from equipoise.rewards.sandbox import Limits
from equipoise.rewards.verdict import SCORES, Verdict

__all__ = [
    "SCORES",
    "Limits",
    "Verdict",
    "check_golds",
    "close",
    "grade_code",
    "grade_many",
    "grade_math",
    "submit_code",
    "submit_math",
]
