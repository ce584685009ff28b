r"""Each layout of rows by a small example, as its source writes it."""

import base64
import json
import math
import pickle
import zlib
from concurrent.futures import Future

import pytest

from equipoise.tasks import Dataset, TaskError, fields
from equipoise.tasks.fields import gold, last_box
from equipoise.tasks.row_reader import RowError
from equipoise.tasks.schema import recognise

from .rows_of import jsonl, parquet

USER = [{"role": "user", "content": "What is 6 times 7?"}]
CASES = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES)))).decode()

EXAMPLES = {
    "verl": (
        {"data_source": "openai/gsm8k", "prompt": USER, "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": "42"}, "extra_info": {"split": "train", "index": 7}},
        {"verifier": "math", "answer": "42", "id": "openai/gsm8k/train/7", "messages": tuple(USER),
         "question": "What is 6 times 7?"},
    ),
    "prompt, answer": ({"prompt": "6*7=", "answer": 42}, {"verifier": "math", "answer": "42", "messages": None}),
    "TRL text": ({"prompt": "6*7=", "solution": r"It is \boxed{42}."}, {"verifier": "math", "answer": "42"}),
    "TRL messages": ({"prompt": USER, "solution": r"$\frac{84}{2}$"}, {"verifier": "math", "answer": r"$\frac{84}{2}$",
                                                                      "messages": tuple(USER)}),
    "TRL latex": ({"prompt": "Half?", "answer": r"\frac12"}, {"verifier": "math", "answer": r"\frac12"}),
    "slime": ({"prompt": "6*7=", "label": "42"}, {"verifier": "math", "answer": "42"}),
    "DAPO": ({"prompt": USER, "label": "34"}, {"verifier": "math", "answer": "34", "messages": tuple(USER)}),
    "GSM8K": ({"question": "Six by seven?", "answer": "6*7=<<6*7=42>>42\n#### 42"},
              {"verifier": "math", "answer": "42", "question": "Six by seven?"}),
    "MATH": ({"problem": "6*7?", "solution": r"\boxed{41}? No: $\boxed{\frac{84}{2}}$.", "level": "Level 5",
              "type": "Algebra"}, {"verifier": "math", "answer": r"\frac{84}{2}", "level": "Level 5"}),
    "MATH-500": ({"problem": "6*7?", "solution": r"\boxed{41}", "answer": "42", "subject": "Algebra", "level": 2,
                  "unique_id": "test/1.json"}, {"answer": "42", "level": "2", "id": "test/1.json"}),
    "Polaris": ({"problem": "6*7?", "answer": "42", "difficulty": "3/8"}, {"answer": "42", "level": "3/8"}),
    "AMC": ({"id": 0, "problem": "6*7?", "answer": 42.0, "question": "6*7?"}, {"answer": "42", "id": "0"}),
    "OlympiadBench": ({"id": 9, "question": "Which?", "final_answer": ["$69$,$84$"], "context": None},
                      {"answer": "69,84", "verifier": "math"}),
    "HumanEval": ({"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "",
                   "test": "def check(candidate):\n    assert candidate(1) == 2"},
                  {"verifier": "code", "id": "HumanEval/0", "question": "def f(x):\n", "answer": ""}),
    "MBPP": ({"task_id": 2, "text": "Add one.", "code": "", "test_list": ["assert f(1) == 2"], "test_setup_code": ""},
             {"verifier": "code", "id": "2",
              "question": "Add one.\nYour code should pass these tests:\nassert f(1) == 2"}),
    "LiveCodeBench": ({"question_title": "Sum", "question_content": "Add two numbers.", "question_id": "1A",
                       "starter_code": "", "difficulty": "easy", "public_test_cases": json.dumps(CASES),
                       "private_test_cases": PACKED, "metadata": "{}"},
                      {"verifier": "code", "id": "1A", "level": "easy"}),
    "reasoning-gym": ({"question": "6*7?", "answer": "42", "metadata": {"source_dataset": "products"}},
                      {"verifier": "gym", "answer": "42", "level": "products"}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_layout_is_known_by_its_columns(name):
    row, expected = EXAMPLES[name]
    item = recognise("here", row).read(row)
    assert {key: getattr(item, key) for key in expected} == expected


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("kind", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_a_layout_reads_the_same_from_every_kind_of_file(tmp_path, name, kind):
    row, expected = EXAMPLES[name]
    write = parquet if kind.endswith("parquet") else jsonl
    (prompt,) = Dataset(write(tmp_path / kind, [row])).train
    assert prompt.answer == expected.get("answer", prompt.answer)
    assert prompt.text == expected.get("question", prompt.text)
    assert prompt.messages == expected.get("messages", prompt.messages)
    assert prompt.level == expected.get("level", prompt.level)


def test_names_of_the_known_layouts():
    known = ("verl", "LiveCodeBench", "HumanEval", "MBPP", "reasoning-gym", "GSM8K")
    assert [recognise("", EXAMPLES[name][0]).name for name in known] == list(known)
    assert recognise("", EXAMPLES["Polaris"][0]).name == "problem, answer"


def test_tests_of_code_reach_the_verifier_unpacked():
    from equipoise.verifiers.code import judge

    for name in ("HumanEval", "MBPP", "LiveCodeBench"):
        row = EXAMPLES[name][0]
        judge.tests(recognise("", row).read(row).tests)
    item = recognise("", EXAMPLES["LiveCodeBench"][0]).read(EXAMPLES["LiveCodeBench"][0])
    assert json.loads(item.tests["private_test_cases"]) == CASES
    assert "stdin" in item.question
    starter = {**EXAMPLES["LiveCodeBench"][0], "starter_code": "class Solution:\n"}
    assert "class Solution:" in recognise("", starter).read(starter).question


def test_packed_tests_never_run_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "PWNED"), "w"))

    packed = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    row = {**EXAMPLES["LiveCodeBench"][0], "private_test_cases": packed}
    assert recognise("", row).read(row).tests["private_test_cases"] == packed
    assert not (tmp_path / "PWNED").exists()


