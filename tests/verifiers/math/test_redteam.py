r"""What an attack on the rules found: answers that are wrong and passed, that took seconds, or that ended a worker."""

import time

import pytest

from equipoise.verifiers import grade_math
from equipoise.verifiers.math import copied, equal, extract

NOT_EQUAL_SIGN = "=\u0338"  # two characters that print as ≠
WRONG = [
    # marks above and across a character change what it says
    ("155", f"x{NOT_EQUAL_SIGN}155"), ("155", f"{NOT_EQUAL_SIGN}155"), ("155", "155\u0338"), ("155", "155\u0305"),
    ("x<5", "x<\u03385"), ("3/10", "0.3\u0305"), ("3/10", "0.3\u0307"),
    # so do dots that go on
    ("3/10", "0.3..."), ("3/10", "0.3…"), ("155", "155.."), ("3/10", "x=0.3..."), ("1,2", "1,2..."),
    # two signs ± are four numbers
    (r"\sqrt3+\sqrt2,-\sqrt3-\sqrt2", r"\pm\sqrt3\pm\sqrt2"), (r"\pm\sqrt3\pm\sqrt2", r"\sqrt3+\sqrt2,-\sqrt3-\sqrt2"),
    # an answer is no name for another
    (r"\text{even}", "odd=even"), ("True", r"\text{False}=\text{True}"), ("C", "D=C"), ("C", "(D)=C"), ("C", "x=D=C"),
    # words that count
    ("155", r"155\text{M}"), ("155", r"155\text{ mega}"), ("155", r"155\text{ reciprocal}"), ("155", r"155\text{ bps}"),
    ("155", r"155\text{ factorials}"), ("155", r"155\text{ percentages}"),
    # inequalities that overlap
    (r"(-\infty,\infty)", "x>0,x<1"), (r"(-\infty,\infty)", r"x>0\text{ and }x<1"),
    # brackets count: a bare list has none
    (r"x\le5", r"-\infty,5"), ("x<5", r"-\infty;5"), ("(0,1]", "0,1"), ("0<x<1", "0,1"), (r"0\le x\le1", "x=0,y=1"),
    # a determinant is a number
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left|\begin{matrix}1&2\\3&4\end{matrix}\right|"),
    # half past four is no ratio
    ("4:30", "2:15"), ("4:30", "8:60"), ("4:30", "2/15"), ("10:45", "2:9"),
    (r"\emptyset", r"\{\emptyset\}"),
    # left to do
    (r"\sqrt2", r"\sqrt2\cdot1"), (r"\sqrt2", r"\frac{\sqrt{18}}{3}\cdot1"), ("3+4i", "i(4-3i)"),
    (r"2\pi", r"1\cdot2\pi"),
]  # fmt: skip

