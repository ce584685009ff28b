"""The benchmarks: where files are found, what golds become, tolerances and units, and all rows of the real files."""

import dataclasses
import json
import re
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.evaluate import BenchmarkPlan, evaluate_benchmarks
from equipoise.evaluate.benchmarks import BENCHMARKS, REWRITTEN, number, open_benchmark, unverifiable, within
from equipoise.hub_lookup import Lookup
from equipoise.tasks import TaskError, data_files
from equipoise.tasks.templates import TEMPLATES
from equipoise.verifiers import Verdict
from equipoise.verifiers.code import sandbox
from tests.evaluate.fakes import Writer, fake_policy
from tests.real_data import real_data

ROWS = {
    "math500": 500, "aime24": 30, "aime25": 30, "amc23": 40, "minerva_math": 272, "olympiadbench": 675, "gsm8k": 1319,
}  # fmt: skip


def real(name, **options):
    return open_benchmark(name, real_data(f"benchmarks/{name}.jsonl").parents[1], **options)


def write_rows(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def grade(benchmark, answer, k=0):
    return benchmark.grade(benchmark.prompts[k], rf"So it is \boxed{{{answer}}}.").result()


def score(benchmark, write, folder):
    plan = BenchmarkPlan.of(benchmark, samples=1)
    result = evaluate_benchmarks(fake_policy(), Writer(write), [plan], folder)
    return result["benchmarks"][benchmark.name]


@pytest.mark.parametrize("name", ROWS)
def test_every_gold_of_the_real_files_can_be_verified(name):
    benchmark = real(name)
    assert len(benchmark.prompts) == len({p.id for p in benchmark.prompts}) == ROWS[name]
    assert unverifiable(benchmark) == {}


@pytest.mark.parametrize("name", ROWS)
def test_a_policy_that_writes_the_gold_scores_1(name, tmp_path):
    benchmark = real(name)
    golds = {p.id: p.answer for p in benchmark.prompts}
    summary = score(benchmark, lambda _, problem, i: rf"We find \boxed{{{golds[problem]}}}.", tmp_path / "out")
    assert (summary["problems"], summary["acc@1"]["value"]) == (ROWS[name], 1.0)
    assert summary["verdicts"] == {"correct": ROWS[name]}


def plainly_different(a, b):
    """By nothing that grades: other digits and letters ("x = 5" is 5), or numbers further apart than a tolerance."""
    digits = [re.sub(r"[^0-9a-zA-Z]", "", re.sub(r"^[a-z]\s*=|\\[a-zA-Z]+", "", text)) for text in (a, b)]
    try:
        x, y = float(a), float(b)
        return abs(x - y) > 0.02 * max(abs(x), abs(y)) + 0.2
    except ValueError:
        return digits[0] != digits[1]


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ROWS)
def test_a_policy_that_writes_the_gold_of_another_row_scores_0(name, every, tmp_path):
    benchmark = real(name)
    benchmark = dataclasses.replace(benchmark, prompts=benchmark.prompts[::every])
    golds = [p.answer for p in benchmark.prompts]
    other = {
        p.id: next(g for g in golds[i + 1 :] + golds if plainly_different(g, p.answer))
        for i, p in enumerate(benchmark.prompts)
    }
    summary = score(benchmark, lambda _, problem, i: rf"We find \boxed{{{other[problem]}}}.", tmp_path / "out")
    assert summary["acc@1"]["value"] == 0.0
    assert "correct" not in summary["verdicts"]


def test_levels_and_subjects_of_the_real_files():
    math = real("math500")
    assert {p.level for p in math.prompts} == set("12345")
    assert len({p.meta["subject"] for p in math.prompts}) == 7
    assert len({p.meta["subject"] for p in real("olympiadbench").prompts}) == 4
    assert all(p.meta["subject"] for p in real("minerva_math").prompts)


def test_the_floats_of_amc_are_whole_numbers():
    assert all(str(int(p.answer)) == p.answer for p in real("amc23").prompts)


