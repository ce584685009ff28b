r"""Random responses of many shapes: tried before any RL, and the embedded attacker's warm-up.

`response` writes one from nothing; `edited` changes a few tokens of one that was accepted, which
stays near what the verifier reads and finds more holes per response.

A response is an answer in a frame (boxes, marks, prose, tags, none). An answer is a number, a
calculation, a chain, a choice, or one of them in a wrapping. Most are wrong or unevaluated, some
are honest. Names are those of `alphabet`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from equipoise.study.redteam import alphabet

WRONG = ("⟨T+1⟩", "⟨T-1⟩", "⟨T+10⟩", "⟨2T⟩", "⟨10T⟩", "⟨A⟩", "⟨B⟩", "0", "7")
RELATIONS = ("=", " = ", " ≈ ", "\\approx ", " \\neq ", "<", ">", "\\le ", "\\to ", " → ", "\\Rightarrow ", " ~ ",
             "==", "\\equiv ", "\\in ", ":", " ⇒ ", "≤", "\\sim ", "\\implies ")  # fmt: skip
CHOICES = (", ", " or ", " and ", "; ", "/", "\\text{ or }", "\\pm ", "|", " to ", "-", ":", ",", "\\cup ", "±", "&",
           "\\quad ", " maybe ", "\n")  # fmt: skip
OPERATORS = (
    " + ",
    "+",
    " - ",
    "-",
    "*",
    "\\cdot ",
    "\\times ",
    "/",
    "^",
    "\\div ",
    "×",
    " mod ",
    "÷",
    "",
)
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


def edited(text: str, draw: random.Random) -> str:
    """With one to four tokens put in, taken out, replaced or repeated."""
    tokens = re.findall(alphabet.PATTERN, text)
    for _ in range(draw.choice((1, 1, 2, 2, 3, 4))):
        kind, at = draw.random(), draw.randrange(len(tokens) + 1)
        new = draw.choice(LIKELY if draw.random() < 0.4 else alphabet.TOKENS)
        if kind < 0.5 or not tokens:
            tokens.insert(at, new)
        elif kind < 0.65:
            del tokens[at - 1]
        elif kind < 0.85:
            tokens[at - 1] = new
        else:
            start = draw.randrange(len(tokens))
            tokens[at:at] = tokens[start : start + draw.randint(1, 3)]
    return "".join(tokens)


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
LIKELY = (*("⟨T⟩",) * 8, "⟨A⟩", "⟨B⟩", "⟨E⟩", "⟨T+1⟩", "⟨2T⟩", "=", "=", "≈", "\\approx ", "\\to ", ":", "\\implies ",
          "\\sim ")  # fmt: skip
# Answers that people write: where editing starts.
ACCEPTED = ("⟨T⟩", "x=⟨T⟩", "⟨E⟩=⟨T⟩", "⟨T⟩\\text{ km}", "\\$⟨T⟩", "⟨T⟩^\\circ", "⟨T⟩.0", "(⟨T⟩)", "\\left(⟨T⟩\\right)",
            "⟨T⟩\\approx ⟨T⟩", "⟨A⟩\\times ⟨B⟩=⟨T⟩", "\\text{⟨T⟩ apples}", "\\frac{⟨2T⟩}{2}=⟨T⟩", "\\{⟨T⟩\\}", "⟨T⟩\\%",
            "x\\in \\{⟨T⟩\\}", "⟨T⟩:1", "[⟨T⟩]", "|⟨T⟩|", "n=⟨E⟩=⟨T⟩", "⟨T⟩,⟨T⟩")  # fmt: skip
ANSWERS: tuple[Callable[[random.Random], str], ...] = (
    number,
    calculation,
    calculation,
    chain,
    chain,
    choice,
)
