r"""What a row's columns mean: the question, the reference answer, and which verifier compares.

Known by their columns, in this order:

    verl            prompt (messages), reward_model {style, ground_truth}; data_source, ability, extra_info
    LiveCodeBench   question_content, public_test_cases; private_test_cases, starter_code, metadata, difficulty
    HumanEval       prompt, test, entry_point
    MBPP            test_list; text or prompt
    reasoning-gym   question, answer, metadata {source_dataset}
    GSM8K           question, answer with "#### n"
    any other       prompt, problem or question (text or messages) with answer, label, final_answer, ground_truth or
                    solution: TRL, slime, DAPO, MATH, Polaris, AIME, AMC, Minerva, OlympiadBench; without an answer
                    where reward functions of one's own decide alone

A reference that is a worked solution is read down to its last \boxed{…}, or to what follows "####";
a number is written without ".0". Level is the column level or difficulty. Every answer is compared
by the verifier of mathematics (`math`), which compares words as words; a column `verifier` (in
verl's layout a field of extra_info) may say so. A column `form` of `reference` asks for the
reference's own form (factored, expanded, simplified) in its row, `any` for any. Code and
reasoning-gym rows have verifiers of their own. Columns that are not used here stay in the prompt's
meta under their names, for reward functions of one's own.

Not covered: images, tools, conversations that end with the assistant,
and answers that only a model can judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from equipoise.tasks.fields import (
    Messages,
    gold,
    id_of,
    level_of,
    present,
    question_of,
    shown,
    text_of,
    unpacked,
)
from equipoise.tasks.row_reader import RowError
from equipoise.tasks.task import TaskError
from equipoise.verifiers.math.equal import FORMS

ROLES = ("prompt", "answer", "level", "id")
COMPARED = ("math",)  # verifiers that compare a response's answer with a reference answer
UNGRADED = "none"  # no verifier: reward functions of one's own decide
UNANSWERED = "; rows without one need reward.functions without task"
QUESTIONS = ("prompt", "problem", "question")
ANSWERS = ("answer", "label", "final_answer", "ground_truth", "solution")
TESTS = {
    "LiveCodeBench": ("public_test_cases", "private_test_cases", "metadata"),
    "HumanEval": ("prompt", "test", "entry_point"),
    "MBPP": ("test_list", "test_setup_code", "test_imports", "challenge_test_list", "code"),
}


@dataclass(frozen=True, slots=True)
class Item:
    """What a row says. `tests` is set for code, `meta` holds the columns that are left."""

    question: str
    answer: str
    verifier: str
    messages: Messages | None = None
    id: str | None = None
    level: str | None = None
    tests: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schema:
    """`read` turns a row into an Item or raises RowError."""

    name: str
    read: Callable[[Mapping[str, Any]], Item]


def recognise(
    where: str,
    row: Mapping[str, Any],
    columns: Mapping[str, str] | None = None,
    verifier: str | None = None,
    *,
    graded: bool = True,
) -> Schema:
    """The schema of such rows; `columns` says where to read what, dots going into a structure.

    `verifier`: the way to compare answers that the configuration asks for, if any. `graded`: the
    task's verdict is asked for, so that rows must have an answer.
    """
    base = {**row, **_roles(where, row, columns or {})}
    if not columns and (known := _known_layout(base, verifier)):
        return known
    question = next((column for column in QUESTIONS if column in base), None)
    answer = next((column for column in ANSWERS if column in base), None)
    if question is not None and answer is None and not graded:
        return Schema(question, partial(_ungraded, question, columns or {}))
    if question is None or answer is None:
        role, fix = ("prompt", "") if question is None else ("answer", UNANSWERED)
        raise TaskError(
            f'{where}: there is no "{role}" among {", ".join(row) or "no columns"}: say which column it is, '
            f'task.columns = {{ {role} = "…" }}{fix}'
        )
    marked = isinstance(base[answer], str) and "####" in base[answer]
    read = _Columns(question, answer, marked, dict(columns or {}), verifier)
    return Schema("GSM8K" if marked and question == "question" else f"{question}, {answer}", read)


def _roles(where: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """What the named columns of the row hold, by their roles; refused where one is not there."""
    if unknown := [role for role in columns if role not in ROLES]:
        raise TaskError(
            f'task.columns: "{unknown[0]}" is not a role; must be one of {", ".join(ROLES)}'
        )
    found = {role: value_at(row, column) for role, column in columns.items()}
    if missing := [columns[role] for role, value in found.items() if value is ABSENT]:
        raise TaskError(f'{where}: task.columns names "{missing[0]}": there are {", ".join(row)}')
    return found


def _known_layout(row: Mapping[str, Any], verifier: str | None) -> Schema | None:
    """The layout that only one project or data set writes."""
    has = row.keys()
    if {"prompt", "reward_model"} <= has:
        return Schema("verl", partial(_verl, asked=verifier))
    if {"question_content", "public_test_cases"} <= has:
        return Schema("LiveCodeBench", _livecodebench)
    if {"prompt", "test", "entry_point"} <= has:
        return Schema("HumanEval", _humaneval)
    if "test_list" in has and {"text", "prompt"} & has:
        return Schema("MBPP", mbpp)
    scorer = value_at(row, "metadata.source_dataset")
    if {"question", "answer", "metadata"} <= has and scorer is not ABSENT:
        return Schema("reasoning-gym", _gym)
    return None


ABSENT = object()


def value_at(row: Any, column: str) -> Any:
    """The value of a column; where no column has the whole name, its dots go into a structure."""
    if isinstance(row, dict) and column in row:
        return row[column]
    head, dot, rest = column.partition(".")
    return value_at(row[head], rest) if dot and isinstance(row, dict) and head in row else ABSENT


@dataclass(frozen=True, slots=True)
class _Columns:
    question: str
    answer: str
    marked: bool  # a worked solution with its result after "####"
    columns: Mapping[str, str]
    asked: str | None  # the verifier of the configuration

    def __call__(self, row: Mapping[str, Any]) -> Item:
        if self.columns:
            row = _named(row, self.columns)
        id_, level = id_of(row), level_of(row)
        question, messages = question_of(row, self.question, id_)
        value = present(row, self.answer, "answer")
        answer = gold(value, self.answer)
        if self.marked and "####" not in str(value):
            raise RowError("no answer", f'"{self.answer}" has no "####" as the first row has')
        verifier = _comparing(self.asked, row)
        meta = _rest(row, self.question)
        if self.answer == "answer" and isinstance(value, str) and value.strip() != answer:
            meta.setdefault("solution", value)
        return Item(question, answer, verifier, messages, id_, level, None, meta)


def _ungraded(question: str, columns: Mapping[str, str], row: Mapping[str, Any]) -> Item:
    """A prompt alone."""
    row = _named(row, columns) if columns else row
    id_, level = id_of(row), level_of(row)
    text, messages = question_of(row, question, id_)
    return Item(text, "", UNGRADED, messages, id_, level, None, _rest(row, question))


def _named(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with its roles as columns; a missing role hides a column of its name."""
    named = {role: value_at(row, column) for role, column in columns.items()}
    for role in ("prompt", "answer"):
        if named.get(role) is ABSENT:
            raise RowError(f"no {role}", f'there is no "{columns[role]}"')
    return {**row, **{role: None if value is ABSENT else value for role, value in named.items()}}


