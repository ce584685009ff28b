"""Grade responses against references: `grade_math`, `grade_code`, `grade_many`, and the same as futures.

What is cheap and exact is decided at once, in the caller; everything else goes to worker processes that start on first
use and end with the caller. Verdicts are kept by (answer, reference): a policy that repeats itself is graded once.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Literal

from equipoise.rewards import code, equal, extract
from equipoise.rewards.deadline import PATIENCE
from equipoise.rewards.pool import OVER_BUDGET
from equipoise.rewards.pools import pool
from equipoise.rewards.sandbox import Limits
from equipoise.rewards.verdict import Verdict

MATH_SECONDS = 2.0  # for one comparison, whatever SymPy does
SLACK = 20.0  # what a code worker may take beyond its tests' own budget before it counts as hung
CACHE = 200_000  # verdicts kept
UNSETTLED = ("timeout", "crashed", "unavailable")  # may be another verdict the next time: never kept
SHORT = 100  # characters of a text that is kept as it is; of a longer one, such as a program, its digest
LIMITS = Limits()

_lock = threading.Lock()
_kept: OrderedDict[tuple[str | bytes, ...], Future[Verdict]] = OrderedDict()


def grade_math(response: str, gold: str) -> Verdict:
    """Whether the response's final answer equals `gold`: `docs/verifiers.md` has the rule."""
    return _math_result(submit_math(response, gold), gold)


def grade_code(response: str, tests: Mapping[str, Any], limits: Limits = LIMITS) -> Verdict:
    """Whether the program in the response passes `tests`, a row in one of the shapes `code.tests` reads."""
    return submit_code(response, tests, limits).result()


def grade_many(
    kind: Literal["math", "code"], responses: Sequence[str], references: Sequence[Any], *, budget: float | None = None
) -> list[Verdict]:
    """Verdicts in the order of the responses; `budget` seconds for all of them, after which the rest are `timeout`."""
    expires = float("inf") if budget is None else time.monotonic() + budget
    submit: Callable[..., Future[Verdict]] = {"math": submit_math, "code": submit_code}[kind]
    futures = [submit(r, x, expires=expires) for r, x in zip(responses, references, strict=True)]
    if kind == "math":
        return [_math_result(future, gold) for future, gold in zip(futures, references, strict=True)]
    return [future.result() for future in futures]


def check_golds(golds: Sequence[str]) -> list[str | None]:
    """For each reference answer None, or the sentence why no response can be graded against it."""
    verdicts = [future.result() for future in [_check(gold) for gold in golds]]
    return [None if v.kind == "correct" else f"{v.kind}: {v.reason}" for v in verdicts]


def submit_math(response: str, gold: str, *, expires: float = float("inf")) -> Future[Verdict]:
    """`grade_math` as a future: done already where the cheap exact path decides."""
    said = extract.answer(response)
    return _compare(gold, said.text, said.how, expires)


def submit_code(
    response: str, tests: Mapping[str, Any], limits: Limits = LIMITS, *, expires: float = float("inf")
) -> Future[Verdict]:
    """`grade_code` as a future."""
    row, bounds = json.dumps(tests, sort_keys=True), dataclasses.asdict(limits)
    key = ("code", row, json.dumps(bounds, sort_keys=True), response)
    # The tests keep their own time; this ends a worker that hangs. With a total budget there is no patience.
    seconds = (PATIENCE if expires == float("inf") else 1) * limits.total_seconds + SLACK
    return _once(key, lambda: pool("code").submit(response, row, bounds, seconds=seconds, expires=expires))


def math_job(gold: str, answer: str | None, how: str) -> Verdict:
    """In the worker: everything that SymPy touches."""
    problem = _gold_problem(gold)
    if problem is not None:
        return Verdict("bad_gold", problem)
    if answer is None:
        return Verdict("unparsed", how)
    try:
        same = equal.slow(gold, answer)
    except RecursionError:
        return Verdict("limit", f"{answer[:60]} against {gold[:60]} goes too deep for SymPy", answer=answer)
    if same is None:
        return Verdict("unparsed", f"{answer[:60]} is no value", answer=answer)
    return _compared(same, gold, answer, 0.0)


def code_job(response: str, row: str, limits: dict[str, Any]) -> Verdict:
    """In the worker: it starts the sandbox and compares; the program itself runs inside."""
    try:
        tests = code.tests(json.loads(row))
    except code.TestsError as error:
        return Verdict("bad_gold", str(error))
    return code.judge(response, tests, Limits(**limits))


@functools.lru_cache(maxsize=10_000)
def _gold_problem(gold: str) -> str | None:
    return equal.gold_problem(gold)


def _compare(gold: str, answer: str | None, how: str, expires: float = float("inf")) -> Future[Verdict]:
    def verdict() -> Future[Verdict]:
        start = time.perf_counter()
        same = None if answer is None else equal.quick(gold, answer)
        if same is False and not _is_value(gold):
            same = None  # a gold that means nothing is unlike everything: that is its own fault
        if answer is None or same is None:
            return pool("math").submit(gold, answer, how, seconds=MATH_SECONDS, expires=expires)
        return _done(_compared(same, gold, answer, time.perf_counter() - start))

    return _once(("math", gold, how) if answer is None else ("math", gold, "", answer), verdict)


@functools.lru_cache(maxsize=100_000)
def _is_value(gold: str) -> bool:
    """Whether exact arithmetic can hold it against a number."""
    return equal.quick(gold, "0") is not None


def _check(gold: str) -> Future[Verdict]:
    """A gold that is not plainly a value is compared to itself by SymPy."""
    if _is_value(gold):
        return _done(Verdict("correct"))
    return _once(("gold", gold), lambda: pool("math").submit(gold, gold, "", seconds=MATH_SECONDS))


def _math_result(future: Future[Verdict], gold: str) -> Verdict:
    """A comparison that ran out of time may be the reference's fault: then it says nothing about the response."""
    verdict = future.result()
    if verdict.kind in ("timeout", "limit", "crashed") and verdict.reason != OVER_BUDGET:
        (problem,) = check_golds([gold])
        if problem is not None:
            return Verdict("bad_gold", problem, verdict.seconds)
    return verdict


def _compared(same: bool, gold: str, answer: str, seconds: float) -> Verdict:
    if same:
        return Verdict("correct", "", seconds, answer=answer)
    return Verdict("wrong", f"answered {answer[:60]}, expected {gold[:60]}", seconds, answer=answer)


def _done(verdict: Verdict) -> Future[Verdict]:
    future: Future[Verdict] = Future()
    future.set_result(verdict)
    return future


def _once(key: tuple[str, ...], verdict: Callable[[], Future[Verdict]]) -> Future[Verdict]:
    """The future of the first time this was asked; a verdict of `UNSETTLED` is not kept."""
    name = tuple(map(_short, key))
    with _lock:
        kept = _kept.get(name)
        if kept is not None and _stands(kept):
            _kept.move_to_end(name)
            return kept
    future = verdict()
    with _lock:
        _kept[name] = future
        while len(_kept) > CACHE:
            _kept.popitem(last=False)
    return future


def _stands(kept: Future[Verdict]) -> bool:
    try:
        return kept.result(timeout=0).kind not in UNSETTLED
    except CancelledError:
        return False
    except TimeoutError:  # not done yet
        return True


def _short(text: str) -> str | bytes:
    return text if len(text) <= SHORT else hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def forget() -> None:
    """Drop the kept verdicts: what a benchmark with a cold cache wants."""
    with _lock:
        _kept.clear()
