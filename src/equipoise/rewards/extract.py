r"""Which part of a response is its answer: the last one it states, read in linear time and never evaluated.

The rule, in order. Only what follows the last `</think>` counts, and a `<think>` that is never closed has said nothing.
The last `\boxed{…}` (or `\fbox`) counts; a box in a box is unwrapped, a box that is not closed is not a box. Different
boxes joined in one sentence (", ", "and", nothing but signs) are one list, so they can only equal a list. A marked
answer ("####", "Answer:", "the answer is") counts instead where it stands after the last box. Without either, the last
formula or number of the last line counts, then a choice letter standing there.

Not covered: answers written out in words ("seventeen") or spread over several sentences. Whether the text means
anything is for :mod:`equipoise.rewards.equal`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 20_000  # characters of an answer; a longer one is no answer
MARKS = 50  # marks looked at from the end: what stands before so many others is not the last word
LINE = 4_000  # characters of a line or sentence that are read, from its end

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
MARK = re.compile(r"####|answer", re.IGNORECASE)
AFTER_MARK = re.compile(r"[\s*_]*(?:[:：=]|(?:is|are)\b:?|(?=\$|\\\(|\\\[))[\s*_]*", re.IGNORECASE)
IS = re.compile(r"(?<!\w)(?:is|are|be|equals)(?!\w):?\s*|:\s", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?](?=\s)|\n\s*\n")
JOINER = re.compile(r",|;|&|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])", re.IGNORECASE)
FORMULA = re.compile(
    r"\$\$(?P<a>[^$]+)\$\$|\\\[(?P<b>(?:[^\\]|\\(?!\]))+)\\\]"
    r"|\$(?P<c>(?:[^$\n\\]|\\.)+)\$|\\\((?P<d>(?:[^\\\n]|\\(?!\)))+)\\\)"
)
BETWEEN_FORMULAS = re.compile(r"\s*(?:,|and|or|,\s*and|,\s*or)\s*", re.IGNORECASE)
PERCENT_AFTER = re.compile(r"\s*(?:\$\s*)?(?:\\?%|percent(?:age)?\b|pct\b)", re.IGNORECASE)
NUMBER = re.compile(
    r"(?<![\w.\\^{])(?:[-+−]\s?)?[$€£]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s?/\s?\d+)?(?:\s*(?:\\?%|percent\b|pct\b))?"
)
SPACED_THOUSANDS = re.compile(r"(?<![\w.] )(?<![\w.])\d{1,3}(?: \d{3})+(?![\w.]| \d)")
ATTACHED = re.compile(r"(?!(?:[cdkm]?m[²³23]?|k?g|lbs?|s|h|ft|in|°)(?![\w(]))[\w(\[{]|\s*[-+*/^=×·÷<>](?=\s?[\w(\\])")
STANDS_ALONE = re.compile(
    r"(?:^|[=:≈(,;$€£|]|(?<!\bnot)(?<!\bnor)(?<!\bthan)(?<!n't)(?<!\bof)(?<!\bexcept)(?<![\s(][b-zB-Z])(?<=[\w’'.)!?])\s)\s*$"
)
JOINED_NUMBERS = re.compile(r"\s*(?:,|;|or|and|,\s*(?:or|and))\s+", re.IGNORECASE)
CHOICE = re.compile(r"\(([A-J])\)|(?<![\w'’])([B-J])(?![\w'’])")
SPECIAL = re.compile(r"<\|[^|<>\n]{0,40}\|>.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is what was read, None where there is nothing to read; `how` says by which part of the rule.

    `hedge` is True where the text is a list of several different boxes: it equals a gold that is that list, never one
    of its members.
    """

    text: str | None
    how: str
    hedge: bool = False