def test_the_rewritten_references_are_those_of_the_data():
    for (name, was), now in REWRITTEN.items():
        golds = [p.answer for p in real(name).prompts]
        assert golds.count(now) == 1
        assert was not in golds
        assert was in real_data(f"benchmarks/{name}.jsonl").read_text()


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        ("4.5e33", r"4.52 \times 10^{33}", "correct"),
        ("4.5e33", r"4.56 \times 10^{33}", "wrong"),
        ("4.5e33", r"4.5 \times 10^{32}", "wrong"),
        ("1.6", r"1.61 \text{ cm}", "correct"),
        ("1.6", r"1.57 \text{ cm}", "wrong"),
        ("300", r"301 \mathrm{~km/s}", "correct"),
        ("300", r"300 \mathrm{~km} / \mathrm{s}", "correct"),
        ("9.6", r"9.6\ \AA", "correct"),
        ("0.01", "-0.01", "wrong"),
        ("5", r"5\text{ million}", "wrong"),
        ("5", r"5\mu", "wrong"),
        ("5", "5x", "wrong"),
        ("41.8", r"v = 41.9^{\circ}", "correct"),
        ("0", "0.001", "wrong"),
        (r"\frac{37}{4} m", r"\frac{37}{4}", "wrong"),
        (r"\frac{37}{4} m", r"9.25 m", "correct"),
    ],
)
def test_minerva_counts_a_number_within_one_percent_whatever_its_unit(tmp_path, gold, answer, kind):
    rows = {"problem": "q", "solution": rf"It is \boxed{{{gold}}} \mathrm{{~cm}}.", "type": "Physics"}
    benchmark = open_benchmark("minerva_math", write_rows(tmp_path / "minerva_math.jsonl", rows))
    verdict = grade(benchmark, answer)
    assert verdict.kind == kind if kind == "correct" else verdict.kind in ("wrong", "unparsed")


def olympiad(tmp_path, gold, **more):
    row = {"id": 1, "question": "q", "solution": ["…"], "final_answer": [gold], "is_multiple_answer": False,
           "unit": None, "answer_type": "Numerical", "error": None, "subfield": "Algebra"}  # fmt: skip
    return open_benchmark("olympiadbench", write_rows(tmp_path / "olympiadbench.jsonl", row | more))


@pytest.mark.parametrize(
    ("gold", "more", "right", "wrong"),
    [
        ("4.2", {"unit": "%", "error": "1e-1"}, ["4.2", r"4.2\%", "4.3", r"4.15\%", "4.1"], ["4.35", "0.042", "42"]),
        ("45", {"unit": "minute"}, ["45", r"45\text{ minutes}", "45 minute"], ["0.75", "45.1", "46"]),
        (r"$\frac{600}{7}$", {"unit": "km/h"}, [r"\frac{600}{7}\text{ km/h}", "600/7"], ["85.7", "85"]),
        ("$166$", {"unit": "$cm^2$"}, ["166", r"166 \text{ cm}^2"], ["16.6", "167"]),
        ("1,3,5", {"is_multiple_answer": True}, ["5, 3, 1", r"\{1,3,5\}"], ["1,3", "1,3,5,7", "9"]),
        ("$221,$8$", {"is_multiple_answer": True}, ["8, 221"], ["221", "8"]),
        ("$(1,8,19), (2,7,13)$", {"is_multiple_answer": True}, ["(2,7,13), (1,8,19)"], ["(8,1,19), (2,7,13)"]),
        ("$(2,4)$", {"answer_type": "Tuple"}, ["(2, 4)"], ["(4,2)"]),
        (
            r"$\angle B=90$,$\angle A=90$",
            {"is_multiple_answer": True, "unit": r"^{\circ}"},
            [r"90^\circ, 90^\circ"],
            ["80"],
        ),
    ],
)
def test_units_tolerances_and_several_answers_of_olympiadbench(tmp_path, gold, more, right, wrong):
    benchmark = olympiad(tmp_path, gold, **more)
    assert unverifiable(benchmark) == {}
    assert {a: grade(benchmark, a).kind for a in right} == dict.fromkeys(right, "correct")
    assert "correct" not in {grade(benchmark, a).kind for a in wrong}


@pytest.mark.parametrize(
    ("text", "value"),
    [("4.25\\%", Fraction(17, 4)), ("1{,}538\\text{ years}", 1538), ("\\frac{1}{3}", Fraction(1, 3)), ("x", None),
     ("\\sqrt{2}", None), ("3\\text{ or }4", None), ("1,2", None), ("", None), ("v=3", 3), ("3=v", None)],
)  # fmt: skip
def test_numbers_are_read_exactly_or_not_at_all(text, value):
    assert number(text) == value


