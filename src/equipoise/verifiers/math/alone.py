r"""Whether a box stands alone, or is part of a number or an expression around it: -\boxed{7}, \boxed{7} million.

Looked at is what stands right before the box and right behind it, on its line and in its formula. An equation that
the box completes (12 - \boxed{7} = 5, 21 = 3\cdot\boxed{7}) is no expression around it, nor are words, units and
letters behind it: \boxed{7}x^3 answers what the coefficient is.
"""

from __future__ import annotations

import re
from functools import lru_cache

BEFORE = 60  # characters
DELIMITERS = r"(?:[ \t*_~$]|\\[ ,;:!()\[\]])"
# Words that multiply or divide the number before them; not the million-dollar houses.
MULTIPLES = re.compile(
    r"\b(hundred|thousand|(?:m|b|tr|quadr|quint|sext|sept|oct)illion|googol|myriad|lakh|crore|dozen)s?(?![\w-])",
    re.I,
)
SCALES = (
    rf"(?i:(?P<multiple>{MULTIPLES.pattern})|(?:mn|bn|tn|squared|cubed|factorials?|per[ -]?mille?|basis\ points"
    r"|thirds|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|million|billion)ths"
    r"|and\ (?:a|one)[ -](?:half|third|quarter|fourth|fifth|tenth))(?![\w-]))"
)
OPERATOR = r"(?:[-+−/×·÷]|\\(?:cdot|times|div|ast)(?![a-zA-Z]))"
VALUE = r"\\(?:[dtc]?frac|sqrt|pi|left|right|big[lr]?|cdot|times|div|binom|sin|cos|tan|ln|log|exp)(?![a-zA-Z])"
OPERAND = rf"(?:{VALUE}|[\d.({{]|[a-zA-Z](?![a-zA-Z]))"
REST = rf"(?:{VALUE}|\\[,;:! ]|[\d.,+*/^(){{}}−!_ \t-]|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))"
FORMULA_ENDS = r"(?=(?:\$|\\\)|\\\]|\\end|\n|\Z))"

# A sign with no operand before it, digits, an opened fraction, root, exponent or function.
PART_BEFORE = re.compile(
    r"(?:[=<>≈(\[]|\\(?:approx|leq?|geq?)(?![a-zA-Z])|(?<![\w)}\]])\$|\\[\[(])\s*(?:[-−±]|\\pm)\s*\Z"
    r"|(?<![\w\\])(?:\d[\d,]*|\d*\.\d*)(?<![,])\Z"
    r"|\\(?:[dtc]?frac\s*(?:\{[^{}]*\})?|sqrt\s*(?:\[[^\[\]]*\])?)\s*\{\s*\Z"
    rf"|(?<!\w)(?i:negative|minus)\s{DELIMITERS}*\Z"
)
# The same, unless the box completes an equation: an operator behind an operand, a power, a function.
OPERATED = re.compile(
    r"(?:(?<![a-zA-Z])[a-zA-Z]|[\d)}])[ \t]*(?:[+×·÷]|\\(?:cdot|times|div)(?![a-zA-Z]))\s*\Z"
    r"|[\d)][ \t]*/[ \t]*\Z"
    r"|\^\s*\{?\s*\Z|\\[dt]?binom\s*\{\s*\Z|\\[lr]?(?:floor|ceil|vert)\s*\Z"
    r"|\\(?:arc)?(?:sin|cos|tan|ln|log|exp)\s*(?:_\s*(?:\{\w+\}|\w))?\s*\(?\s*\Z"
)
NUMBER_IS = re.compile(r"\d\s*=[^=$\n]*\Z")
RELATION_BEHIND = re.compile(r"[^$\n=<>]{0,60}?(?:[=<>≈]|\\(?:approx|leq?|geq?|equiv)(?![a-zA-Z]))")

# A power, digits (7.00 is 7), an operator with an operand behind it, or a factor, up to the end of the formula.
PART_BEHIND = re.compile(
    rf"""
    \s*\^\s*\{{?\s*(?:-?\s*\d|\(|-?\s*\\(?:[dt]?frac|sqrt|pi)|[abd-np-z]\s*(?![\sa-zA-Z]*[a-zA-Z]))
    |\s*(?:\\cdot|\\times|[×*])\s*10\s*\^
    |{DELIMITERS}*+(?:\\(?:text\w*|math\w+)\s*\{{\s*)?(?:{SCALES}|‰|\\permil|\\textperthousand)
    |[ \t]*(?:{OPERATOR}[ \t]*(?={OPERAND})|\*[ \t]*(?=[\d(\\])|\*\*(?=[\d(])){REST}{{1,60}}{FORMULA_ENDS}
    |!\s*(?:(?=\$|\\\)|\\\])|[-+*/^]\s*[\da-z])
    |(?P<digits>\{{?,\}}?(?:\\!)?\d{{3}}(?!\d)|\.(?!0+(?!\d))\d|\d)
    |(?:[ \t]*\\(?:[dtc]?frac|sqrt|pi)(?![a-zA-Z])|(?:\\left)?\()(?={REST}{{0,60}}{FORMULA_ENDS})
    |[ \t]+\d+/\d
    """,
    re.VERBOSE,
)
CHOICE_OR_WORD = re.compile(r"(?:\\text\w*\s*\{\s*)?(?:\(?[A-J]\)?\.?[\s}]*\Z|\(?[a-zA-Z]{2})")


@lru_cache(maxsize=2048)
def multiples(prompt: str) -> tuple[str, ...]:
    r"""The words of a prompt that counts in dozens or millions: there \boxed{7} dozen may answer 7."""
    return tuple(sorted({word.lower() for word in MULTIPLES.findall(prompt)}))


def is_part(
    text: str, start: int, end: int, content: str, after: int = 0, counted_in: tuple[str, ...] = ()
) -> bool:
    """Whether what stands right around the box from `start` to `end` belongs to its number.

    `after`: where a box before it ends, whose list it may be on; `counted_in`: `multiples` of the prompt.
    """
    if CHOICE_OR_WORD.match(content):
        return False
    before = text[max(after, start - BEFORE) : start]
    if PART_BEFORE.search(before):
        return True
    if OPERATED.search(before):
        return not (NUMBER_IS.search(before) or RELATION_BEHIND.match(text, end))
    behind = PART_BEHIND.match(text, end)
    if behind is None or (
        behind["multiple"] and behind["multiple"].lower().removesuffix("s") in counted_in
    ):
        return False
    return behind["digits"] is None or content[-1:].isdigit()