def answer(response: str) -> Answer:
    """The last answer that the response states."""
    spoken, thought, said = response.rpartition("</think>")
    if not thought and "<think>" in response:
        return Answer(None, "unfinished thought")
    said = said if thought else spoken + said
    boxes = _boxes(said)
    marked = _marked(said, boxes[-1][1] if boxes else 0)
    if marked is not None:
        return marked
    if boxes:
        return _from_boxes(said, boxes)
    lines = [line for line in SPECIAL.sub("", said[-4 * LINE :]).split("\n") if line.strip()]
    if not lines:
        return Answer(None, "empty")
    return _read(lines[-1][-LINE:], "final line") or Answer(None, "nothing to read")


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of the outermost closed boxes, in order. One pass over the braces."""
    boxes: list[tuple[int, int, str]] = []
    closing = _closing_braces(text) if "\\boxed" in text or "\\fbox" in text else {}
    end = 0
    for match in BOX.finditer(text):
        close = closing.get(match.end())
        if match.start() >= end and close is not None:
            end = close + 1
            boxes.append((match.start(), end, text[match.end() + 1 : close]))
    return boxes


def _closing_braces(text: str) -> dict[int, int]:
    """Where each brace closes. `\\{` is no brace; a brace left open closes nowhere."""
    closing: dict[int, int] = {}
    open_at: list[int] = []
    for match in re.finditer(r"\\[\\{}]|[{}]", text):
        if match.group() == "{":
            open_at.append(match.start())
        elif match.group() == "}" and open_at:
            closing[open_at.pop()] = match.start()
    return closing


def _from_boxes(text: str, boxes: list[tuple[int, int, str]]) -> Answer:
    """The last box, with the boxes that its sentence joins to it."""
    start, end, content = boxes[-1]
    contents = [_unwrapped(content)]
    for earlier_start, earlier_end, content in reversed(boxes[:-1]):
        between = text[earlier_end:start]
        if len(between) > 200 or SENTENCE_END.search(between):
            break
        if not (JOINER.search(between) or (len(between) < 10 and not re.search(r"[a-zA-Z]{2}", between))):
            break
        if (content := _unwrapped(content)) not in contents:
            contents.append(content)
        start = earlier_start
    contents.reverse()
    percent = PERCENT_AFTER.match(text, end)
    joined = ", ".join(contents) + (r"\%" if percent and len(contents) == 1 and "%" not in contents[0] else "")
    if len(joined) > LONGEST:
        return Answer(None, "too long")
    if not joined.strip():
        return Answer(None, "empty box")
    return Answer(joined.strip(), "boxed" if len(contents) == 1 else "boxes", hedge=len(contents) > 1)


def _unwrapped(content: str) -> str:
    while (inner := _boxes(content)) and not content[: inner[0][0]].strip() and not content[inner[0][1] :].strip():
        content = inner[0][2]
    return content.strip()


def _marked(text: str, after: int) -> Answer | None:
    """What stands at the last mark after position `after` that has something to read."""
    marks = [match.span() for match in MARK.finditer(text, after)]
    for start, end in reversed(marks[-MARKS:]):
        if text[start] == "#":
            line = text[end : end + LINE].split("\n", 1)[0].strip()
            if line and len(line) <= LINE:
                return Answer(line, "####")
        elif found := AFTER_MARK.match(text, end):
            rest = SPECIAL.sub("", text[found.end() : found.end() + LINE])
            if formula := FORMULA.match(rest):
                return _formula(rest, [formula], "answer")
            sentence = SENTENCE_END.split(rest.strip(), maxsplit=1)[0].split("\n", 1)[0]
            if read := _read(sentence, "answer"):
                return read
            if after == 0 and sentence and len(sentence.split()) <= 5:
                return Answer(sentence.strip(" *_.\"'`"), "answer")
    return None


def _read(sentence: str, how: str) -> Answer | None:
    """The last formula or number of a sentence, whichever ends later; then a choice letter."""
    sentence = sentence.replace("**", "  ")
    formulas = list(FORMULA.finditer(sentence))
    number = _number(sentence, formulas[-1].end() if formulas else 0)
    if number is None and formulas:
        return _formula(sentence, formulas, how)
    if (formula := _bare_formula(sentence)) is not None:
        return Answer(formula, f"{how}, formula")
    if number is not None:
        return Answer(number, f"{how}, number") if number else None
    if letter := _choice(sentence.strip(" *_")):
        return Answer(letter, f"{how}, choice")
    return None


def _number(sentence: str, after: int) -> str | None:
    """The last number past `after`, with those joined to it; "" where it is part of something that cannot be read."""
    found = [*SPACED_THOUSANDS.finditer(sentence, after)] or [*NUMBER.finditer(sentence, after)]
    if not found:
        return None
    start, end = found[-1].span()
    if ATTACHED.match(sentence, end) or not STANDS_ALONE.search(sentence, max(0, start - 40), start):
        return ""
    for earlier in reversed(found[:-1]):
        if not JOINED_NUMBERS.fullmatch(sentence, earlier.end(), start):
            break
        start = earlier.start()
    return sentence[start:end].strip()


def _bare_formula(sentence: str) -> str | None:
    """What follows the last "is" or ":", where it is a formula without delimiters and holds no word."""
    start = max((match.end() for match in IS.finditer(sentence)), default=0)
    rest = sentence[start:].strip().rstrip(".,;")
    words = re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}", re.sub(r"\\[a-zA-Z]+\s*\{[a-zA-Z ]*\}", "", rest))
    is_formula = re.search(r"[\\^=+*/<>_()\[\]]|\d[a-zA-Z]|\S\s*-", rest) and "\\boxed" not in rest
    return rest if is_formula and not words else None


def _choice(sentence: str) -> str | None:
    """A letter that opens the sentence ("A. Because …"), or else the last one that stands alone."""
    opening = re.match(r"([A-J])[.):]|\(([A-J])\)", sentence)
    found = opening or next(iter([*CHOICE.finditer(sentence)][-1:]), None)
    return (found.group(1) or found.group(2)) if found else None


def _formula(sentence: str, formulas: list[re.Match[str]], how: str) -> Answer:
    """The last formula, with those that commas or "and" join to it."""
    last = formulas[-1]
    texts = [_inside(last)]
    following = (
        FORMULA.match(sentence, joined.end()) if (joined := BETWEEN_FORMULAS.match(sentence, last.end())) else None
    )
    while following and len(formulas) == 1:
        texts.append(_inside(following))
        joined = BETWEEN_FORMULAS.match(sentence, following.end())
        following = FORMULA.match(sentence, joined.end()) if joined else None
    for earlier, later in zip(reversed(formulas[:-1]), reversed(formulas[1:]), strict=True):
        if not BETWEEN_FORMULAS.fullmatch(sentence, earlier.end(), later.start()):
            break
        texts.insert(0, _inside(earlier))
    percent = PERCENT_AFTER.match(sentence, last.end())
    text = ", ".join(texts) + (r"\%" if percent and len(texts) == 1 and "%" not in texts[0] else "")
    return Answer(text, f"{how}, formula")


def _inside(match: re.Match[str]) -> str:
    return next(text for text in match.groups() if text).strip()