def test_a_verl_row_of_code_and_one_for_a_judge():
    row = EXAMPLES["verl"][0]
    tests = json.dumps({"inputs": ["1"], "outputs": ["2"]})
    code = {**row, "ability": "code", "reward_model": {"style": "rule", "ground_truth": tests}}
    assert recognise("", code).read(code).tests == tests
    judged = {**row, "reward_model": {"style": "model", "ground_truth": "42"}}
    with pytest.raises(RowError, match="only a model can judge it") as error:
        recognise("", row).read(judged)
    assert error.value.label == "not verifiable"


def test_columns_of_ones_own(tmp_path):
    rows = [{"q": f"{k}*2?", "deep": {"a": str(2 * k), "tier": k % 2}, "uid": f"u{k}", "extra": k} for k in range(4)]
    columns = {"prompt": "q", "answer": "deep.a", "level": "deep.tier", "id": "uid"}
    for file in (jsonl(tmp_path / "rows.jsonl", rows), parquet(tmp_path / "rows.parquet", rows)):
        prompts = Dataset(file, columns=columns).train
        assert [(p.id, p.text, p.answer, p.level) for p in prompts] == [
            (f"u{k}", f"{k}*2?", str(2 * k), str(k % 2)) for k in range(4)
        ]
        assert [p.meta["extra"] for p in prompts] == [0, 1, 2, 3]
    hole = jsonl(tmp_path / "hole.jsonl", [*rows, {"q": "?", "answer": "not the gold"}])
    examples = Dataset(hole, columns=columns).summary.examples
    assert examples["no answer"] == [f'{hole}, line 5: there is no "deep.a"']
    known = jsonl(tmp_path / "known.jsonl", [{"problem": "6*7?", "answer": "42"}])
    for held_out, text in ((known, "6*7?"), (tmp_path / "rows.jsonl", "0*2?")):
        assert Dataset(file, columns=columns, held_out=held_out).evaluation()[0].text == text
    with pytest.raises(TaskError, match=r'task\.columns names "qq": there are q, deep, uid, extra'):
        Dataset(file, columns={"prompt": "qq"})
    with pytest.raises(TaskError, match=r'task\.columns: "question" is not a role; must be one of prompt, answer'):
        Dataset(file, columns={"question": "q"})
    with pytest.raises(TaskError, match=r'there is no "prompt" among q, deep.*task\.columns = \{ prompt = "…" \}'):
        Dataset(file)


