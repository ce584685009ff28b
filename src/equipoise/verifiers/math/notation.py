r"""One spelling for one notation: unicode, styling and synonyms of LaTeX, before anything is read.

`spell` rewrites what looks the same on the page (`\dfrac`, `\left(`, full-width digits, `\,`) into
one form. It never computes, and keeps what changes the meaning: brackets, signs, order. A text that
redefines LaTeX, or turns the direction of writing around, is refused: what it shows is not what it
says.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

LONGEST = 20_000  # characters; a longer answer is refused
DEEPEST = 50  # brackets within brackets

COMMANDS = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"), r"\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom"),
    **dict.fromkeys(("textbf", "textit", "textrm", "textnormal", "mbox", "hbox", "textsf", "texttt", "emph"), r"\text"),
    **dict.fromkeys(("mathrm", "mathbf", "mathit", "mathsf", "boldsymbol", "bm", "rm", "bf", "operatorname"), r"\text"),
    **dict.fromkeys(("leq", "leqslant", "leqq"), r"\le "),
    **dict.fromkeys(("geq", "geqslant", "geqq"), r"\ge "),
    "neq": r"\ne ",
    **dict.fromkeys(("approx", "simeq", "sim", "doteq"), r"\approx "),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("lbrace",), r"\{"),
    **dict.fromkeys(("rbrace",), r"\}"),
    **dict.fromkeys(("lbrack",), "["),
    **dict.fromkeys(("rbrack",), "]"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("degree", "textdegree"), r"^\circ "),
    "div": "/", "colon": ":", "lt": "<", "gt": ">", "le": r"\le ", "ge": r"\ge ", "ne": r"\ne ", "land": r"\text{and}",
    "lor": r"\text{or}", "infin": r"\infty ", "varnothing": r"\emptyset ", "dotsc": r"\ldots ", "dots": r"\ldots ",
    "cdots": r"\ldots ", "varphi": r"\phi ", "varepsilon": r"\epsilon ", "vartheta": r"\theta ",
}  # fmt: skip
_STYLING = """
    left right bigl bigr Bigl Bigr biggl biggr Biggl Biggr big Big bigg Bigg middle displaystyle textstyle
    scriptstyle quad qquad thinspace enspace limits nolimits mathstrut strut hfill noindent centering allowbreak
    nobreak
