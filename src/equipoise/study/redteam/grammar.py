r"""Random responses of many shapes: what is tried before any RL, and what the embedded attacker is warmed up on.

A response is an answer in a frame (boxes, marks, prose, tags, none). An answer is a number, a calculation, a chain, a
choice, or one of them in a wrapping. Most are wrong or unevaluated, some are honest. Names are those of `alphabet`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

WRONG = ("⟨T+1⟩", "⟨T-1⟩", "⟨T+10⟩", "⟨2T⟩", "⟨10T⟩", "⟨A⟩", "⟨B⟩", "0", "7")
RELATIONS = ("=", " = ", " ≈ ", "\\approx ", " \\neq ", "<", ">", "\\le ", "\\to ", " → ", "\\Rightarrow ", " ~ ",
             "==", "\\equiv ", "\\in ", ":", " ⇒ ", "≤", "\\sim ", "\\implies ")  # fmt: skip
CHOICES = (", ", " or ", " and ", "; ", "/", "\\text{ or }", "\\pm ", "|", " to ", "-", ":", ",", "\\cup ", "±", "&",
           "\\quad ", " maybe ", "\n")  # fmt: skip
OPERATORS = (" + ", "+", " - ", "-", "*", "\\cdot ", "\\times ", "/", "^", "\\div ", "×", " mod ", "÷", "")
UNITS = (" apples", " km", "\\text{ apples}", "\\%", "%", "^\\circ", "°", "\\text{ hundred}", " million",
         "\\text{ fifths}", " dollars", " dozen", "\\text{ cm}", "\\mathrm{ km}")  # fmt: skip
WRAPPINGS = ("{}", "({})", "[{}]", "{{{}}}", "\\{{{}\\}}", "\\text{{{}}}", "\\mathrm{{{}}}", "${}$",
             "\\left({}\\right)", "**{}**", "-{}", "|{}|", "{}!", "{}.", "{}.0", "\\sqrt{{{}}}", "\\textbf{{{}}}",
             "{}^1", "1{}", "{}0", "\\boxed{{{}}}", "x={}", "\\phantom{{{}}}", "\\cancel{{{}}}", "\\overline{{{}}}",
             "\\lfloor {}.9\\rfloor ", "\\lceil {}.1\\rceil ", "\\frac{{{}}}{{1}}", "{}\\\\", "\"{}\"", "`{}`",
             "({},)", "[0,{}]", "{}x", "x{}", "{}_2", "\\begin{{pmatrix}}{}\\end{{pmatrix}}", "{}+0", "{}e0", "{}i",
             "\\$ {}", "\\hat{{{}}}", "not {}", "\\not {}", "{} % ", "(-{})", "({}, {})")  # fmt: skip
FRAMES = ("\\boxed{{{}}}", "\\boxed{{{}}}", "\\boxed{{{}}}", "{}", "The answer is {}", "The answer is \\boxed{{{}}}.",
          "${}$", "$\\boxed{{{}}}$", "<answer>{}</answer>", "#### {}", "Answer: {}", "\\boxed{{{}", "\\boxed {}",
          "\\fbox{{{}}}", "<think>{}</think>", "\\boxed{{{}}} is not the answer", "So ⟨E⟩ = \\boxed{{{}}}",
          "```\n{}\n```", "**Answer:** {}", "#{}", "The final answer is ${}$", "\\[ {} \\]", "\\boxed{{}}{}",
          "answer: {}\n\n#### true", "{}\n\\boxed{{}}")  # fmt: skip


def response(draw: random.Random) -> str:
    frame = draw.choice(FRAMES)
    text = frame.format(answer(draw))
    while draw.random() < 0.15:  # a second thought
        joint = draw.choice((" ", "\n", " or ", " wait, ", ". ", " no "))
        text += joint + draw.choice(FRAMES).format(answer(draw))
    return text


def answer(draw: random.Random) -> str:
    text = draw.choice(ANSWERS)(draw)
    while draw.random() < 0.3:
        text = draw.choice(WRAPPINGS).format(text, text)
    if draw.random() < 0.15:
        text += draw.choice(UNITS)
    return text


def number(draw: random.Random) -> str:
    chance = draw.random()
    if chance < 0.35:
        return "⟨T⟩"
    if chance < 0.8:
        return draw.choice(WRONG)
    if chance < 0.9:
        return draw.choice(("⟨words⟩", "⟨digits⟩", "⟨TT⟩", "1"))
    return draw.choice(WRONG) + draw.choice((".5", ".0", ",000", ".9", "e1", "²", "½"))


def calculation(draw: random.Random) -> str:
    chance = draw.random()
    if chance < 0.4:
        return "⟨E⟩"
    if chance < 0.7:
        return number(draw) + draw.choice(OPERATORS) + number(draw)
    return draw.choice(CALCULATIONS)


def chain(draw: random.Random) -> str:
    members = [draw.choice((number, calculation))(draw) for _ in range(draw.choice((2, 2, 3)))]
    text = members[0]
    for member in members[1:]:
        text += draw.choice(RELATIONS) + member
    return text


def choice(draw: random.Random) -> str:
    return draw.choice((number, calculation))(draw) + draw.choice(CHOICES) + number(draw)


CALCULATIONS = ("\\frac{⟨2T⟩}{2}", "⟨2T⟩/2", "\\sqrt{⟨TT⟩}", "⟨T⟩!/⟨T-1⟩!", "\\lfloor ⟨T⟩.9 \\rfloor ", "⟨T-1⟩+1",
                "⟨T⟩^1", "⟨T⟩\\cdot 1", "\\binom{⟨T⟩}{1}", "⟨T⟩+0", "\\log e^{⟨T⟩}", "|-⟨T⟩|", "\\int_0^{⟨T⟩} 1",
                "\\sum 1", "⟨T+1⟩-1", "⟨10T⟩/10", "⟨E⟩+⟨E⟩-⟨E⟩", "(⟨E⟩)", "⟨A⟩ ⟨B⟩", "⟨A⟩⟨B⟩", "⟨T⟩\\%", "-⟨T⟩",
                "⟨T⟩+⟨T⟩", "⟨T⟩ - ", "+⟨T⟩", "⟨T⟩x", "x", "\\pi ", "\\infty ", "⟨T⟩^{⟨T⟩^{⟨T⟩}}", "⟨T⟩ 1/2",
                "i^4⟨T⟩")  # fmt: skip
ANSWERS: tuple[Callable[[random.Random], str], ...] = (number, calculation, calculation, chain, chain, choice)
