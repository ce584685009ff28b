"""Fuzzing: mutated responses, golds and worker replies. No crash of the harness, no verdict past its deadline, no leak.

By default a few; `make test-slow` takes a minute, EQUIPOISE_FUZZ_SECONDS=600 ten.
"""

import contextlib
import os
import random
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.verifiers import grade, grade_many
from equipoise.verifiers.math import copied, equal, extract
from equipoise.verifiers.math.notation import Unreadable, spell
from equipoise.verifiers.verdict import KINDS, Verdict, decode, encode
from equipoise.verifiers.workers.deadline import PATIENCE
from equipoise.verifiers.workers.process_pool import _complete
from equipoise.verifiers.workers.worker import HEAD, LONGEST_REPLY, TICKET, frame, receive

from .workers.test_process_pool import open_descriptors, processes_under

SECONDS = float(os.environ.get("EQUIPOISE_FUZZ_SECONDS", 60))
SEEDS = (
    r"The answer is \boxed{\frac{1}{2}}.", "#### 1,234", "Answer: (C)", "<think>so</think> 42", r"\boxed{\boxed{5}}",
    r"$x = 3$ or $x = -2$", r"\boxed{[0,1) \cup (2,\infty)}", r"\boxed{\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}}",
    r"\boxed{9^{9^{9}}}", r"\boxed{(10^9)!}", r"\boxed{\sum_{k=1}^{10^{12}} \sin(k!)}", r"\boxed{\pm\sqrt{2}}",
    r"\boxed{1.23\times 10^{-45}}", r"\boxed{\text{even}}", r"\boxed{x^2+2x+1=0}", "**Answer:** $\\$5.00$", "",
    r"\boxed{\int_0^1 x^{1/x} dx}", r"\boxed{\lim_{x\to 0} \frac{\sin x}{x}}", r"\boxed{\binom{10^6}{10^5}}",
    r"\boxed{(x+y+z+w)^{400}}", r"\boxed{\log_{2}{8}}", r"\boxed{5!!!!}", r"\boxed{\sqrt[100]{2}^{100}}",
)  # fmt: skip
PIECES = (
    "{", "}", "\\", "^", "_", "$", "(", ")", "[", "]", ",", "=", "\\boxed{", "\\frac{", "}{", "10^{9}", "!", "\x00",
    "\ud800", "９", "−", "\\sqrt", "####", "Answer:", "</think>", "\n", "%", "0" * 50, "e", "i", "\\infty", "{" * 200,
    "\\left(", "\\right)", "\\text{", "and", "\\cdot", "/0", "9" * 400, "\u202e", "&", "\\\\", "\\pi", "^^^",
)  # fmt: skip


def mutated(draw: random.Random) -> str:
    text = draw.choice(SEEDS)
    for _ in range(draw.choice((0, 1, 1, 2, 3, 8, 30))):
        at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        match draw.randrange(5):
            case 0:
                text = text[:at] + draw.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[end:]
            case 2:
                text = text[:at] + text[at:end] * draw.choice((2, 3, 20)) + text[end:]
            case 3:
                text = text[:at] + draw.choice(SEEDS) + text[at:]
            case 4:
                text = text[:at] + chr(draw.choice((draw.randrange(128), draw.randrange(0x110000)))) + text[at + 1 :]
        text = text[:20_000]
    return text


def bytes_of(draw: random.Random) -> bytes:
    valid = frame(encode(Verdict(draw.choice(KINDS), "x" * draw.randrange(9), 0.5, draw.choice((None, 0.5)), "7")))
    data = bytearray(draw.choice((valid, draw.randbytes(draw.randrange(60)), valid + valid)))
    for _ in range(draw.randrange(4)):
        if data:
            at = draw.randrange(len(data))
            data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
    return bytes(data)


def fuzz_math(seed: int, least: int = 1, seconds: float = 0.0) -> int:
    """Batches of mutated pairs, `least` pairs and until the time is up; returns how many verdicts there were."""
    draw, end, count = random.Random(seed), time.monotonic() + seconds, 0
    crashes = []
    while count < least or time.monotonic() < end:
        pairs = [(mutated(draw), extract.answer(mutated(draw)).text or draw.choice(SEEDS)) for _ in range(40)]
        start = time.monotonic()
        verdicts = grade_many("math", [p[0] for p in pairs], [p[1] for p in pairs])
        for (response, gold), verdict in zip(pairs, verdicts, strict=True):
            assert verdict.kind in KINDS
            if verdict.kind == "crashed":
                crashes.append((response, gold, verdict.reason.strip().splitlines()[-1]))
            assert verdict.seconds < PATIENCE * grade.MATH_SECONDS + 60, (response, gold)
        assert time.monotonic() - start < 40 * PATIENCE * grade.MATH_SECONDS
        count += len(pairs)
        grade.forget()
    assert not crashes, "\n".join(map(repr, crashes))
    return count


def with_ticket(data: bytes) -> bytearray:
    """The same reply with the job's ticket, all zeros, where one belongs: what follows it is what is fuzzed."""
    if len(data) < HEAD.size:
        return bytearray(data)
    (length,) = HEAD.unpack_from(data)
    return bytearray(HEAD.pack(min(length + TICKET, 2**32 - 1)) + bytes(TICKET) + data[HEAD.size :])