def test_a_reward_function_sees_the_other_columns_and_the_gold(tmp_path):
    row = {**EXAMPLES["GSM8K"][0], "source": "school", "level": 3}
    (prompt,) = Dataset(jsonl(tmp_path / "rows.jsonl", [row])).train
    seen = {"id": prompt.id, "answer": prompt.answer, "level": prompt.level, **prompt.meta}
    assert seen["answer"] == "42"
    assert seen["level"] == "3"
    assert seen["source"] == "school"
    assert seen["solution"] == row["answer"]


def test_a_verifier_of_ones_own_choice(tmp_path):
    file = jsonl(tmp_path / "rows.jsonl", [{"prompt": "6*7=", "answer": 42}])
    assert Dataset(file).prompt(0).meta["verifier"] == "math"
    assert Dataset(file, verifier="math").prompt(0).meta["verifier"] == "math"
    code = jsonl(tmp_path / "code.jsonl", [EXAMPLES["MBPP"][0]])
    assert Dataset(code, verifier="math").prompt(0).meta["verifier"] == "code"
    with pytest.raises(TaskError, match=r'task\.verifier = "maths"'):
        Dataset(file, verifier="maths")


LAYOUTS_WITH_A_VERIFIER = {
    "text": lambda said: {"prompt": "Half?", "answer": "1/2", "verifier": said},
    "messages": lambda said: {"prompt": USER, "answer": "42", "verifier": said},
    "GSM8K": lambda said: {**EXAMPLES["GSM8K"][0], "verifier": said},
    "verl": lambda said: {**EXAMPLES["verl"][0], "extra_info": {"split": "train", "index": 7, "verifier": said}},
}


@pytest.mark.parametrize("layout", LAYOUTS_WITH_A_VERIFIER)
def test_a_row_says_its_verifier(tmp_path, layout):
    row = LAYOUTS_WITH_A_VERIFIER[layout]
    for i, said in enumerate(("math", "", None)):
        file = jsonl(tmp_path / f"{i}.jsonl", [row(said)])
        for asked in ("math", None):
            assert Dataset(file, verifier=asked).prompt(0).meta["verifier"] == "math"
            assert Dataset(file, verifier=asked, held_out=file).evaluation()[0].meta["verifier"] == "math"


@pytest.mark.parametrize("layout", LAYOUTS_WITH_A_VERIFIER)
@pytest.mark.parametrize("said", ["maths", "code", "final", 7])
def test_a_verifier_that_is_not_known_is_named_by_its_row(tmp_path, layout, said):
    row = LAYOUTS_WITH_A_VERIFIER[layout](said)
    file = jsonl(tmp_path / "rows.jsonl", [row])
    expected = f'rows.jsonl, line 1: "verifier" is {json.dumps(said)}: must be math'
    with pytest.raises(TaskError, match=expected):
        Dataset(file)
    with pytest.raises(TaskError, match=expected):
        Dataset(file, strict=True)
    good = jsonl(tmp_path / "good.jsonl", [{"prompt": f"{k}?", "answer": k, "verifier": "math"} for k in range(3)])
    with pytest.raises(TaskError, match=expected):
        Dataset(good, held_out=file)
    assert Dataset(file, verifier="math").prompt(0).meta["verifier"] == "math"  # the configuration overrides it


def test_a_row_with_a_verifier_that_is_not_known_is_left_out(tmp_path):
    rows = [{"prompt": f"{v}?", "answer": "1/2", "verifier": v} for v in ("math", "exact")]
    task = Dataset(jsonl(tmp_path / "rows.jsonl", rows))
    assert {p.text: settled(task.grade(p, "Answer: 0.5")) for p in task.train} == {"math?": "correct"}
    assert task.summary.dropped == {"unknown verifier": 1}


@pytest.mark.parametrize(("answer", "response", "kind"), [
    ("1234567890123", r"\boxed{1234567890124}", "wrong"),
    ("12", r"\boxed{1,2}", "wrong"),
    ("5", r"<think> it is \boxed{5}", "unparsed"),
    ("5", "Answer: **5**", "correct"),
    ("5", "5", "unparsed"),
    ("blue", "Answer: Blue", "correct"),
])  # fmt: skip
def test_rows_of_prompt_and_answer_have_the_rules_of_mathematics(tmp_path, answer, response, kind):
    task = Dataset(jsonl(tmp_path / "rows.jsonl", [{"prompt": "Which?", "answer": answer}]))
    assert settled(task.grade(task.prompt(0), response)) == kind


