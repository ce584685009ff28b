"""The tests of a dataset's row: scripts with stdin and stdout, calls of a function, or test code.

`tests` reads the rows of the usual datasets and refuses what it cannot use, with the reason. Code
in a row is parsed here, to find the names it uses, and never run here. Nothing is unpickled.
"""

from __future__ import annotations

import ast
import builtins
import json
import warnings
from dataclasses import dataclass
from typing import Any


class TestsError(ValueError):
    """A row whose tests cannot be used: the verdict is `bad_gold`."""

    __test__ = False  # pytest, this is not a test


@dataclass(frozen=True, slots=True)
class Programs:
    """Scripts: (stdin, expected stdout) each."""

    cases: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one function or method of `class Solution`: (arguments, expected JSON value) each.

    wrapped: every expected value came in a list of one, as APPS writes them;
    the value alone is right too.
    """

    name: str
    cases: tuple[tuple[tuple[Any, ...], Any], ...]
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Asserts:
    """Test code that calls the response's functions `names`.

    setup runs first; with an `entry_point` the code defines `check`, which is called with that
    function. `prompt` is what the response may continue.
    """

    names: tuple[str, ...]
    code: str
    setup: str = ""
    entry_point: str | None = None
    prompt: str = ""


Tests = Programs | Calls | Asserts


def tests(row: Any) -> Tests:
    """The tests of a dataset's row, by the keys it has. Raises `TestsError`.

    - `prompt`, `test` (defines `check(candidate)`), `entry_point`: HumanEval
    - `test_list` of assert statements; `test_setup_code`, `test_imports`, `challenge_test_list`, `code`: MBPP
    - `inputs`, `outputs`, both lists of stdin and stdout text; with `fn_name`, of argument lists and values: APPS, TACO
    - `input_output`: the same as JSON text
    - `public_test_cases`, `private_test_cases`, each a list of {"input", "output", "testtype"} or its JSON text, and
      `metadata` with `func_name` where testtype is "functional": LiveCodeBench
    - such a list, or any of this as JSON text
    """
    if isinstance(row, str):
        row = _json(row, "the tests")
    if isinstance(row, list):
        return _from_cases(row, None)
    if not isinstance(row, dict):
        raise TestsError(
            f"tests of type {type(row).__name__}: must be an object, a list or their JSON text"
        )
    if {"test", "entry_point"} <= row.keys():
        return _humaneval(row)
    if "test_list" in row:
        return _mbpp(row)
    if {"inputs", "outputs"} <= row.keys():
        return _from_pairs(row)
    if "input_output" in row:
        return tests(row["input_output"])
    if {"public_test_cases", "private_test_cases"} & row.keys():
        metadata = _unpacked(row, "metadata", dict)
        public = _unpacked(row, "public_test_cases", list)
        private = _unpacked(row, "private_test_cases", list)
        return _from_cases(public + private, metadata.get("func_name"))
    raise TestsError(
        f"no tests in a row with the keys {', '.join(map(str, row))}: must have test and entry_point, test_list, "
        "inputs and outputs, input_output, or public_test_cases"
    )


def _unpacked(row: dict[str, Any], key: str, kind: type) -> Any:
    """A list or object, empty where there is none, or its JSON text."""
    value = row.get(key) or kind()
    value = _json(value, key) if isinstance(value, str) else value
    if not isinstance(value, kind):
        raise TestsError(
            f"{key} is {type(value).__name__}: must be {kind.__name__} or its JSON text"
        )
    return value


def _json(text: Any, what: str) -> Any:
    if not isinstance(text, str):
        raise TestsError(f"{what}: {str(text)[:60]!r} is {type(text).__name__}: must be JSON text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if "private" in what:
            hint = " (LiveCodeBench packs its private tests as a pickle: unpack them first)"
        else:
            hint = ""
        raise TestsError(f"{what}: {text[:60]!r} is not JSON: {error}{hint}") from None


def _parsed(code: Any, what: str) -> ast.Module:
    if not isinstance(code, str):
        raise TestsError(f"{what} is {type(code).__name__}, not text")
    try:
        with warnings.catch_warnings():  # Python's advice on "\\W" is for whoever wrote the row
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)  # the same, before Python 3.12
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TestsError(f"{what} is not Python: {error}") from None


def _humaneval(row: dict[str, Any]) -> Asserts:
    prompt, name = _text(row.get("prompt") or "", "prompt"), row["entry_point"]
    if not isinstance(name, str) or not name.isidentifier():
        raise TestsError(f"entry_point = {name!r} is no name")
    code = _parsed(row["test"], "test")
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in code.body):
        raise TestsError("test defines no check(candidate)")
    _parsed(stub(prompt), "prompt")
    helpers = _loaded(code) - _stored(code) - set(dir(builtins)) - {name}
    return Asserts((name,), row["test"], stub(prompt) if helpers else "", name, prompt)


def _mbpp(row: dict[str, Any]) -> Asserts:
    statements = [_unpacked(row, key, list) for key in ("test_list", "challenge_test_list")]
    code = "\n".join(_text(part, "test_list") for part in statements if part)
    imports = row.get("test_imports") or ""
    setup = f"{_text(imports, 'test_imports')}\n{_text(row.get('test_setup_code') or '', 'test_setup_code')}"
    before, asserts = _parsed(setup, "test_setup_code"), _parsed(code, "test_list")
    own = _stored(before) | _stored(asserts)
    if needed := _loaded(before) - own - set(dir(builtins)):
        raise TestsError(
            f"test_setup_code needs {', '.join(sorted(needed))} of the response: only the tests may call it"
        )
    free = _loaded(asserts) - own
    if row.get("code"):
        solution = _parsed(row["code"], "code")
        names = free & {
            node.name for node in solution.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
    else:
        # A task may ask for a function with a built-in's name: `assert sum(10, 15) == 6`.
        names = free - set(dir(builtins)) or _first_called(asserts)
    if not names:
        raise TestsError(
            "test_list calls no function of the response: must have asserts that do, at least one"
        )
    return Asserts(tuple(sorted(names)), code, setup)


def _stored(tree: ast.AST) -> set[str]:
    """Names the code gives a meaning to."""
    names = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def _loaded(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _first_called(tree: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {next((function.id for function in calls if isinstance(function, ast.Name)), "")} - {""}


def _from_pairs(row: dict[str, Any]) -> Programs | Calls:
    inputs, outputs, name = row["inputs"], row["outputs"], row.get("fn_name")
    if (
        not isinstance(inputs, list)
        or not isinstance(outputs, list)
        or len(inputs) != len(outputs)
        or not inputs
    ):
        raise TestsError("inputs and outputs: must be two lists of one length, at least one test")
    if name is not None and not isinstance(name, str):
        raise TestsError(f"fn_name = {name!r} is no name")
    if not name:
        pairs = zip(inputs, outputs, strict=True)
        return Programs(tuple((_text(i, "inputs"), _text(o, "outputs")) for i, o in pairs))
    arguments = tuple(_arguments(i) for i in inputs)
    texts = all(isinstance(i, str) for i in inputs) and all(isinstance(o, str) for o in outputs)
    values = [_json(o, "outputs") for o in outputs] if texts else outputs
    wrapped = not texts and all(isinstance(value, list) and len(value) == 1 for value in values)
    return Calls(name, tuple(zip(arguments, values, strict=True)), wrapped)


def _from_cases(cases: list[Any], name: str | None) -> Programs | Calls:
    if not cases or not all(
        isinstance(case, dict) and {"input", "output"} <= case.keys() for case in cases
    ):
        raise TestsError('must be a list of {"input", "output", "testtype"}, at least one')
    kinds = {case.get("testtype", "stdin") for case in cases}
    if kinds == {"stdin"}:
        return Programs(
            tuple(
                (_text(case["input"], "input"), _text(case["output"], "output")) for case in cases
            )
        )
    if kinds != {"functional"}:
        raise TestsError(
            f"testtype {', '.join(sorted(map(str, kinds)))}: must be stdin or functional, for all alike"
        )
    if not name or not isinstance(name, str):
        raise TestsError("functional tests without metadata.func_name: there is nothing to call")
    return Calls(
        name, tuple((_arguments(case["input"]), _json(case["output"], "output")) for case in cases)
    )


def _text(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise TestsError(
            f"{what}: {str(value)[:60]!r} is {type(value).__name__}: must be text or a list of lines"
        )
    return value


def _arguments(value: Any) -> tuple[Any, ...]:
    """A list of arguments, or text with the JSON of one argument per line."""
    if isinstance(value, str):
        return tuple(_json(line, "input") for line in value.split("\n") if line.strip())
    if not isinstance(value, list):
        raise TestsError(
            f"inputs: {str(value)[:60]!r} is {type(value).__name__}: must be the list of arguments"
        )
    return tuple(value)


def stub(prompt: str) -> str:
    """The prompt as complete code: it ends in a function without a body."""
    return f"{prompt}\n    pass\n" if prompt else ""
