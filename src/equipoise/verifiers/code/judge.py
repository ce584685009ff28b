"""Code: find the program in a response, run it in the sandbox on a dataset's tests, give a verdict.

`tests` reads the rows of the usual datasets, `extract` finds the code, `judge` runs it. The
response's process never holds an expected output or the verdict: it is sent one input, its bytes
come back, and they are compared here, or, for tests that are code themselves (HumanEval, MBPP), in
a second sandbox where the response's functions are proxies.

Python responses only, with the standard library alone. Test code that needs the response's own
classes, or that looks at an argument the response changed in place, is not covered. Side effects of
one call are seen by the next, as in the datasets' own graders; programs on stdin get a new process
each, but find the files of the one before.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, cast

from equipoise.verifiers.code import sandbox
from equipoise.verifiers.code.guest import LIMIT_STATUS, encode, parse
from equipoise.verifiers.code.outputs import same_output, same_value
from equipoise.verifiers.code.sandbox import Flood, Gone, Guest, Late, Limits, Lost
from equipoise.verifiers.code.testcases import (
    Asserts,
    Calls,
    Programs,
    Tests,
    TestsError,
    stub,
    tests,
)
from equipoise.verifiers.verdict import Kind, Verdict
from equipoise.verifiers.workers.deadline import Deadline

__all__ = [
    "Asserts",
    "Calls",
    "Limits",
    "Programs",
    "Tests",
    "TestsError",
    "extract",
    "judge",
    "tests",
]

Outcome = tuple[Kind, str]

_LINE_BYTES = 10_000  # of a line that carries no value
# Possessive (*+), so that no line takes more than one pass.
_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)
_PYTHON = ("python", "python3", "py")
_NO_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_PROGRAM_REPLY = re.compile(rb"(exit \d{1,3}|signal \d{1,3}|files|output) (\d{1,10}) (\d{1,5})")
_NO_FORM = "an answer of no known form"
# XCPU; KILL (out of memory), XFSZ
_TIMEOUT_SIGNALS, _LIMIT_SIGNALS = ("signal 24",), ("signal 9", "signal 25")


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
        try:
            kind, reason = _run(code, tests, limits)
        except Lost:  # not the response's doing: once more, with another server
            kind, reason = _run(code, tests, limits)
    except sandbox.Unavailable as error:
        kind, reason = "unavailable", str(error)
    if reason.startswith(_NO_SYNTAX) and not _FENCE.search(_said(response)):
        kind = "unparsed"
        reason = f"the response has no code block and is not Python itself ({reason})"
    return verdict(kind, reason, code)


def _run(code: str, tests: Tests, limits: Limits) -> Outcome:
    if isinstance(tests, Programs):
        return _run_programs(code, tests, limits)
    if isinstance(tests, Calls):
        return _run_calls(code, tests, limits)
    return _run_asserts(code, tests, limits)


def extract(response: str) -> str | None:
    """The code to run: the last whole block marked python, python3 or py, else unmarked.

    Only what follows the last `</think>` counts; a response that begins with a `<think>` it never
    closes has said nothing. A response without any fence is code as a whole. A block that is not
    closed, or is marked as something else, is no code; an empty one is none either.
    """
    text = _said(response)
    if text.lstrip().startswith("<think>"):
        return None
    if not _FENCE.search(text):
        return text if text.strip() else None
    blocks = _blocks(text)
    marked = [code for mark, code in blocks if mark in _PYTHON]
    found = marked or [code for mark, code in blocks if not mark]
    return found[-1] if found and found[-1].strip() else None


def _said(response: str) -> str:
    return response.replace("\r\n", "\n").rpartition("</think>")[2]


def _blocks(text: str) -> list[tuple[str, str]]:
    """(mark, content) of each block that a fence of its kind, as long or longer, closes."""
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
    """Code that defines the function runs after the prompt's helpers; any other is its body."""
    if tests.entry_point is None:
        return "", code
    whole = re.search(
        rf"^(?:(?:async )?def {tests.entry_point}\b|{tests.entry_point}[ \t]*=)", code, re.MULTILINE
    )
    return (stub(tests.prompt), code) if whole else ("", f"{tests.prompt}{code}")


class _Clock:
    """The deadline of the test at hand, its own or what is left of the total, and where we are."""

    def __init__(self, limits: Limits, guest: Guest) -> None:
        self.limits, self.guest, self.where = limits, guest, ""
        self.end = Deadline(limits.total_seconds, (guest.pid,), guest.counters)

    def next(self, where: str = "") -> Deadline:
        self.where = where
        guest = self.guest
        return Deadline(self.limits.seconds, (guest.pid,), guest.counters, within=self.end)

    def reason(self) -> str:
        if self.end.passed():
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
    code: str,
    mode: dict[str, object],
    limits: Limits,
    use: Callable[[Guest, _Clock], Outcome],
    *,
    room: int = 0,
) -> Outcome:
    """Start a sandbox, send the code and `use(guest, clock)`; always an outcome."""
    source = code.encode("utf-8", "surrogatepass")
    with sandbox.run(limits, mode, room=room) as guest:
        clock = _Clock(limits, guest)
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


def _run_program(
    guest: Guest, stdin: bytes, expected: str, limits: Limits, deadline: Deadline
) -> Outcome:
    guest.send(b"%d\n%s" % (len(stdin), stdin), deadline)
    head = guest.line(deadline, _LINE_BYTES)
    if deadline.overspent():
        raise Late
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
        return (
            "crashed" if reason.startswith(("SystemExit", "KeyboardInterrupt")) else "wrong"
        ), reason
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


def _ask(guest: Guest, request: str, deadline: Deadline, cap: int) -> tuple[str, str]:
    """Send one call: ("value" or "raised", JSON) for what the function did, else an outcome.

    The nonce makes a reply that was written before the call was known the reply to another call.
    """
    nonce = secrets.token_hex(8)
    guest.send(f"{nonce} {request}\n".encode("ascii"), deadline)
    line = guest.line(deadline, cap + _LINE_BYTES)
    if deadline.overspent():
        raise Late
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
            outcome = _ask(
                guest, encode([tests.name, list(arguments), {}]), deadline, limits.output_bytes
            )
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
    if right:
        return "correct", ""
    return "wrong", f"returned {_short(content)}, expected {_short(json.dumps(expected))}"


def _run_asserts(code: str, tests: Asserts, limits: Limits) -> Outcome:
    mode: dict[str, object] = {
        "mode": "referee",
        "setup": tests.setup,
        "tests": tests.code,
        "names": list(tests.names),
        "entry_point": tests.entry_point,
    }

    prelude, source = _prelude_and_source(code, tests)
    # Its tests' sandbox is there before a response runs, which could keep another from starting.
    with sandbox.run(limits, mode) as referee:

        def use(guest: Guest, clock: _Clock) -> Outcome:
            if failed := _load(guest, clock):
                return failed
            clock.end.roots += (referee.pid,)
            clock.end.counters += referee.counters
            referee.send(b"begin\n", clock.end)
            while True:
                line = referee.line(clock.end, limits.output_bytes).decode("ascii")
                word, _, content = line.partition(" ")
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

        return _with_guest(source, {"mode": "functions", "prelude": prelude}, limits, use)