def test_the_tolerance_touches_nothing_but_numbers_that_were_wrong():
    tolerance = Fraction(1, 100), Fraction(0)
    for verdict in (
        Verdict("timeout", answer="100"),
        Verdict("bad_gold"),
        Verdict("unparsed"),
        Verdict("correct", answer="7"),
    ):
        assert within(verdict, "100", tolerance) == verdict
    assert within(Verdict("wrong", answer="101"), "100", tolerance).kind == "correct"
    assert within(Verdict("wrong", answer="101.01"), "100", tolerance).kind == "wrong"


def test_gsm8k_takes_what_follows_the_mark(tmp_path):
    row = {"question": "How many?", "answer": "2+2=<<2+2=4>>4\n#### 1,004"}
    benchmark = open_benchmark("gsm8k", write_rows(tmp_path / "gsm8k.jsonl", row))
    assert [grade(benchmark, a).kind for a in ("1004", "1,004", r"\$1004", "4")] == ["correct"] * 3 + ["wrong"]


LIVE = {
    "question_id": "a", "question_content": "Add the numbers.", "starter_code": "", "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": "[]", "metadata": "{}",
}  # fmt: skip
ADD = "def add(a, b):\n    return a + b\n"
MBPP = {"task_id": 11, "text": "Write a function to add.", "code": ADD, "test_list": ["assert add(1, 2) == 3"]}
PROGRAM = "print(sum(map(int, input().split())))\n"

needs_sandbox = pytest.mark.skipif(sandbox.available() is not None, reason=str(sandbox.available()))


@needs_sandbox
@pytest.mark.parametrize(("name", "row", "code"), [("mbpp", MBPP, ADD), ("livecodebench", LIVE, PROGRAM)])
def test_code_is_graded_by_its_tests_in_both_forms(tmp_path, name, row, code):
    file = write_rows(tmp_path / "code" / f"{name}.jsonl", row).parents[1]
    chat, completion = open_benchmark(name, file), open_benchmark(name, file, chat=False)
    assert unverifiable(chat) == {}
    assert not chat.votes
    prompt = chat.prompts[0]
    assert chat.grade(prompt, f"Here:\n```python\n{code}```\n").result().kind == "correct"
    assert (
        chat.grade(prompt, f"Here:\n```python\n{code.replace('+', '-').replace('sum', 'max')}```\n").result().kind
        == "wrong"
    )
    assert completion.text(prompt).endswith("```python\n")
    assert completion.grade(prompt, f"{code}\n```\nAnd so on: ```").result().kind == "correct"


@needs_sandbox
def test_the_canonical_solutions_of_humaneval_score_1(tmp_path):
    assert_canonical_solutions_score_1(5, tmp_path)


@pytest.mark.slow
@needs_sandbox
def test_all_canonical_solutions_of_humaneval_score_1(tmp_path):
    assert_canonical_solutions_score_1(None, tmp_path)


def assert_canonical_solutions_score_1(limit, tmp_path):
    import gzip

    data = real_data("code/humaneval.jsonl.gz")
    with gzip.open(data, "rt", encoding="utf-8") as file:
        rows = {row["task_id"]: row for row in map(json.loads, file)}
    for chat in (True, False):
        benchmark = open_benchmark("humaneval", data.parents[1], chat=chat, limit=limit)

        def write(_, problem, i, chat=chat):
            row = rows[problem]
            whole = f"```python\n{row['prompt']}{row['canonical_solution']}```"
            return whole if chat else f"{row['canonical_solution']}\n\nprint('and so on')"

        summary = score(benchmark, write, tmp_path / f"chat-{chat}")
        assert summary["verdicts"] == {"correct": limit or 164}
        assert "maj@1" not in summary


def test_files_are_found_in_the_folder_and_its_folders_and_in_parquet(tmp_path):
    rows = [{"problem": f"q{i}", "answer": str(i)} for i in range(3)]
    write_rows(tmp_path / "a" / "benchmarks" / "aime24.jsonl", *rows)
    write_rows(tmp_path / "b" / "aime24.jsonl", *rows)
    (tmp_path / "c").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c" / "aime24.parquet")
    found = [open_benchmark("aime24", tmp_path / folder).prompts for folder in "abc"]
    assert [p.answer for p in found[0]] == ["0", "1", "2"]
    assert found[0] == found[1] == found[2]
    assert open_benchmark("aime24", tmp_path / "a", limit=2).prompts == found[0][:2]