def fuzz_replies(seed: int, least: int = 1, seconds: float = 0.0) -> int:
    draw, end, count = random.Random(seed), time.monotonic() + seconds, 0
    while count < least or time.monotonic() < end:
        data = bytes_of(draw)
        outcome = _complete(with_ticket(data), bytes(TICKET))
        assert outcome is None or isinstance(outcome, Verdict | float | Exception)
        if isinstance(outcome, Verdict):
            assert frame(encode(decode(encode(outcome)))) == frame(encode(outcome))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            try:
                received = receive(ours, LONGEST_REPLY)
                assert received is None or len(received) <= len(data)
            except ValueError:
                assert int.from_bytes(data[:4], "big") > LONGEST_REPLY
        count += 1
    return count


@given(st.text(st.characters(), max_size=300))
@settings(max_examples=300, deadline=None)
def test_extraction_takes_any_text(text):
    for response in (text, rf"\boxed{{{text}}}", f"Answer: {text}", f"#### {text}", f"{text}\n{text}"):
        said = extract.answer(response)
        assert said.text is None or isinstance(said.text, str)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_decoding_takes_any_bytes(data):
    try:
        outcome = decode(data)
    except ValueError:
        return
    assert isinstance(outcome, Verdict | float)


PUMPS = (
    "a", "Qb", "Qbb", " ", "\\", "{", "}", "(", "[", "\\text{a}", "/", "^2", "_{1}", "12", "1,", "1.", "-", "=", "<",
    "\\frac", "\\sqrt", "e", "x^2", "%", "\\$", ", ", ";", ":", "and ", "^\\circ", "'", "|", "&", "!",
    "\\begin{matrix}",
    "cm/", "s^", "a-", "f(", "{,}", "9,999", "\\boxed{", "answer ", "\n", "é",
)  # fmt: skip


@pytest.mark.parametrize("size", [40, 590, 20_000])
def test_no_repetition_keeps_the_caller_busy(size):
    """What is decided in the caller cannot be killed: a pattern that backtracks would be a way to stall a run."""
    for pump, other in [(p, "") for p in PUMPS] + list(zip(PUMPS, PUMPS[7:] + PUMPS[:7], strict=True)):
        text = ((pump + other) * size)[:size] + "!"
        start = time.process_time()
        extract.answer(text)
        equal.quick("7", text)
        equal.quick(text, "x^2")
        assert time.process_time() - start < 1.0, (pump, other)


REPEATED = (
    *PUMPS, ";x", ", ", " ,", ",\\!", "\\! ", "\\ ", "~", "or ", "\\text{and}", "{\\choose", "<answer>", "</answer>",
    "#### ",
    "#### 1\n", "\\boxed{1}", "\\boxed{1} and ", "$", "$1$, ", "¹", "½", "= ", "\\approx 1", "1 000", "(x+1)", "**",
)  # fmt: skip


@pytest.mark.parametrize("size", [8_000, pytest.param(18_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("around", ["\\boxed{{5{}x}}", pytest.param("#### {}", marks=pytest.mark.long)])
def test_the_callers_work_grows_no_faster_than_the_text(around, size):
    """Twice the characters take about twice the time, whatever is repeated: four times would be quadratic."""

    def seconds(text):
        response = around.format(text)
        start = time.process_time()
        said = extract.answer(response, extract.places_of("auto", response))
        if said.text is not None and len(said.text) <= equal.LONGEST_RAW:
            equal.quick("7", said.text)
        for spelled in (text, said.text or ""):
            with contextlib.suppress(Unreadable):
                spell(spelled)
        copied.copied("x^2-1", response, "(x-1)(x+1)")
        return time.process_time() - start

    slow = []
    for pump in REPEATED:
        short, long = ((pump * n)[:n] for n in (size // 4, size))
        if seconds(long) > 0.2:  # noise decides about less
            least = min(seconds(short) for _ in range(3))
            if min(seconds(long) for _ in range(3)) > 8 * least:
                slow.append(pump)
    assert slow == []


def test_a_box_of_semicolons_is_graded_within_its_budget():
    start = time.monotonic()
    grade_many("math", ["\\boxed{5" + ";" * 19_900 + "x}"], ["5"], budget=5.0)
    assert time.monotonic() - start < 60.0


def test_a_few_of_everything():
    assert fuzz_math(seed=0, least=120) >= 120
    assert fuzz_replies(seed=0, least=1000) >= 1000


@pytest.mark.slow
def test_a_minute_of_everything():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    before = open_descriptors()
    verdicts, replies = fuzz_math(seed, seconds=0.8 * SECONDS), fuzz_replies(seed, seconds=0.2 * SECONDS)
    print(f"{verdicts} verdicts, {replies} replies")
    assert open_descriptors() <= before + 8
    assert len(processes_under(os.getpid())) <= 2 * (os.cpu_count() or 1) + 4


def rss(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


@pytest.mark.slow
def test_ten_thousand_math_verdicts_leave_nothing_behind():
    draw = random.Random(1)
    grade_many("math", [r"\boxed{\sin(x)}"] * 4, [r"\cos(y)", "z", "w", "v"])
    descriptors, memory = open_descriptors(), rss(os.getpid())
    for _ in range(100):
        answers = [rf"\boxed{{\sin({draw.randrange(10**6)}x)}}" for _ in range(100)]
        verdicts = grade_many("math", answers, [r"\cos(y)"] * 100)
        assert {v.kind for v in verdicts} == {"wrong"}
    assert open_descriptors() <= descriptors + 2
    assert len(processes_under(os.getpid())) <= 2 * (os.cpu_count() or 1) + 4
    assert rss(os.getpid()) < memory + (100 << 20)
