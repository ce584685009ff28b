"""Grade responses: `grade_math`, `grade_code`, `grade_many`, and the same as futures.

What is cheap and exact is decided at once, in the caller; everything else goes to worker processes
that start on first use and end with the caller. Verdicts are kept by (answer, reference, options):
a policy that repeats itself is graded once.
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

from equipoise.verifiers.code import backend, judge
from equipoise.verifiers.code.sandbox import Limits
from equipoise.verifiers.math import copied, equal, extract
from equipoise.verifiers.math.alone import multiples
from equipoise.verifiers.math.equal import INTEGER
from equipoise.verifiers.verdict import Verdict
from equipoise.verifiers.workers.deadline import PATIENCE
from equipoise.verifiers.workers.process_pool import OVER_BUDGET
from equipoise.verifiers.workers.shared import pool

MATH_SECONDS = 2.0  # for one comparison, whatever SymPy does
SLACK = 20.0  # what a code worker may take beyond its tests' own budget before it counts as hung
CACHE = 200_000  # verdicts kept
# may be another verdict the next time: never kept
UNSETTLED = ("timeout", "crashed", "unavailable")
# characters of a text that is kept as it is; of a longer one, such as a program, its digest
SHORT = 100

_lock = threading.Lock()
_kept: OrderedDict[tuple[str | bytes, ...], Future[Verdict]] = OrderedDict()


def grade_math(
    response: str,
    gold: str,
    *,
    rules: str = "strict",
    answer_in: str = "auto",
    prompt: str = "",
    form: str = "any",
) -> Verdict:
    """Whether the response's final answer equals `gold`: `docs/verifiers-math.md` has the rule.

    rules       strict: the answer must be a value; lenient: any calculation that comes to the same counts
    answer_in   where the answer is read: boxed, tag, ####, anywhere, or auto: where the prompt asks for it
    prompt      what the model was asked: an expression copied from it is no answer
    form        any, or reference: the answer must be put together as the reference is, up to order
    """
    asked = submit_math(response, gold, rules=rules, answer_in=answer_in, prompt=prompt, form=form)
    return _math_result(asked, gold)


def grade_code(response: str, tests: Mapping[str, Any], limits: Limits | None = None) -> Verdict:
    """Whether the program in the response passes `tests`,
    a row in one of the shapes `judge.tests` reads.
    """
    return submit_code(response, tests, limits).result()


def grade_many(
    kind: Literal["math", "code"],
    responses: Sequence[str],
    references: Sequence[Any],
    *,
    budget: float | None = None,
    prompts: Sequence[str] | None = None,
    forms: Sequence[str] | None = None,
    rules: str = "strict",
    answer_in: str = "auto",
) -> list[Verdict]:
    """Verdicts in the order of the responses; past `budget` seconds the rest are `timeout`.

    For math, `prompts`, `forms`, `rules` and `answer_in` are those of :func:`grade_math`.
    """
    expires = float("inf") if budget is None else time.monotonic() + budget
    pairs = list(zip(responses, references, strict=True))
    if kind == "code":
        futures = [submit_code(response, tests, expires=expires) for response, tests in pairs]
    else:
        options: dict[str, Any] = {"rules": rules, "answer_in": answer_in, "expires": expires}
        asked = zip(prompts or [""] * len(pairs), forms or ["any"] * len(pairs), strict=True)
        futures = [
            submit_math(response, gold, prompt=prompt, form=form, **options)
            for (response, gold), (prompt, form) in zip(pairs, asked, strict=True)
        ]
    if kind == "math":
        return [
            _math_result(future, gold) for future, gold in zip(futures, references, strict=True)
        ]
    return [future.result() for future in futures]


def check_golds(golds: Sequence[str]) -> list[str | None]:
    """For each reference answer None, or the sentence why no response can be graded against it."""
    verdicts = [future.result() for future in [_check(gold) for gold in golds]]
    return [None if v.kind == "correct" else f"{v.kind}: {v.reason}" for v in verdicts]


def submit_math(
    response: str,
    gold: str,
    *,
    rules: str = "strict",
    answer_in: str = "auto",
    prompt: str = "",
    form: str = "any",
    expires: float = float("inf"),
) -> Future[Verdict]:
    """`grade_math` as a future: done already where the cheap exact path decides."""
    _check_options(rules, form)
    said = extract.answer(response, extract.places_of(answer_in, prompt), multiples(prompt))
    outside = "" if INTEGER.fullmatch(gold) else said.outside  # it has no unit to differ from
    asked = Comparison(gold, said.text, said.how, rules, outside=outside)
    if said.text is not None and not INTEGER.fullmatch(said.text):  # no number is a copy
        copied_from = prompt if rules == "strict" else ""
        asked = dataclasses.replace(asked, form=form, prompt=copied_from)
    return _compare(asked, expires)


def _check_options(rules: str, form: str) -> None:
    for name, value, known in (("rules", rules, equal.RULES), ("form", form, equal.FORMS)):
        if value not in known:
            raise ValueError(f'{name} = "{value}" is not known; use {" or ".join(known)}')


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What was read (`answer`, None where nothing was, and `how`) and what it is held against."""

    gold: str
    answer: str | None
    how: str
    rules: str = "strict"
    form: str = "any"
    prompt: str = ""
    outside: str = ""  # a 1 with the unit that is written around the answer

    @property
    def key(self) -> tuple[str, ...]:
        if self.answer is None:
            return ("math", self.gold, self.how)
        how = (self.rules, self.form, self.prompt, self.outside)
        return ("math", self.gold, "", self.answer, *how)

    def refused(self) -> str:
        """Why the answer is wrong whatever its value; empty where its value decides."""
        if self.answer is None or self.answer == self.gold:
            return ""
        if self.outside and equal.another_unit(self.gold, self.answer, self.outside):
            return f"is in another unit than {self.gold[:60]}"
        if not (self.prompt or self.form == "reference"):
            return ""
        if self.form == "reference" and not equal.same_form(self.gold, self.answer):
            return "is not in the form asked for"
        if copied.copied(self.answer, self.prompt, self.gold) and not equal.same_form(
            self.gold, self.answer
        ):
            return "is copied from the prompt"
        return ""


