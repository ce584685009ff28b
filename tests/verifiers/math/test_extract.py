"""Reading the answer out of a response: the rule case by case, in linear time, on any text whatever."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.verifiers import grade_math
from equipoise.verifiers.math.extract import (
    BEFORE_DIGIT,
    DIGIT,
    IS,
    LONGEST,
    NUMBER,
    WORDS,
    Answer,
    _bare_formula,
    _choice,
    _marks,
    answer,
    places_of,
)

CASES = [
    (r"so \boxed{5}", "5", "boxed"),
    (r"so \fbox{5}", "5", "boxed"),
    (r"so \boxed {5}", "5", "boxed"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "boxed"),
    (r"\boxed{\boxed{5}}", "5", "boxed"),
    (r"first \boxed{7}. Then \boxed{42}.", "42", "boxed"),
    (r"\boxed{7} no wait, I forgot one case that matters here \boxed{8}", "8", "boxed"),
    (r"\boxed{7} no wait, \boxed{8}", "8", "boxed"),
    (r"\boxed{1} papers and \boxed{2} bins", "1, 2", "boxes"),
    ("\\boxed{7}\n#### Verification\n7 = 7", "7", "boxed"),
    ("\\boxed{7}\n#### 3. Check\n7 = 7", "7", "boxed"),
    ("\\boxed{7}\n#### 8", "8", "####"),
    ("#### 8\n#### Check", "8", "####"),
    ("<answer>\n7\n</answer>", "7", "tag"),
    (r"<answer>So \boxed{7}</answer>", "7", "boxed"),
    ("<answer>The answer is 7.</answer>", "7", "answer, number"),
    (r"\boxed{6} <answer>7", "6", "boxed"),
    (r"\boxed{7} hmm no that was wrong it is \boxed{8}", "8", "boxed"),
    (r"\boxed{1}, \boxed{2} and \boxed{3}", "1, 2, 3", "boxes"),
    (r"\boxed{1} \boxed{2}", "1, 2", "boxes"),
    (r"\boxed{5} so \boxed{5}", "5", "boxed"),
    (r"$\boxed{28}$ percent", r"28\%", "boxed"),
    (r"\boxed{}", None, "boxed, empty"),
    (r"\boxed{5", None, "nothing to read"),
    (r"\boxed{4} and \boxed{5", "4", "boxed"),
    (r"<think>\boxed{4}</think>\boxed{5}", "5", "boxed"),
    (r"\boxed{4}</think>Done.", None, "nothing to read"),
    (r"<think>\boxed{4}", None, "unfinished thought"),
    ("", None, "empty"),
    ("\n \n", None, "empty"),
    ("I do not know.", None, "nothing to read"),
    ("Answer: 5", "5", "answer, number"),
    ("**Answer:** 5\n", "5", "answer, number"),
    ("Answer:\n\n42", "42", "answer, number"),
    ("The answer is -5.", "-5", "answer, number"),
    ("The answer is 7 or 8", "7 or 8", "answer, number"),
    ("The answer is 3, 4 and 5.", "3, 4 and 5", "answer, number"),
    ("The answer is $x+1$. I hope it is correct.", "x+1", "answer, formula"),
    ("The answer is $1$ and $2$.", "1, 2", "answer, formulas"),
    ("The answer is x^2 + 1", "x^2 + 1", "answer, formula"),
    ("The answer is 2x", "2x", "answer, formula"),
    ("The answer is 5 million.", "5 million", "answer, words"),
    ("Answer: east", "east", "answer, words"),
    ("The answer is A.", "A", "answer, choice"),
    ("Final Answer: The largest $n$ is 34.", "34", "answer, number"),
    ("9 * 2 = 18\n#### 18", "18", "####"),
    (r"\boxed{7} The final answer is 8.", "8", "answer, number"),
    (r"\boxed{7} is my answer: it is prime and 3 divides it", "7", "boxed"),
    ("Therefore 3*5=15", "15", "last line, number"),
    ("She makes $1,234.50 every day.", "$1,234.50", "last line, number"),
    ("So it is 7, not 8", None, "nothing to read"),
    ("more than 8", None, "nothing to read"),
    ("AZYUK2A", None, "nothing to read"),
    (r"so we find $x \geq 5$ here.", r"x \geq 5", "last line, formula"),
    ("A. Because B is not valid", "A", "last line, choice"),
    ("Because B is valid", "B", "last line, choice"),
    ("It is B or C", None, "nothing to read"),
    ("It is 12.<|im_end|>\n<|im_start|>user 13", "12", "last line, number"),
]


@pytest.mark.parametrize(("response", "text", "how"), CASES)
def test_the_rule(response, text, how):
    assert (answer(response).text, answer(response).how) == (text, how)


def test_only_joined_boxes_are_a_list():
    assert answer(r"\boxed{1} or \boxed{2}").how == "boxes"
    assert answer(r"\boxed{1}. Or rather \boxed{2}.").how == "boxed"
    assert answer(r"\boxed{1,2}").how == "boxed"


FLOODS = [
    r"\boxed{", "{", "Answer:", "\\", r"\boxed{}", r"\boxed{1},", "#### ", "#### \n", "$", "$$", "answer is ", "1 ",
    "1, ", r"\(", r"\[ ", "(A) ", " is", "1 and ", "<think>", "\n", "}{", r"Answer: \(\(\(\(", "answer: $$a ", "-1 ",
    "$1$, ", "<|a", r"\boxed{\boxed{", "a.\n", "</think>", "Answer is 1 or ", "１", "\x00", "\ud800", "**",
]  # fmt: skip


@pytest.mark.parametrize("tail", ["", r"\boxed{7}", " 7"])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_megabyte_of_anything_takes_a_moment(flood, tail):
    text = flood * (1_000_000 // len(flood)) + tail
    start = time.process_time()
    answer(text)
    assert time.process_time() - start < 10.0  # a quadratic step would take minutes


def test_boxes_in_boxes_in_boxes_take_a_moment():
    start = time.process_time()
    answer(r"\boxed{" * 12_000 + "5" + "}" * 12_000)
    assert time.process_time() - start < 10.0  # a quadratic step would take minutes


PIECES = st.sampled_from(
    [r"\boxed{", r"\fbox{", "}", "{", "$", "$$", r"\(", r"\)", r"\[", r"\]", "####", "Answer:", "the answer is ",
     " is ",
     "<think>", "</think>", "7", "-3.5", "1/2", " or ", ", ", ". ", "\n", "(C)", "x^2", "\\", "%", "<|im_end|>", "not "]
)  # fmt: skip


@settings(max_examples=400)
@given(st.one_of(st.text(st.characters(codec=None), max_size=200), st.lists(PIECES, max_size=40).map("".join)))
def test_any_text_has_an_answer_or_none(text):
    said = answer(text)
    assert said.how
    assert said.text is None or (0 < len(said.text) <= LONGEST and said.text == said.text.strip())


@settings(max_examples=100)
@given(
    st.text(st.characters(exclude_characters="\\{}", codec=None), max_size=80), st.text("0123456789+-x^ ", min_size=1)
)
def test_a_closing_box_counts_whatever_stands_before_it(text, content):
    if "<think>" not in text and content.strip():
        assert answer(f"{text}.\n\n\\boxed{{{content}}}").text == content.strip()


# What each shortcut has to agree with: the same rule without it, in whole passes over the text.
WORDS_AND_SIGNS = st.lists(
    st.sampled_from(
        ["####", "#", "answer", "ANSWER", "anſwer", "is", "ARE", "equalſ", "be", "x", "ab", "apples", "A", "(A)", "(B)",
         "C", "(D", "E)", "I", "'s", "’", "12", "-5", "- $.5", "12 345", "٣", "İ", "ß", "é", ":", ": ", ".", ",", "+",
         "=", "(", "_", " ", " ", "  ", "\n", "\\text{are }", "\\text{cows}", "\\text {ab}", "\\", "{", "}", "\ud800"]
    ),
    max_size=30,
).map("".join)  # fmt: skip


def _bare_formula_by_whole_passes(sentence):
    start = max((match.end() for match in IS.finditer(sentence)), default=0)
    rest = sentence[start:].strip().rstrip(".,;").strip()
    plain = re.sub(r"\\[a-zA-Z]+\s*\{[a-zA-Z ]*\}", "", rest)
    if "\\boxed" in rest or re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}", plain):
        return None
    return rest if re.search(r"[\\^=+*/<>_()\[\]]|\d[a-zA-Z]|\S\s*-", rest) else None


@settings(max_examples=500)
@given(WORDS_AND_SIGNS, st.integers(0, 5))
def test_shortcuts_see_what_whole_passes_see(text, after):
    marks = re.compile(r"####|answer", re.IGNORECASE).finditer(text, after)
    assert _marks(text, after) == [match.span() for match in marks]
    assert _bare_formula(text) == _bare_formula_by_whole_passes(text)
    assert _bare_formula("word " * WORDS + text) == _bare_formula_by_whole_passes("word " * WORDS + text)
    if not re.match(r"\(?[A-J]", text):
        letters = {a or b for a, b in re.findall(r"\(([A-J])\)|(?<![\w'’])([B-HJ])(?![\w'’])", text)}
        assert _choice(text) == (letters.pop() if len(letters) == 1 else None)
    assert all(DIGIT.search(match.group()).start() <= BEFORE_DIGIT for match in NUMBER.finditer(text))


@pytest.mark.parametrize("line", [r"45\cdot 1", "260^1", r"\lfloor 45 \rfloor", "40 + 5", "(45)", "x = 46"])
def test_the_last_hashes_count_whatever_is_written_there(line):
    """An earlier, plainer answer is not read in the place of a calculation; a heading states none."""
    assert answer(f"#### 45\n#### {line}", ("####",)).text == line
    assert answer(f"#### {line}\n#### Verification\n#### 3. Check it", ("####",)).text == line


@pytest.mark.parametrize(
    ("prompt", "asks"),
    [
        ("How many eggs fit in a box?\nEnd with ####.", ("####",)),
        ("She buys boxed chocolates. Give <answer>number</answer>.", ("tag",)),
        ("What is 2 + 2? Put the final answer in a box.", ("boxed",)),
        ("What is 2 + 2? Give a boxed answer.", ("boxed",)),
        ("What is 2 + 2? Box your answer.", ("boxed",)),
    ],
)
def test_a_box_in_the_story_asks_for_none(prompt, asks):
    assert places_of("auto", prompt) == asks


def test_a_function_behind_hashes_is_no_heading():
    assert answer("#### 82\n#### max(82, 50)", ("####",)).text == "max(82, 50)"
    assert answer("#### 82\n#### Check (again)", ("####",)).text == "82"


BOX_OF_7_IS_PART = [
    r"$x = -\boxed{7}$", r"$x = - \boxed{7}$", r"$-\boxed{7}$", r"\[ - \boxed{7} \]", r"The answer is $-\boxed{7}$",
    r"x = −\boxed{7}", r"so $x = \pm \boxed{7}$", r"x \approx -\boxed{7}", r"\boxed{1}, $-\boxed{7}$",
    r"x=-\boxed{1} and \boxed{7}", r"\boxed{7},000", r"\boxed{7}{,}000", r"\boxed{7},\!000", r"\boxed{7}.5",
    r"$\boxed{7}.5$", r"\boxed{7}5", r"1\boxed{7}", r"0.\boxed{7}", r"1,00\boxed{7}", r"\boxed{7}\cdot 10^3",
    r"$\boxed{7} \times 10^{3}$", r"\boxed{7} × 10^3", r"\boxed{7} * 10^3", r"\boxed{7}^2", r"\boxed{7}^{-1}",
    r"\frac{1}{\boxed{7}}", r"$\frac{\boxed{7}}{2}$", r"\sqrt{\boxed{7}}", r"\sqrt[3]{\boxed{7}}",
]  # fmt: skip
BOX_OF_7_IS_ALL = [
    r"so the answer is \boxed{7}.", r"\boxed{7}, as claimed", r"\boxed{7} apples", r"$\boxed{7}$.", r"x = \boxed{7}",
    r"Answer - \boxed{7}", r"Answer -- \boxed{7}", r"Answer — \boxed{7}", r"Answer: \boxed{7}", r"- \boxed{7}",
    "It is:\n- \\boxed{7}", "so\n  - $\\boxed{7}$", r"* \boxed{7}", "1. \\boxed{7}", "2) $\\boxed{7}$",
    r"**\boxed{7}**",
    r"*\boxed{7}*", r"*\boxed{7}* 3 of them", r"\[\boxed{7}\]", r"$$\boxed{7}.$$", r"$\boxed{7}\text{ cm}$",
    r"2+5=\boxed{7}", r"9-2=\boxed{7}", r"\therefore \boxed{7}", r"(\boxed{7})", r"($\boxed{7}$)", r"\boxed{7}^\circ",
    r"\boxed{7}^{\circ}", r"\boxed{7}{ }^{\circ}", r"the \boxed{7}^{th} one", r"\boxed{7}^{\text{th}}",
    r"\boxed{7}^{\prime}",
    r"\boxed{7} \pmod{11}", r"\boxed{7} (that is, $7$)", r"\boxed{7}\frac{\text{miles}}{\text{hour}}",
    r"\boxed{7}/hour",
    r"\boxed{7} / \mathrm{cm}^3", r"\boxed{7}\cdot\text{m}", r"\boxed{7}! Done", r"\boxed{7} - 3 apples are left",
    "\\boxed{7}\n\n2. Check: 7 = 7", "\\boxed{7}\n* 3 more", "\\boxed{7}\n- 2 less", "\\boxed{7} 2 of them",
    r"$\boxed{7}=14/2$", r"14/2=\boxed{7}", r"$\frac{14}{2} = \boxed{7}$", r"$\sqrt{49} = \boxed{7}$",
    r"$x$ - $\boxed{7}$",
    r"$x$ is \text{Answer} - \boxed{7}", r"12-\boxed{7}=5", r"12 - \boxed{7} = 5", r"3\times\boxed{7}=21",
    r"21 = 3\cdot\boxed{7}",
    r"Answer:- \boxed{7}", r"Answer :- $\boxed{7}$", r"\boxed{7} $-$ done", r"\text{Answer: }\boxed{7}",
    r"\frac{1}{2}, \text{ so } \boxed{7}", r"$b=0$$\boxed{7}$",
    r"{\displaystyle \boxed{7}}", r"\mathbf{\boxed{7}}", r"\underline{\boxed{7}}",
    r"\frac{1{2}$ so $\boxed{7}$ and {}}",
    r"\$\boxed{7}.00", r"$\boxed{7}.0$ m", r"\boxed{7} 200-page books", "15\n\\boxed{7}",
    "\\boxed{7}\nHundreds digit: 7", r"$\boxed{7}$ $\sqrt{49}$", r"\boxed{7}:00 pm", r"\boxed{7}: 3 of them",
    "x =\n15 -\n\\boxed{7}",
    r"the box \boxed{7} thousandfold", r"x \ge \boxed{7}", r"\boxed{7} \pm 0.5", r"\boxed{7}\%", r"x -- \boxed{7}",
]  # fmt: skip


@pytest.mark.parametrize("response", BOX_OF_7_IS_PART)
def test_a_box_that_is_part_of_a_number_is_not_read(response):
    assert answer(response, ("boxed", "tag")) == Answer(None, "boxed, part of a number")
    assert grade_math(response, "7").kind == "unparsed"


@pytest.mark.parametrize("response", BOX_OF_7_IS_ALL)
def test_what_stands_around_a_box_otherwise_is_no_part_of_its_number(response):
    assert answer(response, ("boxed", "tag")).text in ("7", r"7\%")
    assert grade_math(response, "7").kind == "correct"


@pytest.mark.parametrize(("response", "gold"), [
    (r"\boxed{28}\%", r"28\%"), (r"\boxed{28}\%", "28%"), (r"\boxed{3} \text{ and } \boxed{4}", "3, 4"),
    (r"\boxed{3}/\boxed{4}", "3, 4"), (r"\boxed{\text{(B)}} 3(1+r)", "B"), (r"\boxed{C} 14", "C"),
    (r"\boxed{C} \frac{1}{2}", "C"), (r"\boxed{C}: 14", "C"),
    (r"$\boxed{(1,2)}^T$", "(1,2)"), (r"\boxed{B}. 3 is too small", "B"), (r"-\frac32-\boxed{2}", "2"),
    (r"\$\boxed{4} /$ can", "4"),
])  # fmt: skip
def test_other_boxes_are_read_as_before(response, gold):
    assert grade_math(response, gold).kind == "correct"


BOX_OF_7_IS_PART_OF_MORE = [
    r"\boxed{7} million", r"$\boxed{7}$ million people", r"\(\boxed{7}\) billion", r"\boxed{7}\text{ thousand}",
    r"$\boxed{7} \text{million}$", r"$\boxed{7}\ \mathrm{million}$", r"**\boxed{7}** hundred", r"\boxed{7}~trillion",
    r"\boxed{7} dozen eggs", r"\boxed{7} dozens", r"\boxed{7} lakh", r"\boxed{7} squared", r"\boxed{7} cubed",
    r"\boxed{7} factorial", r"\boxed{7} tenths", r"\boxed{7} hundredths of it", r"\boxed{7} and a half",
    r"\boxed{7} and one third", r"\boxed{7}\textperthousand", r"\boxed{7}‰", r"\boxed{7} per mille",
    r"\boxed{7}/2", r"$\boxed{7} / 2$", r"\boxed{7}/\pi", r"$\frac{1}{2}\cdot\boxed{7}$", r"\boxed{7}\cdot 2",
    r"$\boxed{7} \times 11$", r"\boxed{7} \div 2.", r"\boxed{7} + 2", r"so $\boxed{7}+2$.", r"$\boxed{7} - 2$",
    r"\boxed{7}-x", r"\[\boxed{7} + \frac{1}{2}\]", r"\boxed{7}·3", r"$\boxed{7} * 3$", r"\boxed{7}**2",
    r"$\boxed{7}!$", r"$\boxed{7}! + 1$", r"\boxed{7}\sqrt{3}", r"$\boxed{7}\pi$", r"$\boxed{7}\frac{1}{2}$",
    r"\boxed{7}\frac12", r"\boxed{7} 1/2", r"$\boxed{7}(3)$", r"$\boxed{7}(x+1)$", r"$\boxed{7}\left(x+1\right)$",
    r"\boxed{7}^n", r"\boxed{7}^{x}", r"\boxed{7}^{\frac12}", r"\boxed{7}^{(2)}", r"\boxed{7}^\pi",
    r"$2 + \boxed{7}$", r"$3\cdot\boxed{7}$", r"3 \times \boxed{7}", r"$x = 3\cdot\boxed{7}$", r"$1/\boxed{7}$",
    r"$x^2 + \boxed{7}$", r"$\sin\boxed{7}$", r"$\log_2 \boxed{7}$", r"\lfloor\boxed{7}\rfloor", r"2^{\boxed{7}}",
    r"$\binom{\boxed{7}}{2}$", r"negative \boxed{7}", r"It is minus $\boxed{7}$.",
]  # fmt: skip
BOX_OF_7_IS_ALL_AGAIN = [
    r"\boxed{7} million-dollar houses", r"\boxed{7} dozen-egg cartons", r"\boxed{7} hundreds-digit pairs",
    r"\boxed{7} thousandfold", r"\boxed{7} apples", r"\boxed{7} and we are done", r"\boxed{7} and a box of eggs",
    r"\boxed{7} cm", r"\boxed{7}!", r"$\boxed{7}$!", r"The answer is \boxed{7}! Great.", r"\boxed{7} quarters",
    r"\boxed{7} scores", r"\boxed{7}/week", r"\boxed{7} (a)", r"\boxed{7} (see 3)", r"\boxed{7}\, (x>0)",
    r"2 + \boxed{7} = 9", r"$\boxed{7} + 2 = 9$", r"9 = 2 + \boxed{7}", r"$\boxed{7}\cdot 3 = 21$",
    r"$128 = 2^{\boxed{7}}$", r"$2^{\boxed{7}} = 128$", r"\boxed{7} + two more for the road", r"\boxed{7} of 10",
    "\\boxed{7}\n+ 2", r"\boxed{7}x^3", r"\boxed{7}\\", r"\boxed{7} \quad (1)", r"\boxed{7}\;\blacksquare",
    r"\boxed{7}\tag{1}", r"$$\boxed{7}\qquad\square$$", r"\boxed{7} \square", r"\boxed{7}\sqrt{\text{units}}",
    r"the log: \boxed{7}", r"x \cdot y: \boxed{7}", r"A + B: \boxed{7}", r"the sum is + \boxed{7}",
]  # fmt: skip


@pytest.mark.parametrize("response", BOX_OF_7_IS_PART_OF_MORE)
def test_a_box_that_is_part_of_an_expression_is_not_read(response):
    assert answer(response, ("boxed", "tag")) == Answer(None, "boxed, part of a number")
    assert grade_math(response, "7").kind == "unparsed"


@pytest.mark.parametrize("response", BOX_OF_7_IS_ALL_AGAIN)
def test_a_box_in_a_sentence_or_in_an_equation_is_read(response):
    assert grade_math(response, "7").kind == "correct"


@pytest.mark.parametrize("sign", [
    r"\%", "%", r"\,\%", r"$\%$", r"$ \%", r"\ \%", "** %", " per cent", r"\text{ percent}", r"\mathrm{\%}",
    r"$$ percent",
])  # fmt: skip
def test_a_percent_sign_behind_a_box_belongs_to_it(sign):
    assert grade_math(rf"\boxed{{0.5}}{sign}", "0.5").kind == "wrong"
    assert grade_math(rf"\boxed{{0.5}}{sign}", "0.005").kind == "correct"


@pytest.mark.parametrize("text", [
    r"\boxed{\text{(B)}} + 2", r"\boxed{C} \frac{1}{2}", r"\boxed{\text{east}} 1/2",
])  # fmt: skip
def test_a_choice_or_a_word_is_part_of_no_expression(text):
    assert answer(text, ("boxed",)).text is not None


@pytest.mark.parametrize("prompt", ["How many dozens of eggs are 84 eggs?", "How many dozen? Box the answer."])
def test_a_prompt_that_counts_in_dozens_is_answered_in_dozens(prompt):
    assert grade_math(r"$\boxed{7}$ dozen eggs", "7", prompt=prompt).kind == "correct"
    assert grade_math(r"$\boxed{7}$ million eggs", "7", prompt=prompt).kind == "unparsed"
    assert (
        grade_math(r"$\boxed{7}$ dozen eggs", "7", prompt="How many eggs are in seven dozen-egg boxes?").kind
        == "unparsed"
    )
