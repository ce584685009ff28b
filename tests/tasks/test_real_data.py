"""The public benchmark files, each through its layout with its golds."""

import json
import re

import pytest

from equipoise.tasks import Dataset

from ..real_data import real_data

COUNTS = {
    "math500": 500,
    "aime24": 30,
    "aime25": 30,
    "amc23": 40,
    "minerva_math": 272,
    "olympiadbench": 675,
    "gsm8k": 1319,
}


def expected(name, row):
    """The gold as the benchmark's own graders take it, written out here without our reader."""
    if name == "gsm8k":
        return re.search(r"#### (.*)$", row["answer"]).group(1)
    if name == "olympiadbench":
        return row["final_answer"][0].replace("$", "")
    if name == "amc23":
        return f"{row['answer']:.0f}"
    if name == "minerva_math":
        depth, start = 0, row["solution"].rindex(r"\boxed{") + len(r"\boxed")
        for k, letter in enumerate(row["solution"][start:], start):
            depth += {"{": 1, "}": -1}.get(letter, 0)
            if not depth:
                return row["solution"][start + 1 : k].strip()
    return row["answer"]


@pytest.mark.parametrize("name", COUNTS)
def test_a_benchmark_loads_whole_with_its_golds(name, capsys):
    file = real_data(f"benchmarks/{name}.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    task = Dataset(file, held_out=file)
    prompts = task.evaluation()
    assert len(prompts) == len(rows) == COUNTS[name]
    assert [p.text for p in prompts] == [row.get("problem") or row["question"] for row in rows]
    assert [p.answer for p in prompts] == [expected(name, row) for row in rows]
    assert {p.meta["verifier"] for p in prompts} == {"math"}
    assert len({p.id for p in prompts}) == len(prompts)
    with capsys.disabled():
        print(f"\n  {name}: {len(prompts)} problems, e.g. {prompts[0].answer}", end="")


def test_levels_of_math500():
    prompts = Dataset(real_data("benchmarks/math500.jsonl"), held_out=real_data("benchmarks/math500.jsonl")).evaluation(
        3
    )
    assert sorted(p.level for p in prompts) == [level for level in "12345" for _ in range(3)]


def test_gsm8k_overlaps_its_own_test_set_in_a_few_problems():
    """Found by the 13-word rule: the same story told with other numbers."""
    task = Dataset(real_data("train/gsm8k.jsonl"), avoid=[real_data("benchmarks/gsm8k.jsonl")])
    assert task.summary.rows == 7473
    assert 1 <= task.summary.dropped["evaluation overlap"] <= 20
    assert set(task.summary.dropped) == {"evaluation overlap"}
    assert "a snowflake" in str(task.summary)


def test_humaneval_is_graded_by_its_tests():
    from equipoise.verifiers.code import sandbox

    if reason := sandbox.available():
        pytest.skip(reason)
    file = real_data("code/humaneval.jsonl.gz")
    task = Dataset(file, held_out=file)
    prompts = task.evaluation()
    assert len(prompts) == 164
    assert prompts[3].id == "HumanEval/3"
    right = [task.grade(p, p.text + p.meta["canonical_solution"]) for p in prompts[:3]]
    wrong = [task.grade(p, p.text + "    return None\n") for p in prompts[:3]]
    assert [future.result().kind for future in right] == ["correct"] * 3
    assert [future.result().kind for future in wrong] == ["wrong"] * 3
