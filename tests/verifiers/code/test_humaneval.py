"""HumanEval whole: every canonical solution is correct for its own problem, and for no other's."""

import gzip
import json
import os
import re
import resource
import time

import pytest

from equipoise.verifiers.code import judge, sandbox
from tests.real_data import real_data


@pytest.fixture(scope="module")
def problems():
    if (why := sandbox.available()) is not None:
        pytest.skip(why)
    with gzip.open(real_data("code/humaneval.jsonl.gz"), "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 164
    return rows


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def kinds(problems, response_to, every=1):
    chosen = list(enumerate(problems))[::every]
    verdicts = {row["task_id"]: judge.judge(response_to(i, row), judge.tests(row)) for i, row in chosen}
    return {task: (verdict.kind, verdict.reason) for task, verdict in verdicts.items()}


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_every_canonical_solution_is_correct(problems, capsys, every):
    began, used = time.perf_counter(), cpu_seconds()
    found = kinds(problems, lambda i, row: row["canonical_solution"], every)
    wall, cpu = time.perf_counter() - began, cpu_seconds() - used
    if every == 1:
        with capsys.disabled():
            print(f" [HumanEval: {164 / wall:.1f} verdicts/s, {164 / cpu:.1f} per CPU second] ", end="")
    assert {task: outcome for task, outcome in found.items() if outcome[0] != "correct"} == {}


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_no_solution_is_correct_for_the_next_problem(problems, every):
    """The same function name, so that it is called and answers; its body solves the problem before."""

    def swapped(i, row):
        other = problems[(i + 1) % 164]
        whole = other["prompt"] + other["canonical_solution"]
        renamed = re.sub(rf"\b{other['entry_point']}\b", row["entry_point"], whole)
        return f"```python\n{renamed}\n```"

    found = kinds(problems, swapped, every)
    assert {task: outcome for task, outcome in found.items() if outcome[0] != "wrong"} == {}


@pytest.mark.slow
@pytest.mark.parametrize("fence", ["```python\n{}\n```", "{}"], ids=["fenced", "bare"])
def test_whole_functions_are_correct_too(problems, fence):
    found = kinds(problems, lambda i, row: fence.format(row["prompt"] + row["canonical_solution"]))
    assert {task: outcome for task, outcome in found.items() if outcome[0] != "correct"} == {}


@pytest.mark.slow
def test_two_workers_on_two_cores(problems, capsys):
    """Verdicts per second with one process per core, as a pool runs them."""
    from concurrent.futures import ProcessPoolExecutor

    responses, tests = [row["canonical_solution"] for row in problems], [judge.tests(row) for row in problems]
    workers = min(2, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(judge.judge, responses[:4], tests[:4]))
        began = time.perf_counter()
        verdicts = list(pool.map(judge.judge, responses, tests))
        wall = time.perf_counter() - began
    with capsys.disabled():
        print(f" [HumanEval, {workers} workers: {164 / wall:.1f} verdicts/s] ", end="")
    assert {verdict.kind for verdict in verdicts} == {"correct"}
