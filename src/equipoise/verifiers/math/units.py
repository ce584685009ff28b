r"""Units behind a number: read so that 17 m is 17, and 17 m is not 17 cm.

`unit_of` gives what a known unit measures (`measures`), "" for any other words ("apples"), and None
where the words are no unit because they change what the number says: words that count ("millions",
"fifths"), join or compare ("or 8", "less").
"""

from __future__ import annotations

import re

from equipoise.verifiers.math.measures import NAMES, measure_of

UNITS = {word: name for name, words in NAMES.items() for word in words.split()}
_SHORT = "m s g h l in min"
# of ampere, newton, volt and their kin: no other letter is a unit by itself
CAPITALS = frozenset("ACFJKLNVW")
SHORT = frozenset(_SHORT.split())  # letters and words that are a unit only where the text says so
_NO_UNIT = """
    or and not nor but to mod modulo if except vs plus minus times over through pi negative base squared cubed factorial
    percent permille is are was be isn no i e x than wait actually instead rather maybe either between approximately
    about roughly nearly almost around equal equals more less fewer most least above below under off divided multiplied
    so hence thus then by choose root power approx gross doubled tripled halved
    mega giga tera inverse reciprocal factorials percentages bps
"""
# Words that count, and so change the number before them, whatever their ending:
# millions, tenths, ten-thousandth.
_CARDINALS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion
    quadrillion quintillion sextillion septillion octillion googol myriad lakh crore mn bn tn grand
"""
_ORDINALS = """
    first third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth
    seventeenth eighteenth nineteenth twentieth thirtieth fortieth fiftieth sixtieth seventieth eightieth ninetieth
    hundredth thousandth millionth billionth trillionth
"""
_SHARES = "half halves quarter quarters dozen dozens score scores double triple twice thrice couple fold twofold"
COUNTING = frozenset(
    [word + ending for word in (_CARDINALS + _ORDINALS).split() for ending in ("", "s", "es")]
    + _SHARES.split()
)
NO_UNIT = frozenset(_NO_UNIT.split()) | COUNTING
UNIT_AFTER = re.compile(
    r"(?:\^\\circ\s*(?:\\text\{\s*[CF]\s*\}|[CF](?![a-zA-Z]))?"
    r"|(?:(?:[*/]\s*)?\\text\{[^{}]*\}(?:\s*\^\s*(?:\{-?\d\}|\d))?\s*)+"
    r"|(?<=[\d\s}).])(?:/\s*)?(?:[a-zA-Z]{2,}+\.?(?:\s*\^\s*(?:\{\d\}|\d))?[\s/]*+"
    r"|m(?:\s*\^\s*(?:\{[23]\}|[23]))(?![\d\w]))++)\s*$"
)

# A power belongs to a unit that is measured: cm^2, and not apples^2 or cm^1.
LENGTHS_AND_TIMES = "m cm mm km inch foot yard mile s min hour year"
MEASURED = sorted(word for name in LENGTHS_AND_TIMES.split() for word in NAMES[name].split())
POWERED = re.compile(
    rf"(?<![a-zA-Z])(?:units?|{'|'.join(MEASURED)})\.?\s*\}}?\s*\^\s*\{{?-?(?:[23]|(?<=-)1)\b",
    re.IGNORECASE,
)


def unit_of(text: str) -> str | None:
    if text.lstrip().startswith("^") and "circ" in text:
        letter = re.search("[CF]", text)
        return {"C": "celsius", "F": "fahrenheit"}[letter.group()] if letter else "degree"
    power = re.findall(r"\^\s*\{?(-?\d)", text)
    # each power on a unit that is measured, and one rate at most
    if len(power) != len(POWERED.findall(text)) or text.count("/") > 1:
        return None
    quoted = r"\text" in text
    text = re.sub(r"(?<![a-zA-Z])([ap])\.\s?m\.?(?![a-zA-Z])", r"\1m", text)  # 9 a.m.
    plain = re.sub(r"\\text(?![a-zA-Z])|\^\s*\{?-?\d\}?|[{}.]", " ", text).strip()
    written = re.sub(r"^[*/]\s*", "", plain).split()  # 5·cm, 5/hour
    words = [word.lower() for word in written]
    if (
        not words
        or len(words) > 6
        or not all(map(_may_name_a_unit, written))
        or words[-1].endswith("/")
    ):
        return None
    if (
        not quoted
        and not power
        and (all(word in SHORT for word in words) or any(map(_may_be_a_product, words)))
    ):
        return None
    over, slash, under = " ".join(words).partition("/")
    if slash and over.strip() == under.strip():  # m/m is no unit, it cancels
        return None
    return measure_of(re.sub(r"\\text(?![a-zA-Z])|[{}.]", " ", text))


def _may_be_a_product(word: str) -> bool:
    """Whether letters that nothing marks as text may be variables: ab is a·b, and km is a unit."""
    return any(
        len(part) < 3 and part not in UNITS and part != "of"
        for part in re.split(r"[/'-]", word)
        if part
    )


def _may_name_a_unit(word: str) -> bool:
    parts = re.split(r"[/'-]", word)
    letters = [part for part in parts if len(part) == 1]
    return (
        bool(re.fullmatch(r"/?[a-zA-Z]+(?:[/'-][a-zA-Z]+)*[/']?", word))
        and NO_UNIT.isdisjoint(part.lower() for part in parts)
        and all(letter in UNITS or letter in CAPITALS for letter in letters)
    )