def _comparing(asked: str | None, row: Mapping[str, Any]) -> str:
    """The verifier of an answer: the configuration's, else the row's, else math."""
    form, said = row.get("form"), row.get("verifier")
    if form not in (None, "", *FORMS):
        raise RowError("unknown form", f'"form" is {shown(form)}: must be {" or ".join(FORMS)}')
    if asked or said in (None, ""):
        return asked or COMPARED[0]
    if said not in COMPARED:
        rule = f"must be {' or '.join(COMPARED)}; task.verifier overrides it"
        raise RowError("unknown verifier", f'"verifier" is {shown(said)}: {rule}')
    return str(said)


def _verl(row: Mapping[str, Any], asked: str | None) -> Item:
    """verl's own layout: prompt as messages, the answer in reward_model.ground_truth."""
    extra = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
    index = id_of(extra, ("index",))
    # An index counts within a source and a split, and verl's files join several of both.
    if index is None:
        id_ = None
    else:
        id_ = "/".join(str(x) for x in (row.get("data_source"), extra.get("split"), index) if x)
    question, messages = question_of(row, "prompt", id_)
    model = row["reward_model"]
    if not isinstance(model, dict):
        raise RowError(
            "no answer", f'"reward_model" is {shown(model)}: must be {{style, ground_truth}}'
        )
    if model.get("style") == "model":
        raise RowError(
            "not verifiable", 'reward_model.style is "model": only a model can judge it, no rule'
        )
    truth = present(model, "ground_truth", "answer")
    if row.get("ability") in ("code", "coding"):
        return Item(question, "", "code", messages, id_, level_of(row), truth, _rest(row, "prompt"))
    answer, verifier = gold(truth, "ground_truth"), _comparing(asked, extra)
    meta = _rest(row, "prompt") | {"form": extra.get("form")}
    return Item(
        question=question,
        answer=answer,
        verifier=verifier,
        messages=messages,
        id=id_,
        level=level_of(row),
        meta=meta,
    )


