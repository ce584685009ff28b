"""grade_math, grade_code and grade_many: the whole path, from a response's text to its verdict."""

import dataclasses
import json
import os
import random
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.verifiers import Verdict, check_golds, grade, grade_code, grade_many, grade_math, submit_math
from equipoise.verifiers.code import sandbox
from equipoise.verifiers.workers.process_pool import OVER_BUDGET

ROOT = Path(__file__).parents[2]
needs_sandbox = pytest.mark.skipif(sandbox.available() is not None, reason=str(sandbox.available()))
DOUBLE = {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10\n"]}


@pytest.fixture(autouse=True)
def cold():
    grade.forget()


@pytest.mark.parametrize(
    ("response", "gold", "kind"),
    [
        (r"so \boxed{\frac{2}{4}}", "0.5", "correct"),
        (r"so \boxed{\sin(x)^2}", r"1-\cos(x)^2", "correct"),
        (r"so \boxed{x^2-1}", "(x-1)(x+1)", "correct"),
        (r"so \boxed{x^2}", "(x-1)(x+1)", "wrong"),
        (r"so \boxed{9^{9^{9}}}", r"\sqrt[3]{x}", "wrong"),
        ("I do not know.", "5", "unparsed"),
        ("I do not know.", r"\frac{", "bad_gold"),
        (r"\boxed{\frac{}", r"\frac{", "bad_gold"),
        (r"\boxed{5}", "", "bad_gold"),
        (r"\boxed{(0,4]}", "t(0,4]", "bad_gold"),
        (r"\boxed{t(0,4]}", "t(0,4]", "bad_gold"),
        (r"\boxed{(0,4]}", "x+", "bad_gold"),
        (r"\boxed{}", "", "bad_gold"),
        ("", "5", "unparsed"),
        ("\ud800 \\boxed{5\x00}", "7", "wrong"),
    ],
)
def test_math_verdicts(response, gold, kind):
    verdict = grade_math(response, gold)
    assert verdict.kind == kind, verdict
    assert verdict.reason or kind == "correct"
    assert 0 <= verdict.seconds < 100


def test_the_package_carries_the_names():
    assert eq.verifiers.grade_math(r"\boxed{7}", "7").kind == "correct"


def test_a_comparison_past_its_deadline_is_killed_and_the_next_is_graded(monkeypatch):
    slow, fine = r"\boxed{\sum_{k=1}^{500} \sin(k x)}", r"\boxed{x^2-1}"
    monkeypatch.setattr(grade, "MATH_SECONDS", 0.3)  # SymPy takes seconds
    assert submit_math(slow, r"\sum_{k=1}^{500} \cos(k y)").result().kind == "timeout"
    monkeypatch.setattr(grade, "MATH_SECONDS", 20.0)
    assert grade_math(fine, "(x-1)(x+1)").kind == "correct"


def test_a_gold_that_takes_too_long_by_itself_is_not_the_responses_fault(monkeypatch):
    monkeypatch.setattr(grade, "MATH_SECONDS", 0.0001)
    assert grade_math(r"\boxed{\sum_{k=1}^{5} \cos(k y)}", r"\sum_{k=1}^{5} \sin(k x)").kind == "bad_gold"


def test_many_in_order_whatever_the_mix():
    draw = random.Random(0)
    pairs = [
        (r"\boxed{4}", "4", "correct"), (r"\boxed{5}", "4", "wrong"), ("no", "4", "unparsed"),
        (r"\boxed{x^2-1}", "(x-1)(x+1)", "correct"), (r"\boxed{\sqrt{x+1}}", r"\sqrt{x-1}", "wrong"),
        (r"\boxed{4}", r"\frac{", "bad_gold"),
    ] * 30  # fmt: skip
    draw.shuffle(pairs)
    verdicts = grade_many("math", [p[0] for p in pairs], [p[1] for p in pairs])
    assert [v.kind for v in verdicts] == [p[2] for p in pairs]


def test_a_pair_is_compared_once(monkeypatch):
    asked = []
    real = grade.equal.quick
    monkeypatch.setattr(grade.equal, "quick", lambda *pair: asked.append(pair[:2]) or real(*pair))
    first = [submit_math(rf"words {i} \boxed{{7}}", "8") for i in range(5)]
    assert asked.count(("8", "7")) == 1
    assert len({id(f) for f in first}) == 1
    assert submit_math(r"\boxed{7}", "7").result().kind == "correct"
    assert asked.count(("8", "7")) == asked.count(("7", "7")) == 1


def test_long_answers_are_kept_apart_and_by_a_digest():
    ones, twos = "1" * 500, "1" * 499 + "2"
    kinds = [submit_math(rf"\boxed{{{said}}}", ones).result().kind for said in (ones, twos, ones)]
    assert kinds == ["correct", "wrong", "correct"]
    assert len(grade._kept) == 2
    assert all(len(part) <= grade.SHORT for key in grade._kept for part in key)


def test_a_used_up_budget_is_a_timeout_and_not_remembered():
    hard = [rf"\boxed{{\sin(x+{i})}}" for i in range(40)]
    verdicts = grade_many("math", hard, [r"\cos(y)"] * 40, budget=0.0)
    assert {v.kind for v in verdicts} == {"timeout"}
    assert {v.kind for v in grade_many("math", hard, [r"\cos(y)"] * 40)} == {"wrong"}


def test_a_verdict_is_shared_before_it_is_there_and_asked_for_again_when_it_was_cancelled():
    pending, cut_short, last = Future(), Future(), Future()
    futures = iter([pending, cut_short, last])

    def once():
        return grade._once(("a", "pair"), lambda: next(futures))

    assert once() is once() is pending
    pending.cancel()
    assert once() is once() is cut_short
    cut_short.set_result(Verdict("timeout", OVER_BUDGET))
    assert once() is last
    last.set_result(Verdict("correct"))
    assert once() is last


def test_golds_are_checked_once_with_their_reasons():
    golds = ["5", r"\frac{1}{2}", "", r"\frac{", "Evelyn", "x^2"]
    found = check_golds(golds)
    assert [problem is None for problem in found] == [True, True, False, False, True, True]
    assert "empty" in found[2]
    assert r"\\frac{" in found[3]


@needs_sandbox
def test_code_verdicts():
    right, wrong = "```python\nprint(2 * int(input()))\n```", "```python\nprint(1)\n```"
    verdicts = grade_many("code", [right, wrong, "no code here", right], [DOUBLE] * 3 + [{"inputs": ["1"]}])
    assert [v.kind for v in verdicts[:2]] == ["correct", "wrong"]
    assert verdicts[2].kind in ("unparsed", "wrong")
    assert verdicts[3].kind == "bad_gold"
    assert grade_code(right, DOUBLE).kind == "correct"
    chatty = "```python\nprint('x' * 10_000)\n```"
    limits = (None, sandbox.Limits(output_bytes=1000))
    assert [grade_code(chatty, DOUBLE, allowed).kind for allowed in limits] == ["wrong", "limit"]


@needs_sandbox
def test_code_verdicts_do_not_depend_on_how_many_run_at_once():
    responses = [f"```python\nprint(int(input()) * {k % 3})\n```" for k in range(24)]
    expected = ["correct" if k % 3 == 2 else "wrong" for k in range(24)]
    for workers in (1, 8):
        workers_pool = grade.pool("code", workers)
        row, limits = json.dumps(DOUBLE), dataclasses.asdict(grade.backend.limits())
        futures = [workers_pool.submit(r, row, limits, seconds=60) for r in responses]
        assert [f.result().kind for f in futures] == expected


def test_the_caller_never_imports_sympy_or_torch():
    script = (
        "import sys\nfrom equipoise.verifiers import grade_math\n"
        r"print(grade_math(r'\boxed{x^2-1}', '(x-1)(x+1)').kind, 'sympy' in sys.modules, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=900)
    assert out.stdout.split() == ["correct", "False", "False"], out.stderr


def test_a_forked_process_grades_with_workers_of_its_own():
    assert grade_math(r"\boxed{x^2-1}", "(x-1)(x+1)").kind == "correct"
    pid = os.fork()
    if pid == 0:
        grade.forget()
        os._exit(0 if grade_math(r"\boxed{x^2-4}", "(x-2)(x+2)").kind == "correct" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert grade_math(r"\boxed{x^2-9}", "(x-3)(x+3)").kind == "correct"