RIGHT = [
    (r"\pm\sqrt3\pm\sqrt2", r"\sqrt3+\sqrt2,\sqrt3-\sqrt2,\sqrt2-\sqrt3,-\sqrt3-\sqrt2"),
    (r"\pm\sqrt3\pm\sqrt2", r"\pm\sqrt2\pm\sqrt3"), (r"\pm\sqrt3\mp\sqrt2", r"\sqrt3-\sqrt2,\sqrt2-\sqrt3"),
    ("155", "155."), ("(0,1)", "0,1"), ("(0,1)", "0<x<1"), ("x<5", r"(-\infty,5)"),
    ("0<x<1", "(0,1)"), ("155", r"N=155\text{ m}"), ("155", r"155\text{ L}"), ("155", "x=155\ufe0e"), ("A<B", "B>A"),
    (r"(-\infty,-1)\cup(1,\infty)", r"x<-1\text{ or }x>1"), (r"\text{even}", r"\text{parity}=\text{even}"),
    ("C", r"\text{Answer}=C"), ("7:32", "14:64"), ("2:3", "10:15"), ("4:30", "4:30"), ("3/4", "3:4"),
    (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt3}"), (r"\sqrt2(1+\sqrt3)", r"\sqrt2+\sqrt6"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_it_is_refused(gold, answer):
    verdict = grade_math(rf"\boxed{{{answer}}}", gold)
    assert verdict.kind in ("wrong", "unparsed"), verdict


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_what_is_meant_well_stays_right(gold, answer):
    assert grade_math(rf"\boxed{{{answer}}}", gold).kind == "correct"


STALLS = {
    "a cube root": r"\sqrt[3]{10^{9999}}",
    "square roots": "+".join(rf"\sqrt{{3^{{{19999 - 2 * k}}}}}" for k in range(30)),
    "a power of a sum": r"(\frac{x}{3^{1200}}+\frac{y}{7^{700}}+\frac{z}{5^{800}})^{19}",
    "a product of sums": r"(\frac{x}{3^{900}}+\frac{y}{7^{700}}+\frac{z}{5^{800}}+1)" * 10,
    "a long chain": "x=" * 200 + "5",
}


@pytest.mark.parametrize("answer", STALLS.values(), ids=STALLS)
def test_the_caller_does_not_stall(answer):
    """CPU time of this thread: the square roots once took minutes."""
    began = time.thread_time()
    equal.quick("5", answer)
    assert time.thread_time() - began < 1.0


CRASHES = [
    r"5\approx5e99999", r"5\approx5\times10^{99999}", "1 1/" + "9" * 4400, "1 " + "9" * 4400 + "/3", "5=" * 5000 + "5",
    r"0.\overline{" + "3" * 4500 + "}",
]  # fmt: skip


@pytest.mark.parametrize("answer", CRASHES, ids=lambda answer: answer[:20])
def test_no_answer_ends_a_worker(answer):
    verdict = grade_math(rf"\boxed{{{answer}}}", "5")
    assert verdict.kind in ("wrong", "unparsed"), verdict


PARTS = [
    "The answer is negative 155", "The answer is minus 155", "The answer is twice 155", "The answer is at least 155",
    "The answer is at most 155", "The answer is anything but 155", "The answer is 155 squared", "Answer: sqrt 155",
    "Answer: log 155", "The answer is $155$ million", "The answer is $155$ squared", "The answer is -$155$",
    "The answer is 2*$155$", r"The answer is \(155\) thousand", "The answer is under 155", "The answer is up to 155",
    "The answer is $155$^2", "The answer is half 155",
]  # fmt: skip


@pytest.mark.parametrize("response", PARTS)
def test_a_number_that_is_part_of_something_else_is_not_read(response):
    assert grade_math(response, "155").kind in ("wrong", "unparsed")


@pytest.mark.parametrize("response", [
    "The answer is $155$.", "The answer is $155$ cm.", "The answer is **155**.", "The answer is: $x = 155$",
    "Answer: 155 apples", "The answer is about $155$ apples.", "The answer is exactly 155",
    "- The answer is $155$", "Answer: *$155$*",
])  # fmt: skip
def test_a_number_that_stands_alone_is_read(response):
    assert grade_math(response, "155").kind == "correct"


@pytest.mark.parametrize(("prompt", "answer", "gold"), [
    ("Simplify $2x+4x$.", "(2+4)x", "6x"), ("Simplify $2x+4x$.", "x(4+2)", "6x"),
    ("Simplify $2x+4x$.", "2x+2x+2x", "6x"),
    ("Expand $(x+1)(x-1)$.", "(x+1)(x-1)x^0", "x^2-1"),
])  # fmt: skip
def test_parts_of_the_prompt_with_work_left_are_copied(prompt, answer, gold):
    assert copied.copied(answer, prompt, gold)
    assert not copied.copied(gold, prompt, gold)


def test_a_long_prompt_of_digits_is_read_in_time():
    began = time.thread_time()
    extract.answer("The answer is " + "1" * 40_000)
    assert time.thread_time() - began < 1.0