def _livecodebench(row: Mapping[str, Any]) -> Item:
    """A problem with tests on stdin or of a function, which the starter code begins."""
    text = text_of(row, "question_content", id_of(row))
    starter = row.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        text += f"\n\nComplete this starter code:\n```python\n{starter.strip()}\n```"
    else:
        text += "\n\nRead the input from stdin and write the result to stdout."
    tests = _tests(row, "LiveCodeBench")
    if isinstance(tests.get("private_test_cases"), str):
        tests["private_test_cases"] = unpacked(tests["private_test_cases"])
    return _code_item(row, text, tests, "question_content")


def _humaneval(row: Mapping[str, Any]) -> Item:
    """A prompt that is the beginning of a function, and tests that call it."""
    text = text_of(row, "prompt", id_of(row))
    return _code_item(row, text, _tests(row, "HumanEval"))


def mbpp(row: Mapping[str, Any]) -> Item:
    """The tests are part of the question, as in its own prompt: they name the function."""
    column = "text" if "text" in row else "prompt"
    tests = _tests(row, "MBPP")
    asserts = tests["test_list"] if isinstance(tests["test_list"], list) else [tests["test_list"]]
    text = "\n".join(
        [text_of(row, column, id_of(row)), "Your code should pass these tests:", *map(str, asserts)]
    )
    return _code_item(row, text, tests, column)


def _code_item(row: Mapping[str, Any], text: str, tests: dict[str, Any], *taken: str) -> Item:
    """There is no answer to compare with: the tests decide."""
    return Item(
        question=text,
        answer="",
        verifier="code",
        id=id_of(row),
        level=level_of(row),
        tests=tests,
        meta=_rest(row, *taken, *tests),
    )


def _gym(row: Mapping[str, Any]) -> Item:
    """Its scorers read the metadata; the answer may be null where they accept any solution."""
    entry = {key: row[key] for key in ("question", "answer", "metadata")}
    metadata = entry["metadata"]
    source = metadata.get("source_dataset") if isinstance(metadata, dict) else None
    if not isinstance(source, str):
        raise RowError(
            "no answer", '"metadata" has no source_dataset: nothing says which scorer to use'
        )
    answer = entry["answer"] if isinstance(entry["answer"], str) else ""
    meta = {**_rest(row, "question", "metadata"), "entry": entry}
    return Item(
        question=text_of(row, "question", None),
        answer=answer,
        verifier="gym",
        id=id_of(row),
        level=source,
        meta=meta,
    )


def _tests(row: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """The columns that test a response; RowError where the first of them is empty."""
    first = TESTS[schema][0] if schema != "HumanEval" else "test"
    if not row.get(first):
        raise RowError(
            "no answer",
            f'"{first}" is {shown(row.get(first))}: there is nothing to test a response with',
        )
    return {column: row[column] for column in TESTS[schema] if row.get(column) is not None}


def _rest(row: Mapping[str, Any], *taken: str) -> dict[str, Any]:
    """Columns that no field of the prompt has, but `id`, `answer` and `level`."""
    return {
        key: value for key, value in row.items() if key not in (*taken, "id", "answer", "level")
    }
