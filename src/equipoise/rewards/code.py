"""Code: find the program in a response, run it in the sandbox on a dataset's tests, give a verdict.

`tests` reads the rows of the usual datasets, `extract` finds the code, `judge` runs it. The response's process never
holds an expected output or the verdict: it is sent one input, its bytes come back, and they are compared here, or, for
tests that are code themselves (HumanEval, MBPP), in a second sandbox where the response's functions are proxies.

Python responses only, with the standard library alone. Test code that needs the response's own classes, or that looks
at an argument the response changed in place, is not covered. Side effects of one call are seen by the next, as in the
datasets' own graders; programs on stdin get a new process each.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import json
import math
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from equipoise.rewards import sandbox
from equipoise.rewards.guest import LIMIT_STATUS, encode, parse
from equipoise.rewards.sandbox import Flood, Gone, Guest, Late, Limits
from equipoise.rewards.verdict import Kind, Verdict

TOLERANCE = 1e-6
_LINE_BYTES = 10_000  # of a line that carries no value

Outcome = tuple[Kind, str]


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

    wrapped: every expected value came in a list of one, as APPS writes them; the value alone is right too.
    """

    name: str
    cases: tuple[tuple[tuple[Any, ...], Any], ...]
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Asserts:
    """Test code that calls the response's functions `names`.

    setup runs first; with an `entry_point` the code defines `check`, which is called with that function. `prompt` is
    what the response may continue.
    """

    names: tuple[str, ...]
    code: str
    setup: str = ""
    entry_point: str | None = None
    prompt: str = ""


Tests = Programs | Calls | Asserts


def judge(response: str, tests: Tests, limits: Limits = Limits()) -> Verdict:  # noqa: B008 (frozen)
    """Run the response on the tests until one fails. `answer` is the code that ran."""
    began = time.monotonic()

    def verdict(kind: Kind, reason: str, code: str | None = None) -> Verdict:
        return Verdict(kind, reason, time.monotonic() - began, answer=code)

    code = extract(response)
    if code is None:
        return verdict("unparsed", "the response has no complete code block")
    if not limits.allow_unsafe and (why := sandbox.available()) is not None:
        return verdict("unavailable", why, code)
    try:
        if isinstance(tests, Programs):
            kind, reason = _run_programs(code, tests, limits)
        elif isinstance(tests, Calls):
            kind, reason = _run_calls(code, tests, limits)
        else:
            kind, reason = _run_asserts(code, tests, limits)
    except sandbox.Unavailable as error:
        kind, reason = "unavailable", str(error)
    if reason.startswith(_NO_SYNTAX) and not _FENCE.search(response):
        kind, reason = "unparsed", f"the response has no code block and is not Python itself ({reason})"
    return verdict(kind, reason, code)


# --- the code of a response ------------------------------------------------------------------------------------------

# Possessive (*+), so that no line takes more than one pass.
_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)
_PYTHON = ("python", "python3", "py")


def extract(response: str) -> str | None:
    """The code to run: the last complete block marked python, python3 or py, else the last complete unmarked block.

    Only what follows the last `</think>` counts; a response that begins with a `<think>` it never closes has said
    nothing. A response without any fence is code as a whole. A block that is not closed, or is marked as something
    else, is no code; an empty one is none either.
    """
    text = response.replace("\r\n", "\n").rpartition("</think>")[2]
    if text.lstrip().startswith("<think>"):
        return None
    if not _FENCE.search(text):
        return text if text.strip() else None
    blocks = _blocks(text)
    marked = [code for mark, code in blocks if mark in _PYTHON]
    found = marked or [code for mark, code in blocks if not mark]
    return found[-1] if found and found[-1].strip() else None


