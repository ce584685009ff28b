r"""The grammar of one expression, over any algebra: one meaning for exact arithmetic and SymPy.

Read as people write answers: juxtaposition multiplies and binds like `*` (so 1/2x is x/2), a whole
number before a proper fraction is a mixed number (7\frac{3}{4}, 1 1/2), `\frac12` is 1/2, a
function without brackets takes the factors up to the next sign or function (`2 \sin b \cos a`), and
a letter before a bracketed letter or number is a function (f(x), P(2)). What can be read in two
ways is refused: two numbers side by side, 2^3^2, \sin \pi/6, 2\frac{3}{2}.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

from equipoise.verifiers.math.notation import Senseless, Unreadable

T = TypeVar("T")

DIGITS = 4_000  # of a literal; Python refuses to read more than 4,300
EXPONENT = 10_000  # of a literal in scientific notation
DEEPEST = 50

TOKEN = re.compile(
    r"\s*(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+(?![\da-zA-Z^_.]))?|\\(?:[a-zA-Z]+|.)|.)",
    re.DOTALL,
)
_GREEK = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega
    Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega hbar ell
"""
GREEK = frozenset(_GREEK.split())
_FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp"
FUNCTIONS = frozenset("\\" + name for name in _FUNCTIONS.split())
FUNCTION_LETTERS = frozenset("fghFGH")
CLOSING = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "|": "|"}
_ACCENTS = "dot ddot overline bar hat vec tilde widehat widetilde overrightarrow"
ACCENTS = frozenset("\\" + name for name in _ACCENTS.split())
ENDS = frozenset([*CLOSING.values(), "+", "-", ",", ":", ""])


class Algebra(Protocol[T]):
    """What the grammar must know of values; an operation out of reach raises `Unreadable`."""

    def number(self, c: Fraction) -> T: ...
    def letter(self, name: str) -> T: ...
    def rational(self, a: T) -> Fraction | None: ...
    def add(self, a: T, b: T) -> T: ...
    def multiply(self, a: T, b: T) -> T: ...
    def invert(self, a: T) -> T: ...
    def power(self, a: T, exponent: T) -> T: ...
    def root(self, a: T, index: T | None) -> T: ...
    def factorial(self, a: T) -> T: ...
    def function(self, name: str, *arguments: T) -> T: ...


def read(text: str, algebra: Algebra[T]) -> T:
    """The value of an expression in the spelling of `notation.spell`."""
    reader = _Reader(text, algebra)
    result = reader.sum()
    if reader.at < len(reader.tokens):
        raise Unreadable(f"{reader.peek()!r} is out of place")
    return result


class _Nothing:
    """The algebra in which everything is possible and nothing is computed."""

    def number(self, c: Fraction) -> None: ...
    def letter(self, name: str) -> None: ...
    def rational(self, a: None) -> Fraction | None:
        return Fraction(1, 2)

    def add(self, a: None, b: None) -> None: ...
    def multiply(self, a: None, b: None) -> None: ...
    def invert(self, a: None) -> None: ...
    def power(self, a: None, exponent: None) -> None: ...
    def root(self, a: None, index: None) -> None: ...
    def factorial(self, a: None) -> None: ...
    def function(self, name: str, *arguments: None) -> None: ...


def follows_grammar(text: str) -> bool:
    """Whether the grammar can read the text, whatever its value."""
    try:
        read(text, _Nothing())
    except Unreadable:
        return False
    return True