def test_the_reading_of_a_file_does_not_depend_on_the_form(tmp_path):
    write_rows(tmp_path / "gsm8k.jsonl", {"question": "How {many} \\frac?", "answer": "#### 4"})
    chat, completion = open_benchmark("gsm8k", tmp_path), open_benchmark("gsm8k", tmp_path, chat=False)
    assert chat.prompts == completion.prompts
    assert chat.text(chat.prompts[0]) == TEMPLATES["gsm8k"].chat.replace("{question}", "How {many} \\frac?")
    assert completion.text(chat.prompts[0]) == TEMPLATES["gsm8k"].completion.replace("{question}", "How {many} \\frac?")
    assert chat.stop == ()
    said = r"It is \boxed{4}." + completion.stop[0] + r" Another one. \boxed{5}"
    assert completion.grade(completion.prompts[0], said).result().kind == "correct"
    assert chat.grade(chat.prompts[0], said).result().kind == "wrong"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_holds_its_question_once_in_both_forms(name):
    template = TEMPLATES[name]
    for text in (template.chat, template.completion):
        assert text.count("{question}") == 1
    assert (
        (r"\boxed{}" in template.chat) == (r"\boxed{}" in template.completion) == (name not in ("complete", "program"))
    )
    assert {about.template for about in BENCHMARKS.values()} == set(TEMPLATES)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("maths500", '"maths500" is not a benchmark; did you mean "math500"?'),
        ("zzz", '"zzz" is not a benchmark; use one of (math500, aime24,'),
        (
            "gsm8k",
            "gsm8k: there is no file of it in {folder}: looked for {folder}/benchmarks/gsm8k, {folder}/code",
        ),
    ],
)
def test_a_benchmark_that_is_not_there_is_one_sentence(tmp_path, name, said):
    with pytest.raises(TaskError) as error:
        open_benchmark(name, tmp_path)
    assert str(error.value).startswith(said.format(folder=tmp_path))


@pytest.mark.parametrize("name", [name for name, about in BENCHMARKS.items() if about.hub])
def test_without_a_folder_a_benchmark_comes_from_the_hub(name, monkeypatch):
    """What the package is asked for; there is no hub here to ask."""
    datasets = pytest.importorskip("datasets")
    rows = {"humaneval": [{"task_id": "0", "prompt": "def f():", "test": "def check(f): …", "entry_point": "f"}],
            "mbpp": [MBPP]}.get(name, [{"problem": "q", "answer": "7"}])  # fmt: skip
    asked = []

    def load_dataset(path, config, split):
        asked.append((path, config, split))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(data_files, "look_up", lambda name, kind: Lookup(""))  # the hub has it
    benchmark = open_benchmark(name)
    ((path, config, split),) = asked
    assert f"hub:{path}:{config or ''}:{split}" == benchmark.source == f"hub:{BENCHMARKS[name].hub}"
    assert split in ("train", "test")
    assert len(benchmark.prompts) == 1


def test_where_the_hub_is_not_reached_the_folder_of_benchmarks_is_named(hub_nowhere):
    pytest.importorskip("datasets")
    with pytest.raises(TaskError, match=r"gsm8k: .*hub cannot be reached.*; --data DIR takes its file from a folder$"):
        open_benchmark("gsm8k")


def test_livecodebench_is_not_on_the_hub_in_a_form_that_can_be_loaded():
    with pytest.raises(TaskError, match=r"livecodebench: cannot be loaded from the hub; .* --data DIR"):
        open_benchmark("livecodebench")


def test_a_hole_or_an_id_used_twice_refuses_the_whole_file(tmp_path):
    file = write_rows(tmp_path / "aime25.jsonl", {"problem": "a", "answer": "1"}, {"problem": "b", "answer": ""})
    with pytest.raises(TaskError, match=r"aime25\.jsonl.*2.*every row of an evaluation file counts"):
        open_benchmark("aime25", file)
    twice = write_rows(tmp_path / "aime24.jsonl", *[{"id": 7, "problem": q, "answer": "1"} for q in "ab"])
    with pytest.raises(TaskError, match="two problems have the id 7"):
        open_benchmark("aime24", twice)
