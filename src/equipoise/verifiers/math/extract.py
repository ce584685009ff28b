r"""Which part of a response is its answer: the last it states, read in linear time.

Only what follows the last `</think>` counts, and a `<think>` that is never closed has said nothing.
`places` says where an answer may stand:

    boxed     the last `\boxed{…}` or `\fbox{…}`. A box in a box is unwrapped, a box that is not closed is not a box.
              Boxes of one sentence with "and" or "or" right before the next (a name, y =, may
              follow), or with signs alone between them, are one list, which can only equal a list.
              Otherwise the last one counts. A box that is part of a number around it is not read.
    tag       the last `<answer>…</answer>` that is closed, and in it the last box or mark, else all of it
    ####      the rest of the line behind the last `####` that is no heading
    words     what follows "Answer:" or "the answer is"
    text      the last formula or number of the last line, then a choice letter that stands there alone

The last mark in the response counts. After a box, a later mark has to begin with the answer itself.

Not covered: answers written out in words ("seventeen"), or spread over several sentences, and
whatever stands before the last 50,000 characters. Whether the text means anything is for
:mod:`equipoise.verifiers.math.equal` to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from equipoise.verifiers.math.alone import DELIMITERS, SCALES, is_part

READ = 50_000  # characters, from the end
LONGEST = 20_000  # characters of an answer; a longer one is no answer
# characters read of the last line, from its end, and of what follows a mark
LINE, SENTENCE = (
    1_000,
    400,
)
MARKS = 50  # marks looked at, from the end
BEFORE_DIGIT = 4  # characters of a number, as in "- $.5"
WORDS = 25  # characters at the end of a sentence in which a word is looked for

BRACE = re.compile(r"\\[\\{}]|[{}]")
PLACES = ("boxed", "tag", "####", "words", "text")
MARKED = PLACES[:-1]  # explicit marks
TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
ASKS = {  # what a prompt says where it asks for an answer in a place
    # a story may put eggs in a box
    "boxed": re.compile(
        r"\\f?boxed|\\fbox|\banswer\b[^.?!\n]{0,80}\b(?:boxed|in(?:side)? a box)\b"
        r"|\bbox(?:ed)?\b[^.?!\n]{0,40}\banswer\b",
        re.IGNORECASE,
    ),
    "tag": re.compile(r"</?answer>", re.IGNORECASE),
    "####": re.compile("####"),
}
BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
MARK = re.compile(b"####"), re.compile(b"answer")
# A line that is a value, with one word behind it at most: "18 dollars", and neither "Check" nor "3.
# Check".
VALUE = re.compile(
    r"[-+−(\[$]*\s*(?:\d[\d,./]*(?<!\.)|\.\d+|\\[a-zA-Z$]+\S*)[)\]$%\\]*(?:\s*[a-zA-Z]+)?\.?$"
)
# A heading begins with a word, "3. Check" too; what is calculated there, max(3, 4) too,
# is the answer that is stated, right or wrong.
NO_HEADING = re.compile(r"(?!(?:\d+[.)]\s+)?[*_]*[a-zA-Z]{2,}(?![a-zA-Z]*\())")
AFTER_MARK = re.compile(r"[\s*_]*(?:[:：=]|(?:is|are)\b:?|(?=\$|\\\(|\\\[))[\s*_]*", re.IGNORECASE)
SPECIAL_TOKEN = re.compile(r"<\|[^|<>\n]{0,40}\|>.*", re.DOTALL)
SENTENCE_END = re.compile(r"[.!?](?=\s)|\n\s*\n")
# Between two boxes of a list: signs alone, or words that end in "and" or "or",
# with a name (y_2 =) behind it or not.
JOINER = re.compile(
    r"(?:^|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z]))[^a-zA-Z]*(?:[a-zA-Z](?:_\{?\w+\}?)?\s*[=:][^a-zA-Z]*)?$",
    re.IGNORECASE,
)
SPACING = re.compile(r"\\(?:text|q?quad)(?![a-zA-Z])")
JOINED_FORMULAS = re.compile(r"\s*(?:,|and|or|,\s*and|,\s*or)\s*", re.IGNORECASE)
JOINED_NUMBERS = re.compile(r"\s*(?:,|;|or|and|,\s*(?:or|and))\s+", re.IGNORECASE)
FORMULA = re.compile(
    r"\$\$(?P<a>[^$]+)\$\$|\\\[(?P<b>(?:[^\\]|\\(?!\]))+)\\\]"
    r"|\$(?P<c>(?:[^$\n\\]|\\.)+)\$|\\\((?P<d>(?:[^\\\n]|\\(?!\)))+)\\\)"
)
IS = re.compile(r"(?<!\w)(?:is|are|be|equals)(?!\w):?\s*|:\s", re.IGNORECASE)
# A currency's sign before a box, and the words behind it, as far as their phrase and line go.
SIGN = re.compile(r"(?:\\\$|[€£¥])\s*$")
BEHIND = re.compile(
    rf"""
    {DELIMITERS}*+ (?!in\b)                  # "in a triangle" is no inch
    (?:
        \\[a-z]+\s*(?:\{{[^{{}}\n]*\}})?       # \text{{ km}}, \circ
        |[a-zA-Z/'²³°-]
        |\^\s*(?:\{{[^{{}}\n]*\}}|\d)?         # of cm^2, of ^\circ
        |{DELIMITERS}                        # $\boxed{{5}} \text{{ miles}}$ per hour
    )++
    (?=[.,;:!?(<\n]|$)
    """,
    re.VERBOSE,
)
IN_MATH_OR_WORDS = re.compile(
    rf"(?P<math>\\[a-z]+\s*(?:\{{[^{{}}]*\}})?)|(?P<words>[a-zA-Z][a-zA-Z/' -]*)|{DELIMITERS}"
)
PHRASE = 80  # characters
PERCENT = re.compile(
    rf"(?:\n|{DELIMITERS})*+(?:\\(?:text\w*|math\w+)\s*\{{\s*)?(?:\\?%|per ?cent(?:age)?\b|pct\b)",
    re.IGNORECASE,
)
DIGIT = re.compile(r"\d")
WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
NUMBER = re.compile(
    r"""
    (?<![\w.\\^{])                         # not inside a word, a number, a command or an exponent
    (?:[-+−]\s?)?
    [$€£]?
    (?:\d+(?:,\d+)*(?:\.\d+)?|\.\d+)
    (?:\s?/\s?\d+)?                        # of a fraction
    (?:\s*(?:\\?%|percent\b|pct\b))?
    """,
    re.VERBOSE,
)
SPACED_THOUSANDS = re.compile(r"(?<![\w.] )(?<![\w.])\d{1,3}(?: \d{3})+(?![\w.]| \d)")
# What makes a number part of something else: letters or operators after it;
# an operator, a letter or "not" before it.
NUMBER_GOES_ON = re.compile(
    r"""
    (?!(?:[cdkm]?m[²³23]?|k?g|lbs?|s|h|ft|in|°)(?![\w(]))[\w(\[{]    # a letter or bracket, but no unit
    |\s*[-+*/^=×·÷<>](?=\s?[\w(\\])                               # an operator with something behind it
    |\s*"""
    + SCALES,
    re.IGNORECASE | re.VERBOSE,
)
NUMBER_MAY_START = re.compile(
    r"""
    (?:
        ^
        |[=:≈(,;$€£|]
        |                                    # or after a space, behind the end of a word,
        (?<!\bnot)(?<!\bnor)(?<!\bthan)(?<!n't)(?<!\bof)(?<!\bexcept)    # but not of these words,
        (?<![\s(][b-zB-Z])                   # nor of a letter alone that may be a variable
        (?<=[\w’'.)!?])\s
    )
    \s*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The same of a formula between delimiters; the words before it hold for a number too.
FORMULA_GOES_ON = re.compile(rf"\s*(?:\^|{SCALES})")
PART_OF = re.compile(
    r"""
    (?:
        [-−+/^×·÷√<>≤≥≠]|\d\s*\*\s*
        |\b(?:minus|negative|plus|times|twice|double|triple|half|sqrt|log|ln|at\ least|at\ most|up\ to)\s*
        |\b(?:under|below|above|beyond|(?:any|every)thing\ but|all\ but|divided\ by|multiplied\ by)\s*
    )$
    """,
    re.IGNORECASE | re.VERBOSE,
)
ANSWER_IN = ("auto", *ASKS, "anywhere")
CHOICE = re.compile(r"[A-J](?:(?<=\([A-J])(?=\))|(?<![AI])(?<![\w'’][A-J])(?![\w'’]))")
OPENING_CHOICE = re.compile(r"\(([A-J])\)|([A-HJ])(?:[.):]|$)")


@dataclass(frozen=True, slots=True)
class Answer:
    """`text`: what was read, None for nothing; `how`: by which part of the rule, "boxes" where the
    text is a list of several different ones.
    """

    text: str | None
    how: str
    outside: str = ""  # "1\\text{ km}" where it is followed by km, "\\$1" behind a dollar sign


@lru_cache(maxsize=2048)
def places_of(answer_in: str, prompt: str) -> tuple[str, ...]:
    """The places `answer_in` names; "auto": those the prompt asks for, else any mark."""
    if answer_in == "anywhere":
        return PLACES
    if answer_in in ASKS:
        return (answer_in,)
    if answer_in != "auto":
        raise ValueError(f'answer_in = "{answer_in}" is no place; use {", ".join(ANSWER_IN)}')
    asked = tuple(place for place, pattern in ASKS.items() if pattern.search(prompt))
    return asked or MARKED


def answer(
    response: str, places: tuple[str, ...] = PLACES, counted_in: tuple[str, ...] = ()
) -> Answer:
    """The last answer that the response states in one of the places.

    `counted_in`: words like million that the prompt counts in (`alone.multiples`): behind a box
    they are not part of its number.
    """
    said = response
    if "<" in response:
        said = response.rpartition("</think>")[2]
        # A thought that was cut off has stated no answer, whatever it holds.
        if "<think>" in said:
            return Answer(None, "unfinished thought")
    # From the end, and bounded: a response may be megabytes of anything, and the last answer
    # counts.
    said = said[-READ:]
    boxes = _boxes(said) if "boxed" in places else []
    # A mark behind the last box is a later answer than the box.
    after_box = boxes[-1][1] if boxes else 0
    if "tag" in places and (tagged := _tagged(said, after_box, counted_in)) is not None:
        return tagged
    if (marked := _marked(said, after_box, places)) is not None:
        return marked
    if boxes:
        return _from_boxes(said, boxes, counted_in)
    if "text" not in places:
        return Answer(None, f"no answer in {' or '.join(places)}" if said.strip() else "empty")
    lines = [
        line for line in _without_special_tokens(said[-4 * LINE :]).split("\n") if line.strip()
    ]
    if not lines:
        return Answer(None, "empty")
    return _read(lines[-1][-LINE:], "last line") or Answer(None, "nothing to read")


def _tagged(text: str, after: int, counted_in: tuple[str, ...]) -> Answer | None:
    """What stands in the last closed <answer> that ends behind `after`."""
    end = None
    for tag in reversed(list(TAG.finditer(text, after))):
        if tag.group(1):
            end = end or tag
        elif end:
            inside = text[tag.end() : end.start()].strip()
            boxes = _boxes(inside)
            if (marked := _marked(inside, boxes[-1][1] if boxes else 0, ("words",))) is not None:
                return marked
            return _from_boxes(inside, boxes, counted_in) if boxes else _stated(inside, "tag")
    return None


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of the outermost closed boxes, in order."""
    boxes: list[tuple[int, int, str]] = []
    starts = list(BOX.finditer(text)) if "\\" in text else []
    closing = _closing_braces(text, starts[0].end()) if starts else {}
    end = 0
    for match in starts:
        close = closing.get(match.end())
        if match.start() >= end and close is not None:
            end = close + 1
            boxes.append((match.start(), end, text[match.end() + 1 : close]))
    return boxes


def _closing_braces(text: str, start: int) -> dict[int, int]:
    """Where each brace from `start` on closes. `\\{` is no brace; a brace left open closes nowhere."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in BRACE.finditer(text, start):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closing[opened.pop()] = match.start()
    return closing


def _from_boxes(
    text: str, boxes: list[tuple[int, int, str]], counted_in: tuple[str, ...]
) -> Answer:
    """The last box, with the boxes that its sentence joins to it."""
    start, end, content = boxes[-1]
    contents = [_unwrapped(content)]
    previous = [0, *(end for _, end, _ in boxes)]
    part = is_part(text, start, end, contents[0], previous[-2], counted_in)
    for k, (earlier_start, earlier_end, content) in reversed([*enumerate(boxes[:-1])]):
        between = text[earlier_end:start] if start - earlier_end <= SENTENCE else ".\n\n"
        if (
            SENTENCE_END.search(between)
            or not JOINER.search(SPACING.sub(" ", between))
            or len(contents) > MARKS
        ):
            break
        # The same box twice is one answer stated twice, not two.
        if (content := _unwrapped(content)) not in contents:
            contents.insert(0, content)
        part = part or is_part(text, earlier_start, earlier_end, content, previous[k], counted_in)
        start = earlier_start
    if part:
        return Answer(None, "boxed, part of a number")
    if len(contents) == 1:
        stated = _stated(_with_percent(contents[0], text, end), "boxed")
        return replace(stated, outside=_outside(text, start, end))
    # Several boxes may be a list that was asked for, or a guess at each value: as a list they equal
    # a gold answer that is this list, and never one that is a member of it.
    return _stated(", ".join(contents), "boxes")


def _unwrapped(content: str) -> str:
    """Without the boxes around it, ten at most: more are no answer, and each costs a pass."""
    for _ in range(10):
        inner = _boxes(content) if len(content) <= LONGEST else []
        if not inner or (content[: inner[0][0]] + content[inner[0][1] :]).strip():
            break
        content = inner[0][2]
    return content.strip()


def _stated(text: str, how: str) -> Answer:
    if len(text) > LONGEST:
        return Answer(None, f"{how}, more than {LONGEST} characters")
    return Answer(text, how) if text else Answer(None, f"{how}, empty")


def _with_percent(formula: str, text: str, end: int) -> str:
    """With the percent sign that follows it at `end`, outside its delimiters."""
    return (
        formula + r"\%" if formula and "%" not in formula and PERCENT.match(text, end) else formula
    )


def _outside(text: str, start: int, end: int) -> str:
    """A 1 with the currency's sign before `start`, else with the words behind `end`, if any."""
    if sign := SIGN.search(text, max(0, start - 4), start):
        return f"{sign.group()}1"
    behind = BEHIND.match(text, end)
    if not behind or len(behind.group()) > PHRASE:
        return ""

    def as_text(match: re.Match[str]) -> str:
        return rf"\text{{ {match['words']}}}" if match["words"] else match["math"] or " "

    return "1" + IN_MATH_OR_WORDS.sub(as_text, behind.group())


def _marked(text: str, after: int, places: tuple[str, ...]) -> Answer | None:
    """What the last mark from `after` on states; after a box it must begin with the answer."""
    heading = None
    for start, end in reversed(_marks(text, after)[-MARKS:]):
        if text[start] == "#":
            line = text[end : end + SENTENCE].split("\n", 1)[0].strip() if "####" in places else ""
            if line and (VALUE if after else NO_HEADING).match(line):
                return Answer(line, "####")
            heading = heading or (line if not after else None)
        elif "words" not in places:
            continue
        elif found := AFTER_MARK.match(text, end):
            rest = _without_special_tokens(text[found.end() : found.end() + SENTENCE])
            sentence = SENTENCE_END.split(rest.strip(), maxsplit=1)[0].split("\n", 1)[0]
            if formula := FORMULA.match(rest):
                return _formula(rest, [formula], "answer")
            if after and not NUMBER.match(sentence):
                continue
            if read := _read(sentence, "answer"):
                return read
            words = sentence.strip(" *_.\"'`\t\r\x0b\x0c").strip()
            if words and not after and len(words.split()) <= 5:
                return Answer(words, "answer, words")
    return Answer(heading, "####") if heading else None


def _marks(text: str, after: int) -> list[tuple[int, int]]:
    """Where marks stand from `after` on, in order. Looked for in small letters (ſ is a small s), of
    one byte each: a pattern that takes capitals too has to try every place.
    """
    small = text[after:].replace("ſ", "s").encode("latin-1", "replace").lower()
    marks = [
        match.span() for mark in MARK if mark.pattern in small for match in mark.finditer(small)
    ]
    return sorted((start + after, end + after) for start, end in marks)


def _without_special_tokens(text: str) -> str:
    return SPECIAL_TOKEN.sub("", text) if "<" in text else text


def _read(sentence: str, how: str) -> Answer | None:
    """The last formula or number of a sentence, whichever ends later; then a choice letter."""
    sentence = sentence.replace("**", "  ")
    formulas = list(FORMULA.finditer(sentence)) if "$" in sentence or "\\" in sentence else []
    number = _number(sentence, formulas[-1].end() if formulas else 0)
    if number is None and formulas:
        return _formula(sentence, formulas, how)
    if (formula := _bare_formula(sentence)) is not None:
        return Answer(formula, f"{how}, formula")
    if number is not None:
        start = sentence.rindex(number)
        around = _outside(sentence, start, start + len(number))
        return Answer(number, f"{how}, number", around) if number else None
    if letter := _choice(sentence.strip(" *_.")):
        return Answer(letter, f"{how}, choice")
    return None


def _formula(sentence: str, formulas: list[re.Match[str]], how: str) -> Answer:
    """The last of the formulas, with those that commas or "and" join to it on either side."""
    joined = [formulas[-1]]
    for earlier in reversed(formulas[:-1]):
        if not JOINED_FORMULAS.fullmatch(sentence, earlier.end(), joined[0].start()):
            break
        joined.insert(0, earlier)
    while (space := JOINED_FORMULAS.match(sentence, joined[-1].end())) and (
        following := FORMULA.match(sentence, space.end())
    ):
        joined.append(following)
    start, end = joined[0].start(), joined[-1].end()
    if PART_OF.search(sentence, max(0, start - 20), start) or FORMULA_GOES_ON.match(sentence, end):
        return Answer(None, f"{how}, part of something else")
    texts = [next(text for text in match.groups() if text).strip() for match in joined]
    if len(texts) == 1:
        stated = _stated(_with_percent(texts[0], sentence, end), f"{how}, formula")
        return replace(stated, outside=_outside(sentence, start, end))
    return _stated(", ".join(texts), f"{how}, formulas")


def _number(sentence: str, after: int) -> str | None:
    """The last number from `after` on, with those joined to it; "" if part of something else."""
    # faster than a pattern
    if sentence.isascii() and not any(map(sentence.__contains__, "0123456789")):
        return None
    if not (digit := DIGIT.search(sentence, after)):
        return None
    # the patterns look behind at every place: they start late
    after = max(after, digit.start() - BEFORE_DIGIT)
    found = [*SPACED_THOUSANDS.finditer(sentence, after)] or [*NUMBER.finditer(sentence, after)]
    if not found:
        return None
    start, end = found[-1].span()
    for earlier in reversed(found[:-1]):
        if not JOINED_NUMBERS.fullmatch(sentence, earlier.end(), start):
            break
        start = earlier.start()
    before = max(0, start - 20)
    if (
        NUMBER_GOES_ON.match(sentence, end)
        or PART_OF.search(sentence, before, start)
        or not NUMBER_MAY_START.search(sentence, before, start)
    ):
        return ""
    return sentence[start:end].strip()


def _bare_formula(sentence: str) -> str | None:
    """What follows the last "is" or ":", if a formula without delimiters and words."""
    # What stands before a word can be no part of the formula, unless the word is a command's.
    word = WORD.search(sentence, max(0, len(sentence) - WORDS)) if "\\" not in sentence else None
    start = max(
        (match.end() for match in IS.finditer(sentence, word.start() if word else 0)), default=0
    )
    if word and not start:
        return None
    rest = sentence[start:].strip().rstrip(".,;").strip()
    if "\\boxed" in rest or WORD.search(re.sub(r"\\[a-zA-Z]+\s*\{[a-zA-Z ]*\}", "", rest)):
        return None
    return rest if re.search(r"[\\^=+*/<>_()\[\]]|\d[a-zA-Z]|\S\s*-", rest) else None


def _choice(sentence: str) -> str | None:
    """A letter that opens the sentence ("A. Because …"), else the only one alone in it."""
    if not any(map(sentence.__contains__, "ABCDEFGHIJ")):  # faster than a pattern
        return None
    if opening := OPENING_CHOICE.match(sentence):
        return opening.group(1) or opening.group(2)
    letters = {match.group() for match in CHOICE.finditer(sentence)}
    return letters.pop() if len(letters) == 1 else None