def test_a_row_can_ask_for_the_form_of_its_reference(tmp_path):
    product, sum_ = r"\boxed{(x+1)(x-1)}", r"\boxed{x^2-1}"
    for form, kinds in (("reference", ["correct", "wrong"]), ("any", ["correct"] * 2), (None, ["correct"] * 2)):
        row = {"prompt": "Which product?", "answer": "(x-1)(x+1)", "form": form}
        task = Dataset(jsonl(tmp_path / f"{form}.jsonl", [row]))
        assert [settled(task.grade(task.prompt(0), response)) for response in (product, sum_)] == kinds
    file = jsonl(tmp_path / "rows.jsonl", [{"prompt": "Which?", "answer": "1", "form": "factored"}])
    with pytest.raises(TaskError, match='"form" is "factored": must be any or reference'):
        Dataset(file)


def test_the_task_says_where_an_answer_is_read_and_by_which_rules(tmp_path):
    file = jsonl(tmp_path / "rows.jsonl", [{"prompt": "What is 75 + 80? Box it: \\boxed{}", "answer": "155"}])
    found = {}
    for answer_in in ("auto", "boxed", "####", "tag", "anywhere"):
        for rules in ("strict", "lenient"):
            task = Dataset(file, answer_in=answer_in, rules=rules)
            responses = ("75 + 80", r"\boxed{75+80}", "#### 155", "155")
            found[answer_in, rules] = "".join(settled(task.grade(task.prompt(0), r))[0] for r in responses)
    assert found == {
        ("auto", "strict"): "uwuu", ("auto", "lenient"): "ucuu", ("boxed", "strict"): "uwuu",
        ("boxed", "lenient"): "ucuu", ("####", "strict"): "uucu", ("####", "lenient"): "uucu",
        ("tag", "strict"): "uuuu", ("tag", "lenient"): "uuuu", ("anywhere", "strict"): "wwcc",
        ("anywhere", "lenient"): "cccc",
    }  # fmt: skip
    for option in ({"answer_in": "box"}, {"rules": "loose"}):
        with pytest.raises(TaskError, match=r"task\.\w+ = \"\w+\" is not known"):
            Dataset(file, **option)


def test_code_and_gym_rows_keep_their_verifier(tmp_path):
    for name in ("HumanEval", "reasoning-gym"):
        row, expected = EXAMPLES[name]
        (prompt,) = Dataset(jsonl(tmp_path / f"{name}.jsonl", [{**row, "verifier": "math"}])).train
        assert prompt.meta["verifier"] == expected["verifier"]


ROUND_TRIP = {
    "text": [{"prompt": "Half of it?", "answer": "0.50"}, {"prompt": "Which colour?", "answer": "blue"}],
    "text as math": [{"prompt": "Half of it?", "label": "1/2"}, {"prompt": "Twice?", "label": "2"}],
    "messages": [{"prompt": [{"role": "user", "content": "Half?"}], "answer": "1/2"}],
    "GSM8K": [EXAMPLES["GSM8K"][0]],
}
RESPONSES = ("Answer: 0.5", r"So \boxed{\frac{1}{2}}.", "#### 42", r"\boxed{42.0}", "It is blue. Answer: blue", "2", "")


@pytest.mark.parametrize("host", ["trl", "verl"])
@pytest.mark.parametrize("asked", [None, "math"])
@pytest.mark.parametrize("layout", ROUND_TRIP)
def test_exported_data_is_graded_as_before(tmp_path, host, layout, asked):
    """What a file is exported with, its reader comes back with: prompts, references, verifiers, verdicts."""
    from equipoise.config import TaskConfig
    from equipoise.integrations.data import export_data
    from equipoise.tasks import open_task

    source, out = jsonl(tmp_path / "rows.jsonl", ROUND_TRIP[layout]), tmp_path / "out.parquet"
    export_data(TaskConfig(name=str(source), verifier=asked or ""), host, out)
    before, after = open_task(str(source), 0, verifier=asked), open_task(str(out), 0)

    def graded(task):
        return [
            (p.text, p.answer, p.meta["verifier"], [settled(task.grade(p, response)) for response in RESPONSES])
            for p in sorted(task.train, key=lambda p: p.text)
        ]

    assert graded(after) == graded(before)