def _blocks(text: str) -> list[tuple[str, str]]:
    """(mark, content) of each closed block; a fence is closed by one of its own kind, as long or longer, unmarked."""
    blocks, position = [], 0
    while opening := _FENCE.search(text, position):
        indent, fence, mark = opening.groups()
        closing = re.compile(rf"^[ \t]*+{fence[0]}{{{len(fence)},}}+[ \t]*+$", re.MULTILINE)
        end = closing.search(text, opening.end())
        if end is None:
            break
        lines = text[opening.end() + 1 : end.start()].split("\n")
        content = "\n".join(line.removeprefix(indent) for line in lines)
        blocks.append((mark.lower(), content))
        position = end.end()
    return blocks


def _prelude_and_source(code: str, tests: Asserts) -> tuple[str, str]:
    """A response that defines the function runs after the prompt's imports and helpers; any other is its body."""
    if tests.entry_point is None:
        return "", code
    whole = re.search(rf"^(?:(?:async )?def {tests.entry_point}\b|{tests.entry_point}[ \t]*=)", code, re.MULTILINE)
    return (_stub(tests.prompt), code) if whole else ("", f"{tests.prompt}{code}")


def _stub(prompt: str) -> str:
    """The prompt as complete code: it ends in a function without a body."""
    return f"{prompt}\n    pass\n" if prompt else ""


# --- the tests of a row ----------------------------------------------------------------------------------------------


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
        raise TestsError(f"tests of type {type(row).__name__}: the rule is an object, a list or their JSON text")
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
        public, private = _unpacked(row, "public_test_cases", list), _unpacked(row, "private_test_cases", list)
        return _from_cases(public + private, metadata.get("func_name"))
    raise TestsError(
        f"no tests in a row with the keys {', '.join(map(str, row))}: the rule is test and entry_point, test_list, "
        "inputs and outputs, input_output, or public_test_cases"
    )


def _unpacked(row: dict[str, Any], key: str, kind: type) -> Any:
    """A list or object, empty where there is none, or its JSON text."""
    value = row.get(key) or kind()
    value = _json(value, key) if isinstance(value, str) else value
    if not isinstance(value, kind):
        raise TestsError(f"{key} is {type(value).__name__}: the rule is {kind.__name__} or its JSON text")
    return value