def decimal(text: str) -> Fraction:
    """A literal such as 12, .5 or 6.02e23, exactly."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > DIGITS or len(exponent) > 7 or abs(int(exponent or 0)) > EXPONENT:
        raise Senseless("a number too large to write out")
    whole, _, digits = mantissa.partition(".")
    return Fraction(int((whole + digits) or "0"), 10 ** len(digits)) * Fraction(10) ** int(
        exponent or 0
    )


class _Reader(Generic[T]):
    """Recursive descent over tokens. Its state is the position."""

    def __init__(self, text: str, algebra: Algebra[T]) -> None:
        found = [match.group() for match in TOKEN.finditer(text.strip())]
        self.tokens = [token.strip() for token in found]
        self.spaced = [token[0].isspace() for token in found]
        self.algebra = algebra
        self.at = self.depth = 0
        self.absolute = 0  # how many |…| are open: a bar then closes

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if (found := self.take()) != token:
            raise Unreadable(f"{found!r} where {token!r} should be")

    def signed_by(self, sign: str, value: T) -> T:
        if sign == "-":
            return self.algebra.multiply(self.algebra.number(Fraction(-1)), value)
        return value

    def sum(self) -> T:
        if self.peek() in {"+", "-"}:
            total = self.signed_by(self.take(), self.product())
        else:
            total = self.product()
        while self.peek() in {"+", "-"}:
            total = self.algebra.add(total, self.signed_by(self.take(), self.product()))
        return total

    def product(self) -> T:
        start = self.at
        total = self.signed()
        while not self.ended():
            operator = self.peek()
            if operator == "{" and self._digits_meet(start):
                raise Senseless("two numbers side by side: 54{1} is printed as 541")
            if operator in {"*", "/"}:
                self.take()
                start = self.at
            following = self.signed() if operator in {"*", "/"} else self.factor(first=False)
            total = self.algebra.multiply(
                total, self.algebra.invert(following) if operator == "/" else following
            )
        return total

    def _digits_meet(self, start: int) -> bool:
        """Whether the brace here opens between two digits; `start`: of the adjacent factors."""
        one_group = "}" not in self.tokens[start : self.at - 1]
        in_braces = self.tokens[start] == "{" and self.tokens[self.at - 1] == "}" and one_group
        before = self.tokens[self.at - 2] if in_braces else self.tokens[self.at - 1]
        after = "".join(self.tokens[self.at + 1 : self.at + 2])
        return before[-1].isdigit() and after[:1].isdigit()

    def ended(self) -> bool:
        token = self.peek()
        return (token in ENDS and token != "|") or (token == "|" and self.absolute > 0)

    def sign(self) -> str:
        """The signs that stand here, as one: - - is +."""
        minus = 0
        while self.peek() in {"-", "+"}:
            minus += self.take() == "-"
        return "-" if minus % 2 else "+"

    def signed(self) -> T:
        return self.signed_by(self.sign(), self.factor(first=True))

    def factor(self, first: bool) -> T:
        """An atom with its powers, factorials, percent signs; `first`: no factor before it."""
        start = self.at
        base = self.atom(first)
        if first and self.tokens[start].isdigit() and self.at == start + 1:
            base = self.mixed(base)
        while (token := self.peek()) in {"^", "!", r"\%", "%"}:
            self.take()
            if token == "^":
                exponent = self.argument()
                if self.peek() == "^":
                    raise Senseless("a power of a power without brackets")
                base = self.algebra.power(base, exponent)
            elif token == "!":
                if self.peek() == "!":
                    raise Senseless("a factorial of a factorial without brackets")
                base = self.algebra.factorial(base)
            else:
                base = self.algebra.multiply(base, self.algebra.number(Fraction(1, 100)))
        return base

    def mixed(self, whole: T) -> T:
        """7\\frac{3}{4} or 1 1/2: a whole number and a proper fraction; else the number alone."""
        rest = self.tokens[self.at : self.at + 3]
        slash = (
            len(rest) == 3
            and rest[0].isdigit()
            and rest[1] == "/"
            and rest[2].isdigit()
            and self.spaced[self.at]
        )
        if self.peek() != r"\frac" and not slash:
            return whole
        if slash:
            self.at += 3
            over, under = decimal(rest[0]), decimal(rest[2])
            if under == 0:
                raise Senseless("a division by zero")
            part: Fraction | None = over / under
        else:
            fraction = self.atom(first=True)
            part = self.algebra.rational(fraction)
            if part is None:
                return self.algebra.multiply(whole, fraction)
        if part is None or not 0 < part < 1 or self.peek() in {"^", "!"}:
            raise Senseless("a number beside a fraction that is no proper part of one")
        amount = self.algebra.rational(whole)
        if not amount:
            raise Senseless("0 beside a fraction: two numbers")
        return self.algebra.number(amount + part)

    def argument(self) -> T:
        """What a command or a power applies to: a group, or one symbol (`\\frac12`: one digit)."""
        token = self.peek()
        if token == "{":
            return self.bracketed(self.take())
        if token[:1].isdigit() and len(token) > 1:
            self.tokens[self.at] = token[1:]
            return self.algebra.number(Fraction(int(token[0])))
        if token in {"-", "+"}:
            return self.signed_by(self.sign(), self.argument())
        return self.atom(first=True)

    def bracketed(self, opening: str) -> T:
        closed, self.absolute = self.absolute, 1 if opening == "|" else 0
        inside = self.sum()
        self.absolute = closed
        self.expect(CLOSING[opening])
        return inside

    def atom(self, first: bool) -> T:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable(f"nested more than {DEEPEST} deep")
        value = self.simple(self.take(), first)
        self.depth -= 1
        return value

    def simple(self, token: str, first: bool) -> T:
        if token[:1].isdigit() or (token[:1] == "." and len(token) > 1):
            if not first and self.tokens[self.at - 2] not in {")", "]"}:
                raise Senseless("a number beside what it could belong to")
            return self.literal(token)
        if token in {"(", "[", "{"}:
            return self.bracketed(token)
        if token in CLOSING:
            return self.algebra.function(
                {"|": "abs", r"\lfloor": "floor", r"\lceil": "ceiling"}[token],
                self.bracketed(token),
            )
        if token == r"\frac":
            if derivative := self.derivative():
                return self.algebra.letter(derivative)
            over = self.argument()
            return self.algebra.multiply(over, self.algebra.invert(self.argument()))
        if token == r"\binom":
            return self.algebra.function("binomial", self.argument(), self.argument())
        if token == r"\sqrt":
            index = self.bracketed(self.take()) if self.peek() == "[" else None
            return self.algebra.root(self.argument(), index)
        if token in FUNCTIONS:
            return self.function(token)
        if token == r"\text":
            self.expect("{")
            name = self.take()
            self.expect("}")
            if not (name.isascii() and name.isalpha() and len(name) == 1):
                raise Unreadable("words within an expression")
            return self.letter(name)
        if token == r"\pi":
            return self.letter("π")
        if token in ACCENTS:
            return self.letter(f"{token[1:]} {self.subscript()}")
        if (token.startswith("\\") and token[1:] in GREEK) or (
            token.isascii() and token.isalpha() and len(token) == 1
        ):
            return self.letter(token)
        raise Unreadable(f"{token!r} is not arithmetic" if token else "it ends too early")

    def literal(self, token: str) -> T:
        c = decimal(token)
        if self.peek() == r"\overline" and "." in token:
            self.take()
            self.expect("{")
            period = self.take()
            self.expect("}")
            if not period.isdigit() or len(period) > DIGITS:
                raise Unreadable("a period that is not digits")
            c += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(token.partition(".")[2]))
        return self.algebra.number(c)

    def function(self, name: str) -> T:
        base: list[T] = []
        exponent: T | None = None
        while self.peek() in {"^", "_"}:
            if self.take() == "_":
                base.append(self.argument())
            else:
                exponent = self.argument()
        if (base and name != r"\log") or len(base) > 1:
            raise Unreadable("a function with an index")
        if exponent is not None and (self.algebra.rational(exponent) or Fraction(0)) <= 0:
            raise Senseless("a negative power of a function: an inverse or a reciprocal")
        if self.peek() in {"(", "{", "["}:
            inside = self.bracketed(self.take())
        else:
            inside = self.factor(first=True)
            while not self.ended() and self.peek() not in {"*", "/", *FUNCTIONS}:
                inside = self.algebra.multiply(inside, self.factor(first=False))
            if self.peek() == "/":
                raise Senseless("a function without brackets before a slash")
        value = self.algebra.function(name[1:], inside, *base)
        return value if exponent is None else self.algebra.power(value, exponent)

    def letter(self, name: str) -> T:
        if self.peek() == "_":
            self.take()
            name += "_" + self.subscript()
        while self.peek() == "'":
            name += self.take()
        if self.tokens[self.at : self.at + 3] == ["^", "{", r"\prime"]:
            self.take()
            name += "'" * self.subscript().count("prime")
        rest = self.tokens[self.at : self.at + 3]
        if (
            rest[:1] == ["("]
            and name not in {"π", "e", "i"}
            and (name in FUNCTION_LETTERS or rest[2:] == [")"])
        ):
            return self.algebra.function(f"of {name}", self.bracketed(self.take()))
        return self.algebra.letter(name)

    def derivative(self) -> str:
        """dx/dt written as a fraction is a name, whose d's do not cancel; takes it if there."""
        start = self.at
        if self.tokens[start : start + 2] == ["{", "d"]:
            over, under = self.subscript(), self.subscript() if self.peek() == "{" else ""
            if len(under) > 1 and under[0] == "d" and not set(under) & set("+-*/(,"):
                return f"{over}/{under}"
        self.at = start
        return ""

    def subscript(self) -> str:
        if self.peek() != "{":
            return self.take()
        self.take()
        depth, out = 1, []
        while depth:
            token = self.take()
            if not token:
                raise Unreadable("it ends too early")
            depth += (token == "{") - (token == "}")
            out.append(token)
        return "".join(out[:-1])