def settled(verdict):
    return (verdict.result() if isinstance(verdict, Future) else verdict).kind


def test_a_suffix_goes_behind_the_last_message_and_moves_no_row(tmp_path):
    rows = [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{k}?"}], "label": k}
            for k in range(60)]  # fmt: skip
    file = jsonl(tmp_path / "rows.jsonl", rows)
    bare, suffixed = Dataset(file), Dataset(file, suffix=" Box it.")
    assert [p.id for p in bare.train] == [p.id for p in suffixed.train]
    assert [p.id for p in bare.held_out] == [p.id for p in suffixed.held_out]
    p, q = bare.prompt(3), suffixed.prompt(3)
    assert p.text + " Box it." == q.text
    assert q.messages[0] == p.messages[0]
    assert q.messages[1] == {"role": "user", "content": p.messages[1]["content"] + " Box it."}


def test_a_template_goes_around_the_question_and_moves_no_row(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"{k} + {{question}}?"}], "label": k} for k in range(60)]
    file = jsonl(tmp_path / "rows.jsonl", rows)
    bare, dapo = Dataset(file), Dataset(file, template="dapo", suffix=" Go.")
    assert [p.id for p in bare.train] == [p.id for p in dapo.train]
    p, q = bare.prompt(3), dapo.prompt(3)
    assert q.text.startswith("Solve the following math problem step by step.")
    assert f"\n\n{p.text}\n\nRemember" in q.text
    assert q.text.endswith('after "Answer:". Go.')
    assert q.messages[0]["content"] == q.text
    hadw = Dataset(file, template="hadw").prompt(3).text
    assert hadw == p.text + r" Let's think step by step and output the final answer within \boxed{}."
    with pytest.raises(TaskError, match=r'task\.template = "hadv" is not a prompt template: hadw, dapo, qwen'):
        Dataset(file, template="hadv")


@pytest.mark.parametrize(
    ("value", "column", "expected"),
    [
        (27.0, "answer", "27"), (0.5, "answer", "0.5"), (-3, "label", "-3"), (" 7 ", "answer", "7"),
        ("a #### 1 #### 2", "answer", "2"), (r"\boxed{\boxed{5}}", "answer", r"\boxed{5}"),
        (r"so \boxed{\{1,2\}}", "solution", r"\{1,2\}"), (r"\fbox {9}", "solution", "9"), ("42", "solution", "42"),
        (["1", "$2$"], "final_answer", "1, 2"), ([r"\$5"], "final_answer", r"\$5"),
    ],
)  # fmt: skip
def test_golds(value, column, expected):
    assert gold(value, column) == expected


@pytest.mark.parametrize("value", ["", " \n", "####", r"\boxed{}", None, True, [2], {"a": 1}, math.nan, math.inf])
def test_values_that_are_no_gold(value):
    with pytest.raises(RowError, match='"answer" is'):
        gold(value, "answer")


def test_an_explanation_is_no_gold():
    with pytest.raises(RowError, match='"answer" has 4,999 characters: must be at most 2,000'):
        gold("because " * 625, "answer")


def test_a_long_solution_without_a_mark_is_no_gold():
    with pytest.raises(RowError, match=r"has no \\boxed\{…\} and no"):
        gold("Because it is so.\nAnd so on.", "solution")


def test_boxes():
    assert last_box(r"\boxed{a} and \boxed{b") == "a"
    assert last_box(r"\boxed{\text{x \} y}}") == r"\text{x \} y}"
    assert last_box("{}}") is None
    assert last_box(r"\boxed{" * 100_000 + "1" + "}" * 3) is not None


def test_a_packed_pickle_builds_nothing_but_one_text():
    """Shared references double at every level, and a bytearray is allocated at the size it claims."""
    doubled = ["x" * 1000]
    for _ in range(40):
        doubled = [doubled, doubled]
    claims = b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"."
    for data in (pickle.dumps(doubled), claims, pickle.dumps(["a"]), pickle.dumps("a" * 10)[:-3], b""):
        packed = base64.b64encode(zlib.compress(data)).decode()
        assert fields.unpacked(packed) == packed
    assert fields.unpacked(base64.b64encode(zlib.compress(pickle.dumps("[1]"))).decode()) == "[1]"
