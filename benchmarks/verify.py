"""Verdicts a second on one core: math against TRL's accuracy_reward in the same run, and isolated code.

Everything, the workers included, is pinned to one core. The math pairs are the 500 golds of MATH-500, each answered
verbatim, rewritten, with its neighbour's answer and slightly off, at the end of a page of reasoning; every pair is
seen once, so no cache helps. Code is HumanEval's canonical solutions, MBPP's references (a short function and three
asserts), and a small program on stdin; of MBPP also the CPU time of a verdict, all processes together, the same
on a busy machine. Needs a folder with benchmarks/math500.jsonl, code/humaneval.jsonl.gz and train/mbpp.jsonl. Writes
benchmarks/results/verify.json, unless only one half is asked for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

from report import write  # benchmarks/report.py

BAD_MBPP = (601, 927)  # rows that no response can pass (docs/verifiers-code.md)
PAGE = "We start from what is given and write $a_{n} = \\frac{n}{2}$, so that $x^2 + 3x = 18$ has the root 3. " * 12


def pairs(data: Path) -> list[tuple[str, str, bool | None]]:
    """(response, gold, whether it is right; None where the rewriting may be either)"""
    draw = random.Random(0)
    golds = [json.loads(line)["answer"] for line in (data / "benchmarks/math500.jsonl").read_text().splitlines()]
    out: list[tuple[str, str, bool | None]] = []
    for i, gold in enumerate(golds):
        other = golds[(i + 1) % len(golds)]
        neighbour = None if unnamed(other) == unnamed(gold) else False
        answers = [(gold, True), (rewritten(gold), True), (other, neighbour), (off(gold), False)]
        out += [(f"{PAGE}The answer is $\\boxed{{{answer}}}$.", gold, right) for answer, right in answers]
    draw.shuffle(out)
    return out


def unnamed(gold: str) -> str:
    """x=5 answers 5, by the written rule."""
    return re.sub(r"^[a-z]=", "", gold)


def rewritten(gold: str) -> str:
    if re.fullmatch(r"\d{4,}", gold):
        return f"{int(gold):,}".replace(",", "{,}")
    if re.fullmatch(r"\d+", gold):
        return f"{gold}.0"
    return gold.replace(r"\frac", r"\dfrac").replace("+", " + ").replace(r"\left", "").replace(r"\right", "")


def off(gold: str) -> str:
    """The last digit one up, or something added."""
    digits = list(re.finditer(r"\d", gold))
    if not digits:
        return f"{gold} + 1"
    at = digits[-1].start()
    return f"{gold[:at]}{(int(gold[at]) + 1) % 10}{gold[at + 1 :]}"


def math(work: list[tuple[str, str, bool | None]], peer: int) -> dict[str, Any]:
    from equipoise.verifiers import grade_many, grade_math
    from equipoise.verifiers.math import equal, extract

    grade_math(r"\boxed{\sin(x+1)}", r"\cos(y)")  # the worker starts here, not in the timing
    start = time.perf_counter()
    verdicts = grade_many("math", [w[0] for w in work], [w[1] for w in work])
    ours = len(work) / (time.perf_counter() - start)
    false = [(w, v) for w, v in zip(work, verdicts, strict=True) if w[2] is False and v.kind == "correct"]
    missed = [(w, v) for w, v in zip(work, verdicts, strict=True) if w[2] is True and v.kind != "correct"]
    for (response, gold, _), verdict in [*false, *missed][:20]:
        print(f"  {verdict.kind}: {response[len(PAGE) :]} against {gold}")
    quick = sum(equal.quick(gold, extract.answer(response).text or "") is not None for response, gold, _ in work)

    from trl.rewards import accuracy_reward

    some = work[:peer]
    accuracy_reward([[{"content": some[0][0]}]], [some[0][1]])
    start = time.perf_counter()
    accuracy_reward([[{"content": w[0]}] for w in some], [f"${w[1]}$" for w in some])
    theirs = len(some) / (time.perf_counter() - start)
    return {
        "pairs": len(work), "pairs_per_s": ours, "decided_in_the_caller": quick / len(work),
        "verdicts": dict(Counter(v.kind for v in verdicts)), "wrong_called_correct": len(false),
        "right_not_called_correct": len(missed), "trl_pairs_per_s": theirs, "ratio": ours / theirs,
    }  # fmt: skip


def code(data: Path, count: int) -> dict[str, Any]:
    from equipoise.verifiers import grade_code, grade_many
    from equipoise.verifiers.code import sandbox

    if (why := sandbox.available()) is not None:
        print(why)
        return {"unavailable": why}
    with gzip.open(data / "code/humaneval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file][:count]
    grade_code("print(1)", {"inputs": [""], "outputs": ["1"]})
    responses = [f"```python\n{row['prompt']}{row['canonical_solution']}\n```" for row in rows]
    start = time.perf_counter()
    verdicts = grade_many("code", responses, rows)
    asserts = len(rows) / (time.perf_counter() - start)
    programs = [f"print(int(input()) * 2)  # {i}" for i in range(count)]
    tests = {"inputs": ["2\n", "5\n", "7\n"], "outputs": ["4\n", "10\n", "14\n"]}
    start = time.perf_counter()
    stdin = grade_many("code", programs, [tests] * count)
    return {
        "humaneval_per_s": asserts, "humaneval_verdicts": dict(Counter(v.kind for v in verdicts)),
        "stdin_three_tests_per_s": count / (time.perf_counter() - start),
        "stdin_verdicts": dict(Counter(v.kind for v in stdin)), **mbpp(data, count),
    }  # fmt: skip


def mbpp(data: Path, count: int) -> dict[str, Any]:
    from equipoise.verifiers import grade_many
    from equipoise.verifiers.code import fork_server, judge

    rows = [json.loads(line) for line in (data / "train/mbpp.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["task_id"] not in BAD_MBPP][:count]
    responses = [f"```python\n{row['code']}\n```" for row in rows]
    start = time.perf_counter()
    verdicts = grade_many("code", responses, rows)
    seconds = time.perf_counter() - start
    tests = [judge.tests(row) for row in rows]
    fork_server.close()  # what it used counts when it has ended
    before = cpu_seconds()
    for response, asserts in zip(responses, tests, strict=True):
        judge.judge(response, asserts)
    fork_server.close()
    return {
        "mbpp_per_s": len(rows) / seconds, "mbpp_cpu_ms": 1000 * (cpu_seconds() - before) / len(rows),
        "mbpp_verdicts": dict(Counter(v.kind for v in verdicts)),
    }  # fmt: skip


def cpu_seconds() -> float:
    """Of this process and all that it has seen end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with benchmarks/, code/ and train/")
    parser.add_argument("--peer", type=int, default=400, help="pairs given to TRL (default: %(default)s)")
    parser.add_argument("--code", type=int, default=100, help="programs of each kind (default: %(default)s)")
    parser.add_argument("--only", choices=("math", "code"), help="print this half and write nothing")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["OMP_NUM_THREADS"] = "1"
    figures = {}
    if options.only != "code":
        figures["math"] = math(pairs(options.data), options.peer)
    if options.only != "math":
        figures["code"] = code(options.data, options.code)
    print(json.dumps(figures, indent=2))
    if options.only is None:
        write("verify", figures)


if __name__ == "__main__":
    main()