def submit_code(
    response: str,
    tests: Mapping[str, Any],
    limits: Limits | None = None,
    *,
    expires: float = float("inf"),
) -> Future[Verdict]:
    """`grade_code` as a future; by default within the configuration's limits."""
    limits = limits or backend.limits()
    row, bounds = json.dumps(tests, sort_keys=True), dataclasses.asdict(limits)
    job = [response, row, bounds]
    key = ("code", row, json.dumps(bounds, sort_keys=True), response)
    # The tests keep their own time; this ends a worker that hangs.
    # With a total budget there is no patience.
    seconds = code_seconds(limits) if expires == float("inf") else limits.total_seconds + SLACK
    if address := backend.url():
        asked = [address, backend.token(), "code", job, seconds]
        return _once(
            key, lambda: pool("remote").submit(*asked, seconds=seconds + SLACK, expires=expires)
        )
    return _once(key, lambda: pool("code").submit(*job, seconds=seconds, expires=expires))


def code_seconds(limits: Limits) -> float:
    """After which a worker hangs, whatever the machine's load."""
    return PATIENCE * limits.total_seconds + SLACK


def math_job(*asked: Any) -> Verdict:
    """In the worker: everything that SymPy touches."""
    comparison = Comparison(*asked)
    gold, answer = comparison.gold, comparison.answer
    problem = _gold_problem(gold)
    if problem is not None:
        return Verdict("bad_gold", problem)
    if answer is None:
        return Verdict("unparsed", comparison.how)
    if why := comparison.refused():
        return _refusal(answer, why, 0.0)
    try:
        same = equal.slow(gold, answer, comparison.rules)
    except RecursionError:
        return Verdict(
            "limit", f"{answer[:60]} against {gold[:60]} goes too deep for SymPy", answer=answer
        )
    if same is None:
        return Verdict("unparsed", f"{answer[:60]} is no value", answer=answer)
    return _compared(same, gold, answer, 0.0)


def code_job(response: str, row: str, limits: dict[str, Any]) -> Verdict:
    """In the worker: it starts the sandbox and compares; the program itself runs inside."""
    try:
        tests = judge.tests(json.loads(row))
    except judge.TestsError as error:
        return Verdict("bad_gold", str(error))
    verdict = judge.judge(response, tests, Limits(**limits))
    if verdict.kind == "wrong" and (why := _reference_fails(row, json.dumps(limits))):
        return Verdict(
            "bad_gold",
            f"its own reference solution is wrong: {why}",
            verdict.seconds,
            answer=verdict.answer,
        )
    return verdict


@functools.lru_cache(maxsize=10_000)
def _reference_fails(row: str, limits: str) -> str | None:
    """Why an MBPP row's own solution (`code`), where it brings one, does not pass its tests."""
    table = json.loads(row)
    solution = table.get("code") if isinstance(table, dict) and "test_list" in table else None
    if not isinstance(solution, str):
        return None
    verdict = judge.judge(solution, judge.tests(table), Limits(**json.loads(limits)))
    return verdict.reason if verdict.kind == "wrong" else None


@functools.lru_cache(maxsize=10_000)
def _gold_problem(gold: str) -> str | None:
    return equal.gold_problem(gold)


def _compare(asked: Comparison, expires: float = float("inf")) -> Future[Verdict]:
    gold, answer = asked.gold, asked.answer

    def verdict() -> Future[Verdict]:
        start = time.perf_counter()
        same = None
        if answer is not None and len(answer) <= equal.LONGEST_RAW:
            same = equal.quick(gold, answer, asked.rules)
        if same is False and not _is_value(gold):
            same = None  # a gold that means nothing is unlike everything: that is its own fault
        if answer is None or same is None:
            return pool("math").submit(
                *dataclasses.astuple(asked), seconds=MATH_SECONDS, expires=expires
            )
        if same and (why := asked.refused()):  # asked last: most answers are wrong by their value
            return _done(_refusal(answer, why, time.perf_counter() - start))
        return _done(_compared(same, gold, answer, time.perf_counter() - start))

    return _once(asked.key, verdict)


@functools.lru_cache(maxsize=100_000)
def _is_value(gold: str) -> bool:
    """Whether exact arithmetic can hold it against a number."""
    return equal.quick(gold, "0") is not None


def _check(gold: str) -> Future[Verdict]:
    """A gold that is not plainly a value is compared to itself by SymPy."""
    if _is_value(gold):
        return _done(Verdict("correct"))
    return _once(
        ("gold", gold), lambda: pool("math").submit(gold, gold, "", "lenient", seconds=MATH_SECONDS)
    )


def _math_result(future: Future[Verdict], gold: str) -> Verdict:
    """Out of time may be the reference's fault: then it says nothing about the response."""
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


def _refusal(answer: str, why: str, seconds: float) -> Verdict:
    return Verdict("wrong", f"{answer[:60]} {why}", seconds, answer=answer)


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
    if len(text) <= SHORT:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def forget() -> None:
    """Drop the kept verdicts: what a benchmark with a cold cache wants."""
    with _lock:
        _kept.clear()