"""
STYLING = frozenset(_STYLING.split())
REFUSED = re.compile(
    r"\\(?:(?:re|provide)?newcommand|def|let|edef|gdef|xdef|input|include|csname|catcode|expandafter)"
)
ARROW = re.compile(
    r"\\(?:implies|impliedby|iff|therefore|because|(?:[Ll]ong)?(?:[Ll]eft)?[Rr]ightarrow)(?![a-zA-Z])|[→⇒⟹⟶⇔∴]"
)
LEFT, RIGHT = re.compile(r"\\left(?![a-zA-Z])"), re.compile(r"\\right(?![a-zA-Z])")
TURNED = re.compile("[\u202a-\u202e\u2066-\u2069]")
ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?)")  # of all its digits, unlike \sqrt 13
VARIANT = re.compile("[\ufe00-\ufe0f]")  # of a character's picture; other marks change what it says
SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "×": "*", "·": "*", "∙": "*", "⋅": "*", "÷": "/",
    "⁄": "/", "∕": "/", "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "°": r"^\circ ", "º": r"^\circ ",
    "≈": r"\approx ", "⟨": r"\langle ", "⟩": r"\rangle ", "’": "'", "‘": "'", "′": "'", "“": '"', "”": '"',
    "，": ",", "：": ":", "；": ";", "。": ".",
}  # fmt: skip
LAST_BACKSLASH = re.compile(r"(?<!\\)((?:\\\\)*)\\$")  # what is left of a space, `\ `, at the end
DOUBLED_BACKSLASH = re.compile(r"\\\\(?=[a-zA-Z{}(\[])")
TEXT_BEFORE_BRACE = re.compile(r"\\text\s*(?=\{)")
NOT_EQUAL = re.compile(r"!=|\\not\s*=")
WORD = re.compile(r"(?<![\\a-zA-Z])(?!(?:and|or)(?![a-zA-Z]))(?:[a-zA-Z]{2,}|[ap]\.\s?m\b)")
NUMBER_AND_WORDS = re.compile(r"((?:\\\$)?\s*-?\.?\d[\d.,:/]*(?:\s*\\%)?)(\s+[a-zA-Z][^{}\\]*)")
NUMBER_AS_TEXT = re.compile(r"\\text\{\s*(-?\.?\d[\d.,]*)\s*\}")
DEGREE = re.compile(r"\^\s*\{\s*\\circ\s*\}")
INFINITY = re.compile(r"(?<![a-zA-Z\\])(?:infinity|infty|inf)(?![a-zA-Z])")
PLAIN_NAME = re.compile(
    r"\\text\{[^{}]*\}|(?<![a-zA-Z\\.])(?:pi(?![a-zA-Z])|(?:sqrt|ln|log|exp|(?:arc)?(?:sin|cos|tan))(?=\s*\())"
)
PERCENT = re.compile(
    r"(?<=[\d}\s])(?:percent(?:age)?|pct)(?![a-zA-Z])|\\text\{\s*(?:percent(?:age)?|pct)\s*\}"
)
SPACES = re.compile(" {2,}")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
MONEY = re.compile(r"\$\s*(-?[\d.,\s]+)")  # "$18" opens nothing
MATH_BRACKET = re.compile(r"(?<!\\)\\[()\[\]]")
LOOSE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
INVERSE = re.compile(r"\\(sin|cos|tan)\s*\^\s*\{\s*-\s*1\s*\}")  # never 1/sin: that is written \csc
COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)|\s+", re.DOTALL)
TOKEN = re.compile(r"\\(?:[a-zA-Z]+|.)?", re.DOTALL)
REPEATING = re.compile(r"(?<!\d)(\d*+)\.(\d*+)\\(?:overline|bar)\s*(?=\{\s*\d)")
GROUPED = re.compile(  # what \frac and \sqrt apply to, and no index
    r"(?:(?<=\\frac)|(?<=\\sqrt)|(?<=\}))\{\s*[1-9]\d{0,2}(?:,\d{3})+\s*\}"
)
MARKED_CHOICE = re.compile(
    r"\A((?:\\text\s*\{\s*)?)([A-J])(?:\)|\.(?=\s*\}?\s*[-\d\\])"
    r"|:(?=\s*\}?\s[\s}]*[-\d\\])(?!.*(?<![a-zA-Z])[A-J]\s*:))",
    re.DOTALL,
)  # C) 14, C. 14, C: 14, and not A:5 or A: 5, B: 6
NAMED_CHOICE = re.compile(
    r"\s*(?:\\text\s*\{\s*)?(?:[Oo]ption|[Cc]hoice)\s+(\()?([A-J])(?(1)\))\s*\.?\s*(\})?\s*\.?\s*"
)
# {-}5 and 3{:}4 as on the page; 3+i4; powers within \text{cm^2}; \frac{\text{km}}{\text{h}}.
BRACED_MINUS = re.compile(r"(?:\A|(?<=[=(\[,<>]))(\s*)\{\s*-\s*\}(?=\s*(?:\.?\d|\\frac|\\sqrt))")
BRACED_COLON = re.compile(r"(?<=\d)\s*\{\s*:\s*\}\s*(?=\d)")
NUMBER_BEHIND_I = re.compile(r"(\s*-?\s*\d+(?:\.\d+)?\s*[-+])\s*i\s*(\d+(?:\.\d+)?)\s*\.?\s*")
POWER_IN_TEXT = re.compile(r"\\text\{([^{}^]*[a-zA-Z])\s*\^\s*(?:\{([23])\}|([23]))\s*\}")
UNIT = r"\\text\s*\{\s*([a-zA-Z][a-zA-Z ]*)\}\s*((?:\^\s*(?:\{-?\d\}|\d))?)\s*"
UNIT_FRACTION = re.compile(rf"([\d)}}])\s*\\frac\s*\{{\s*{UNIT}\}}\s*\{{\s*{UNIT}\}}")
CHOOSE = re.compile(r"\{([^{}\\]*)\\choose(?![a-zA-Z])([^{}\\]*)\}")
BOLD = re.compile(r"\A\*\*([^*]+)\*\*\Z")  # markdown, around all of it
THOUSANDS = re.compile(r"(?<=\d)\s*(?:\{\s*,\s*\}|,\s?\\!\s*)\s*(?=\d{3}(?!\d))")
AND = re.compile(
    r"\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}|(\\text\{[^{}]*\})|(?<![a-zA-Z\\{])(?:and|or)(?![a-zA-Z}])"
)
OF_A_LIST = "\x04"  # stands for "and" and "or"


class Unreadable(ValueError):
    """The text cannot be read as an answer; the message says why."""


class Senseless(Unreadable):
    """The text can be read and has no value that could be equalled: 1/0, a number past all size."""


# A group's responses share their gold answer, and most right ones its text.
@lru_cache(maxsize=1024)
def spell(text: str) -> str:
    """The text in one spelling; `Unreadable` if too long, deep, unbalanced or redefining."""
    if len(text) > LONGEST:
        raise Unreadable(f"{len(text)} characters, more than {LONGEST}")
    if REFUSED.search(text) or TURNED.search(text):
        raise Unreadable("it redefines what is shown")
    # a plain number, mostly: nothing of the following is in it
    if "\\" not in text and text.isascii():
        return _shallow(respell(text))
    if ARROW.search(text):
        raise Unreadable("arrows between its parts")
    if len(LEFT.findall(text)) != len(RIGHT.findall(text)):
        raise Unreadable(r"a \left or \right without the other")
    return _shallow(respell(text))


def respell(text: str) -> str:
    """The text in one spelling, whatever it is: a whole prompt too."""
    text = BOLD.sub(r"\1", _ascii(text.strip())).replace("~", " ")
    # Each rule is asked for by what it needs: most texts have next to none of it.
    if "\\" in text[-2:]:
        text = LAST_BACKSLASH.sub(r"\1", text)
    if r"\\" in text and "matrix" not in text and "array" not in text:
        text = DOUBLED_BACKSLASH.sub(r"\\", text)
    text = _without_delimiters(text)
    if "," in text:
        text = THOUSANDS.sub(",", text)
    if r"\choose" in text:
        text = CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = COMMAND.sub(_command, text)
    text = _choice(text)
    if "i" in text and (complex_number := NUMBER_BEHIND_I.fullmatch(text)):
        text = rf"{complex_number[1]}{complex_number[2]}i"
    if "{" in text and ("-" in text or ":" in text):
        text = BRACED_COLON.sub(":", BRACED_MINUS.sub(r"\1-", text))
    if "{" in text and "," in text:
        text = GROUPED.sub(lambda match: match.group().replace(",", ""), text)
    if r"\text" in text:
        text = TEXT_BEFORE_BRACE.sub(r"\\text", text)
        text = POWER_IN_TEXT.sub(lambda m: rf"\text{{{m[1]}}}^{m[2] or m[3]}", text)
        text = UNIT_FRACTION.sub(r"\1\\text{ \2}\3\\text{/\4}\5", text)
        text = _without_text_around(text)
    if "=" in text:
        text = NOT_EQUAL.sub(r"\\ne ", text).replace(">=", r"\ge ").replace("<=", r"\le ")
    if "and" in text or "or" in text:
        text = _listed(text)
    if r"\text" in text:
        text = NUMBER_AS_TEXT.sub(r" \1 ", text)
    if r"\circ" in text:
        text = DEGREE.sub(r"^\\circ ", text)
    if "^" in text:
        text = INVERSE.sub(r"\\arc\1 ", text)
    if "inf" in text:
        text = INFINITY.sub(r"\\infty ", text)
    if "pi" in text or "(" in text:
        text = PLAIN_NAME.sub(lambda m: m[0] if m[0][0] == "\\" else rf"\{m[0]} ", text)
    if r"\bar" in text or r"\overline" in text:
        text = REPEATING.sub(lambda m: rf"{m[1] or 0}.{m[2]}\overline", text)
    if "percent" in text or "pct" in text:
        text = PERCENT.sub(r"\\%", text)
    return SPACES.sub(" ", text).strip()


def _choice(text: str) -> str:
    """With brackets around the letter of a choice that is marked in another way: C) 14, Option C."""
    if named := NAMED_CHOICE.fullmatch(text):
        return f"({named[2]})" if ("{" in text) == (named[3] is not None) else text
    return MARKED_CHOICE.sub(r"\1(\2)", text)


def _without_text_around(text: str) -> str:
    """Without a \\text that is around all of it and holds no words, or them behind a number alone."""
    around = text.strip().removesuffix(".").rstrip()
    if not (around.startswith(r"\text{") and wraps(around[5:], "{", "}")):
        return text
    inside = around[6:-1].strip()
    # of two characters may be a choice: `C.`
    if (len(inside) > 2 or inside[:1].isdigit()) and not WORD.search(inside):
        return inside
    measured = NUMBER_AND_WORDS.fullmatch(inside)
    return rf"{measured[1]}\text{{{measured[2]}}}" if measured else text


def _listed(text: str) -> str:
    """With one sign for "and" and "or", and without the commas and spaces around them."""
    parts, start = [], 0
    for match in AND.finditer(text):
        if match.group(1) is None:  # other words in \\text are left alone
            parts.append(text[start : match.start()])
            start = match.end()
    if not parts:
        return text
    parts.append(text[start:])
    inner = [part.strip(" ,;\t\r\n") for part in parts[1:-1]]
    return OF_A_LIST.join([parts[0].rstrip(" ,;\t\r\n"), *inner, parts[-1].lstrip(" ,;\t\r\n")])


def _ascii(text: str) -> str:
    """Digits, signs and letters of other shapes; superscripts as exponents, ½ as a fraction."""
    if text.isascii():
        return CONTROL.sub(" ", text)
    text = unicodedata.normalize("NFC", text)  # = with a stroke through it is ≠
    text = ROOT.sub(r"\\sqrt{\1}", text)
    out: list[str] = []
    for run, char in enumerate(text):
        name = unicodedata.category(char)
        plain = unicodedata.decomposition(char)
        if char in SIGNS:
            out.append(SIGNS[char])
        elif name == "Nd":
            out.append(str(unicodedata.digit(char)))
        elif (
            plain.startswith("<super>") and (digit := unicodedata.normalize("NFKC", char)).isascii()
        ):
            again = run and unicodedata.decomposition(text[run - 1]).startswith("<super>")
            out.append(out.pop()[:-1] + digit + "}" if again else "^{" + digit + "}")
        elif plain.startswith("<sub>") and (digit := unicodedata.normalize("NFKC", char)).isascii():
            out.append("_{" + digit + "}")
        elif plain.startswith("<fraction>"):
            over, _, under = unicodedata.normalize("NFKC", char).partition("⁄")
            out.append(rf"\frac{{{over}}}{{{under or 1}}}")
        elif name == "Cf" or VARIANT.match(char):
            continue
        elif name == "Cc" and not char.isspace():
            out.append(" ")
        else:
            out.append(unicodedata.normalize("NFKC", char))
    return "".join(out)


def _without_delimiters(text: str) -> str:
    """Without the dollars and brackets that open mathematics; `\\$` stays: it is money."""
    if "$" in text:
        text = text.replace(r"\$", "\x01")
        money = MONEY.fullmatch(text)
        text = "\x01" + money.group(1) if money else text.replace("$", " ")
    if "\\" in text:
        text = MATH_BRACKET.sub(" ", text)
    return text.replace("\x01", r"\$")


def _command(match: re.Match[str]) -> str:
    token = match.group()
    if token.isspace() or token in {r"\,", r"\;", r"\:", "\\ ", r"\>", "\\\n"}:
        return " "
    if token == r"\!":
        return ""
    name = token[1:]
    if name in STYLING:
        return " "
    if name in COMMANDS:
        return COMMANDS[name]
    for prefix in ("quad", "qquad"):  # `\quadx` is met in the wild
        if name.startswith(prefix):
            return " " + name.removeprefix(prefix)
    return token


OPENING, CLOSING = "([{", ")]}"
BRACKET = re.compile(r"[()\[\]{}]")


def _shallow(text: str) -> str:
    """With doubled round brackets made single; raises where they do not match or nest too deep.

    Round and square brackets may close each other, as in `[0,1)`; braces only braces.
    """
    if BRACKET.search(text) is None:
        return text
    match: dict[int, int] = {}
    stack: list[int] = []
    skip = False
    for i, char in enumerate(text):
        if skip:
            skip = False
        elif char == "\\":
            skip = i + 1 < len(text) and text[i + 1] in "{}"
        elif char in OPENING:
            stack.append(i)
        elif char in CLOSING:
            if not stack or (text[stack[-1]] == "{") != (char == "}"):
                raise Unreadable("its brackets do not match")
            match[stack.pop()] = i
    if stack:
        raise Unreadable("its brackets do not match")
    doubled = {
        j for i, end in match.items() if text[i] == "(" and text[end] == ")" and match.get(i + 1) == end - 1
        and text[i + 1] == "(" and text[end - 1] == ")" for j in (i, end)
    }  # fmt: skip
    text = "".join(char for i, char in enumerate(text) if i not in doubled)
    depth = deepest = 0
    for char in text:
        depth += (char in OPENING) - (char in CLOSING)
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise Unreadable(f"its brackets nest {deepest} deep, more than {DEEPEST}")
    return text


def tight(text: str) -> str:
    """Without spaces, except between two digits, where they mean something."""
    return LOOSE_SPACE.sub("", text)


def split(text: str, at: str) -> list[str]:
    """The parts between the characters `at` outside all brackets, `\\{` and environments."""
    if not any(char in text for char in at):
        return [text.strip()]
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        char = text[i]
        if char == "\\":
            token = TOKEN.match(text, i).group()  # type: ignore[union-attr]
            depth += token in {r"\{", r"\begin", r"\langle", r"\lfloor", r"\lceil"}
            depth -= token in {r"\}", r"\end", r"\rangle", r"\rfloor", r"\rceil"}
            i += len(token)
            continue
        if char in OPENING:
            depth += 1
        elif char in CLOSING:
            depth -= 1
        elif depth == 0 and char in at:
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    return [*parts, text[start:].strip()]


def wraps(text: str, left: str, right: str) -> bool:
    """Whether the first bracket of the text closes at its end."""
    if not (text.startswith(left) and text.endswith(right)) or len(text) < len(left) + len(right):
        return False
    depth = i = 0
    while i < len(text):
        token = text[i : i + 2] if text[i] == "\\" else text[i]
        depth += token in {"(", "[", "{", r"\{"}
        depth -= token in {")", "]", "}", r"\}"}
        i += len(token)
        if depth == 0:
            return i == len(text)
    return False