def _json(text: Any, what: str) -> Any:
    if not isinstance(text, str):
        raise TestsError(f"{what}: {str(text)[:60]!r} is {type(text).__name__}: the rule is JSON text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = " (LiveCodeBench packs its private tests as a pickle: unpack them first)" if "private" in what else ""
        raise TestsError(f"{what}: {text[:60]!r} is not JSON: {error}{hint}") from None


def _parsed(code: Any, what: str) -> ast.Module:
    if not isinstance(code, str):
        raise TestsError(f"{what} is {type(code).__name__}, not text")
    try:
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
    _parsed(_stub(prompt), "prompt")
    helpers = _loaded(code) - _stored(code) - set(dir(builtins)) - {name}
    return Asserts((name,), row["test"], _stub(prompt) if helpers else "", name, prompt)


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
        names = free & {node.name for node in solution.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    else:
        # A task may ask for a function with a built-in's name: `assert sum(10, 15) == 6`.
        names = free - set(dir(builtins)) or _first_called(asserts)
    if not names:
        raise TestsError("test_list calls no function of the response: the rule is asserts that do, at least one")
    return Asserts(tuple(sorted(names)), code, setup)


def _stored(tree: ast.AST) -> set[str]:
    """Names the code gives a meaning to."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def _loaded(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _first_called(tree: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {next((function.id for function in calls if isinstance(function, ast.Name)), "")} - {""}


def _from_pairs(row: dict[str, Any]) -> Programs | Calls:
    inputs, outputs, name = row["inputs"], row["outputs"], row.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise TestsError("inputs and outputs: the rule is two lists of one length, at least one test")
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
    if not cases or not all(isinstance(case, dict) and {"input", "output"} <= case.keys() for case in cases):
        raise TestsError('the rule is a list of {"input", "output", "testtype"}, at least one')
    kinds = {case.get("testtype", "stdin") for case in cases}
    if kinds == {"stdin"}:
        return Programs(tuple((_text(case["input"], "input"), _text(case["output"], "output")) for case in cases))
    if kinds != {"functional"}:
        raise TestsError(
            f"testtype {', '.join(sorted(map(str, kinds)))}: the rule is stdin or functional, for all alike"
        )
    if not name or not isinstance(name, str):
        raise TestsError("functional tests without metadata.func_name: there is nothing to call")
    return Calls(name, tuple((_arguments(case["input"]), _json(case["output"], "output")) for case in cases))


def _text(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise TestsError(f"{what}: {str(value)[:60]!r} is {type(value).__name__}: the rule is text or a list of lines")
    return value


def _arguments(value: Any) -> tuple[Any, ...]:
    """A list of arguments, or text with the JSON of one argument per line."""
    if isinstance(value, str):
        return tuple(_json(line, "input") for line in value.split("\n") if line.strip())
    if not isinstance(value, list):
        raise TestsError(f"inputs: {str(value)[:60]!r} is {type(value).__name__}: the rule is the list of arguments")
    return tuple(value)


# --- comparing -------------------------------------------------------------------------------------------------------

_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?", re.ASCII)


def same_output(got: str, expected: str) -> bool:
    """Equal line by line but for blanks at the ends of lines and empty lines at the end, else token by token.

    Then lines must have the same number of tokens, and two tokens are the same if they are equal, or if both are
    written as floats (with a point or an exponent) and differ by 1e-6 at most, absolutely or relatively.
    """
    a, b = _lines(got), _lines(expected)
    if a == b:
        return True
    return len(a) == len(b) and all(x == y or _same_tokens(x.split(), y.split()) for x, y in zip(a, b, strict=True))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_tokens(got: list[str], expected: list[str]) -> bool:
    return len(got) == len(expected) and all(x == y or _close_text(x, y) for x, y in zip(got, expected, strict=True))


def _close_text(x: str, y: str) -> bool:
    return bool(_FLOAT.fullmatch(x) and _FLOAT.fullmatch(y)) and _close(float(x), float(y))


def _close(x: float, y: float) -> bool:
    return x == y or math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def same_value(got: Any, expected: Any) -> bool:
    """Whether a returned value, as `guest.encode` wrote and `guest.parse` read it, is the expected JSON value.

    As Python's ==, so 1, 1.0 and True are equal, but: a tuple is a list, two floats may differ by 1e-6 absolutely or
    relatively, and NaN is NaN. What JSON cannot write (a set, bytes, a key that is not text) equals nothing.
    """
    if isinstance(got, dict):
        if got.keys() == {"tuple"}:
            return same_value(got["tuple"], expected)
        if got.keys() == {"int"}:
            return type(expected) in (int, float) and int(got["int"], 16) == expected
        if got.keys() == {"float"}:
            return isinstance(expected, float) and repr(expected) == got["float"]
        if got.keys() != {"dict"} or not isinstance(expected, dict):
            return False
        pairs = {key: value for key, value in got["dict"] if isinstance(key, str)}
        return (
            len(pairs) == len(got["dict"])
            and pairs.keys() == expected.keys()
            and all(same_value(value, expected[key]) for key, value in pairs.items())
        )
    if isinstance(got, list):
        return (
            isinstance(expected, list)
            and len(got) == len(expected)
            and all(same_value(x, y) for x, y in zip(got, expected, strict=True))
        )
    if isinstance(got, float) and isinstance(expected, float):
        return _close(got, expected)
    return bool(got == expected)


# --- running ---------------------------------------------------------------------------------------------------------

_NO_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_PROGRAM_REPLY = re.compile(rb"(exit \d{1,3}|signal \d{1,3}|files|output) (\d{1,10}) (\d{1,5})")
_NO_FORM = "an answer of no known form"
_TIMEOUT_SIGNALS, _LIMIT_SIGNALS = ("signal 24",), ("signal 9", "signal 25")  # XCPU; KILL (out of memory), XFSZ


class _Clock:
    """The deadline of the test at hand, its own or what is left of the total, and where we are."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.where = limits, ""
        self.end = time.monotonic() + limits.total_seconds

    def next(self, where: str = "") -> float:
        self.where = where
        return min(time.monotonic() + self.limits.seconds, self.end)

    def reason(self) -> str:
        if time.monotonic() >= self.end:
            return f"the tests took more than {self.limits.total_seconds:g} s together"
        return f"{self.where}no answer within {self.limits.seconds:g} s"


def _ended(how: str, said: str = "") -> Outcome:
    """What it means that a process ended in this way when it should have answered."""
    said = f": {said}" if said else ""
    if how in _TIMEOUT_SIGNALS:
        return "timeout", "out of CPU time"
    if how == "files":
        return "limit", "too many files"
    if how == "output":
        return "limit", "too much output"
    if how in _LIMIT_SIGNALS or how == f"exit {LIMIT_STATUS}":
        return "limit", f"out of memory, processes or disk ({how}){said}"
    if how.startswith("signal"):
        return "crashed", f"ended by {how}{said}"
    return "wrong", f"ended with {how}{said}"


def _with_guest(
    code: str, mode: dict[str, object], limits: Limits, use: Callable[[Guest, _Clock], Outcome], *, room: int = 0
) -> Outcome:
    """Start a sandbox, send the code and `use(guest, clock)` it; an outcome, whatever the response does."""
    source = code.encode("utf-8", "surrogatepass")
    with sandbox.run(limits, mode, room=room) as guest:
        clock = _Clock(limits)
        try:
            guest.send(b"%d\n%s" % (len(source), source), clock.next())
            return use(guest, clock)
        except Late:
            return "timeout", clock.reason()
        except Flood:
            return "limit", f"{clock.where}too much output"
        except Gone:
            return "crashed", f"{clock.where}the process ended without an answer"


def _run_programs(code: str, tests: Programs, limits: Limits) -> Outcome:
    inputs = [stdin.encode("utf-8", "surrogatepass") for stdin, _ in tests.cases]
    longest = max(len(expected.encode("utf-8", "surrogatepass")) for _, expected in tests.cases)
    limits = dataclasses.replace(limits, output_bytes=max(limits.output_bytes, 2 * longest))

    def use(guest: Guest, clock: _Clock) -> Outcome:
        for i, (stdin, (_, expected)) in enumerate(zip(inputs, tests.cases, strict=True), 1):
            deadline = clock.next(f"test {i} of {len(inputs)}: ")
            kind, reason = _run_program(guest, stdin, expected, limits, deadline)
            if kind != "correct":
                return kind, reason if reason.startswith(_NO_SYNTAX) else clock.where + reason
        return "correct", ""

    return _with_guest(code, {"mode": "programs"}, limits, use, room=max(map(len, inputs)))


def _run_program(guest: Guest, stdin: bytes, expected: str, limits: Limits, deadline: float) -> Outcome:
    guest.send(b"%d\n%s" % (len(stdin), stdin), deadline)
    head = guest.line(deadline, _LINE_BYTES)
    if not (reply := _PROGRAM_REPLY.fullmatch(head)):
        return _refused(head)
    how, out, tail = reply[1].decode(), int(reply[2]), int(reply[3])
    if out > limits.output_bytes:
        raise Flood
    output = guest.take(out, deadline).decode("utf-8", "surrogateescape")
    said = guest.take(tail, deadline).decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
    if how != "exit 0":
        return _ended(how, said)
    if same_output(output, expected):
        return "correct", ""
    return "wrong", f"printed {_short(output)}, expected {_short(expected)}"


def _refused(line: bytes) -> Outcome:
    """`refused "why"` and `limit ["why"]`: the code could not be loaded."""
    word, _, content = line.decode("ascii", "replace").partition(" ")
    reason = _string(content)
    if word == "limit":
        return "limit", reason or "out of memory while compiling"
    if word == "ended":
        return _ended(content) if content != "exit 0" else ("crashed", "ended without an answer")
    if word == "refused" and reason:
        return ("crashed" if reason.startswith(("SystemExit", "KeyboardInterrupt")) else "wrong"), reason
    return "crashed", f"{_NO_FORM}: {line[:60]!r}"


def _string(text: str) -> str:
    try:
        value = parse(text)
    except (ValueError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _load(guest: Guest, clock: _Clock) -> Outcome | None:
    """Wait until the response's module has run; what went wrong, if something did."""
    line = guest.line(clock.next(), _LINE_BYTES)
    return None if line == b"loaded" else _refused(line)


def _ask(guest: Guest, request: str, deadline: float, cap: int) -> tuple[str, str]:
    """Send one call: ("value" or "raised", JSON) for what the function did, else an outcome.

    The nonce makes a reply that was written before the call was known the reply to another call.
    """
    nonce = secrets.token_hex(8)
    guest.send(f"{nonce} {request}\n".encode("ascii"), deadline)
    line = guest.line(deadline, cap + _LINE_BYTES)
    if not line.startswith(nonce.encode() + b" ") or not line.isascii():
        return _refused(line)
    kind, _, content = line.decode("ascii").partition(" ")[2].partition(" ")
    if kind in ("value", "raised"):
        return kind, content
    reason = _string(content)
    if kind == "opaque":
        return "wrong", f"returned a value of type {reason[:60]}, or one that contains it"
    return ("limit" if kind == "limit" else "crashed"), reason or _NO_FORM


def _run_calls(code: str, tests: Calls, limits: Limits) -> Outcome:
    longest = max(len(json.dumps(expected)) for _, expected in tests.cases)
    limits = dataclasses.replace(limits, output_bytes=max(limits.output_bytes, 4 * longest))

    def use(guest: Guest, clock: _Clock) -> Outcome:
        if failed := _load(guest, clock):
            return failed
        for i, (arguments, expected) in enumerate(tests.cases, 1):
            deadline = clock.next(f"call {i} of {len(tests.cases)}: ")
            outcome = _ask(guest, encode([tests.name, list(arguments), {}]), deadline, limits.output_bytes)
            kind, reason = _compared(*outcome, expected, tests.wrapped)
            if kind != "correct":
                return kind, clock.where + reason
        return "correct", ""

    return _with_guest(code, {"mode": "functions", "prelude": ""}, limits, use)


def _compared(kind: str, content: str, expected: Any, wrapped: bool) -> Outcome:
    """The outcome of one call, from `_ask`'s answer."""
    if kind == "raised":
        return "wrong", _string(content) or _NO_FORM
    if kind != "value":
        return cast(Kind, kind), content
    try:
        value = parse(content)
        right = same_value(value, expected) or (wrapped and same_value(value, expected[0]))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return "wrong", _NO_FORM
    return (
        ("correct", "") if right else ("wrong", f"returned {_short(content)}, expected {_short(json.dumps(expected))}")
    )


def _run_asserts(code: str, tests: Asserts, limits: Limits) -> Outcome:
    mode: dict[str, object] = {
        "mode": "referee",
        "setup": tests.setup,
        "tests": tests.code,
        "names": list(tests.names),
        "entry_point": tests.entry_point,
    }

    def use(guest: Guest, clock: _Clock) -> Outcome:
        if failed := _load(guest, clock):
            return failed
        with sandbox.run(limits, mode) as referee:
            while True:
                word, _, content = referee.line(clock.end, limits.output_bytes).decode("ascii").partition(" ")
                if word == "passed":
                    return "correct", ""
                if word in ("failed", "broken"):
                    return ("wrong" if word == "failed" else "bad_gold"), _string(content)
                if word != "call":
                    return _ended(content)
                kind, answer = _ask(guest, content, clock.next(), limits.output_bytes)
                if kind not in ("value", "raised"):
                    return cast(Kind, kind), answer
                referee.send(f"{kind} {answer}\n".encode("ascii"), clock.end)

    prelude, source = _prelude_and_source(code, tests)
    return _with_guest(source, {"mode": "functions", "prelude": prelude}, limits, use)
