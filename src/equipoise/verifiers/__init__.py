"""Verifiers: text in, :class:`Verdict` out."""

from equipoise.verifiers.code.sandbox import Limits
from equipoise.verifiers.grade import (
    check_golds,
    grade_code,
    grade_many,
    grade_math,
    submit_code,
    submit_math,
)
from equipoise.verifiers.host_functions import as_trl, verl_score
from equipoise.verifiers.verdict import SCORES, Verdict
from equipoise.verifiers.workers.shared import close

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
    "verl_score",
]
