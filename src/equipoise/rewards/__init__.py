"""Rewards: text in, :class:`Verdict` out."""

from equipoise.rewards.grade import check_golds, grade_code, grade_many, grade_math, submit_code, submit_math
from equipoise.rewards.hosts import as_trl
from equipoise.rewards.pools import close
from equipoise.rewards.sandbox import Limits
from equipoise.rewards.verdict import SCORES, Verdict

__all__ = [
    "SCORES",
    "Limits",
    "Verdict",
    "as_trl",
    "check_golds",
    "close",
    "grade_code",
    "grade_many",
    "grade_math",
    "submit_code",
    "submit_math",
]
