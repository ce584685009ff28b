r"""The math verifier against every short answer: nothing wrong or left undone passes, nothing right is refused.

The cases come from `enumerated`, which knows by construction what each one is worth. The default run
takes every so many-th case of the generated problems and of GSM8K and MATH-500; the slow one takes them all and prints
the counts.
"""

import itertools
import json
from collections import Counter

import pytest

from equipoise.verifiers import grade
from tests.real_data import real_data
from tests.verifiers.math import enumerated


def rows(name):
    return [json.loads(line) for line in real_data(name).read_text().splitlines()]


def gsm8k(name):
    """GSM8K's problems; the calculation that its solution ends with counts as one of the prompt's own."""
    found = []
    for row in rows(name):
        gold = row["answer"].rpartition("####")[2].strip()
        found.append(enumerated.of_prompt(f"{row['question']} {enumerated.BOX}", gold))
    return [problem for problem in found if problem]


def math500():
    found = [
        enumerated.of_prompt(f"{row['problem']} {enumerated.BOX}", row["answer"])
        for row in rows("benchmarks/math500.jsonl")
    ]
    return [problem for problem in found if problem]


def verdicts(cases):
    """Verdicts under the strict rules, submitted together so that the workers share what the caller cannot decide."""
    futures = [
        grade.submit_math(case.response, case.problem.gold, rules="strict", prompt=case.problem.prompt)
        for case in cases
    ]
    return [future.result() for future in futures]


def thinned(cases, step, start):
    """Every `step`-th case, from one that differs from problem to problem: together the problems cover them all."""
    return itertools.islice(cases, start % step, None, step)


def failures(problems, make, accepts, step):
    """Cases tried by kind, and those with the wrong verdict."""
    tried, failed = Counter(), []
    for number, problem in enumerate(problems):
        cases = list(thinned(make(problem), step, number))
        for case, verdict in zip(cases, verdicts(cases), strict=True):
            tried[case.kind] += 1
            if (verdict.kind == "correct") != accepts:
                failed.append((case.kind, case.response, problem.gold, verdict.kind))
    return tried, failed


def left_undone(problem):
    return (enumerated.Case("undone", rf"\boxed{{{text}}}", problem) for text in enumerated.undone(problem))


SETS = {
    "generated": lambda: enumerated.generated(300),
    "GSM8K test": lambda: gsm8k("benchmarks/gsm8k.jsonl"),
    "GSM8K train": lambda: gsm8k("train/gsm8k.jsonl"),
    "MATH-500": math500,
}
FEW = {"generated": 14, "GSM8K test": 5, "GSM8K train": 5, "MATH-500": 5}
SOME_SETS = [pytest.param(name, marks=pytest.mark.long if "GSM8K" in name else ()) for name in SETS]


@pytest.mark.parametrize("name", SOME_SETS)
def test_nothing_wrong_or_undone_is_accepted(name):
    """A slice: the slow test below takes every case."""
    tried, failed = failures(SETS[name]()[: FEW[name]], enumerated.to_refuse, accepts=False, step=211)
    assert not failed, failed[:20]
    assert len(tried) == 9


@pytest.mark.parametrize("name", SOME_SETS)
def test_every_honest_form_is_accepted(name):
    _, failed = failures(SETS[name]()[: FEW[name]], enumerated.honest, accepts=True, step=23)
    assert not failed, failed[:20]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "step"),
    [
        ("generated", enumerated.to_refuse, 1),
        ("GSM8K test", left_undone, 1),
        ("GSM8K train", left_undone, 1),
        ("MATH-500", left_undone, 1),
        ("GSM8K test", enumerated.to_refuse, 101),
        ("GSM8K train", enumerated.to_refuse, 401),
        ("MATH-500", enumerated.to_refuse, 23),
    ],
)
def test_all_of_it_refused(name, make, step):
    tried, failed = failures(SETS[name](), make, accepts=False, step=step)
    print(f"\n{name}: {tried.total():,} tried {dict(tried)}, {len(failed)} accepted wrongly")
    assert not failed, failed[:50]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_all_honest_forms(name):
    tried, failed = failures(SETS[name](), enumerated.honest, accepts=True, step=1)
    print(f"\n{name}: {tried.total():,} honest forms {dict(tried)}, {len(failed)} refused")
    assert not failed, failed[:50]
