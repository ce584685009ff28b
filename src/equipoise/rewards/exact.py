r"""Exact values of answers without a computer algebra system: sums of rational multiples of √n, π, e, i and letters.

`value(text)` reads arithmetic (fractions, decimals, powers, roots, factorials, percent, scientific and mixed numbers,
thousands separators) into a normal form in which two texts are equal exactly if their forms are: √n for square-free n,
π and letters are independent over the rationals. Everything is `fractions.Fraction`; sizes are bounded.

Not covered, and refused with `Unreadable`: functions, division by sums with letters or roots, other roots than square,
powers that are not small integers. Nothing here is ever a float.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import factorial, gcd, isqrt

from equipoise.rewards.notation import Senseless, Unreadable, split

BITS = 40_000  # of a numerator or denominator
TERMS = 200
LARGEST_ROOT = 10**8  # √n is made square-free by trial division

Monomial = tuple[int, tuple[tuple[str, int], ...]]  # √n, then letters with exponents
Value = dict[Monomial, Fraction]
ONE: Monomial = (1, ())

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+(?![\da-zA-Z^_.]))?)|(?P<command>\\(?:[a-zA-Z]+|.))|(?P<sign>.))",
    re.DOTALL,
)
_GREEK = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi
    omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega hbar ell
"""
GREEK = frozenset(_GREEK.split())
FUNCTION_LETTERS = frozenset("fghFGH")


def value(text: str) -> Value:
    """The normal form of an expression in the spelling of `notation.spell`."""
    reader = _Reader(text)
    result = reader.sum()
    if reader.at < len(reader.tokens):
        raise Unreadable(f"{reader.tokens[reader.at]!r} is out of place")
    return result


def number(value: Value) -> Fraction | None:
    """The value where it is rational, else None."""
    if not value:
        return Fraction(0)
    return value[ONE] if len(value) == 1 and ONE in value else None


def letters(value: Value) -> set[str]:
    return {name for _, powers in value for name, _ in powers}


def same(a: Value, b: Value) -> bool | None:
    """Whether two values are equal. None: π and e together, of which nobody knows whether they are independent."""
    if a == b:
        return True
    return None if {"π", "e"} <= letters(a) | letters(b) else False


def proportional(a: Value, b: Value) -> Fraction | None:
    """c with a = c·b for a rational c, else None."""
    if not a or a.keys() != b.keys():
        return None
    c = next(iter(a.values())) / b[next(iter(a))]
    return c if all(a[m] == c * b[m] for m in a) else None


def add(a: Value, b: Value, sign: int = 1) -> Value:
    out = dict(a)
    for monomial, c in b.items():
        total = out.get(monomial, Fraction(0)) + sign * c
        if total:
            out[monomial] = _bounded(total)
        else:
            out.pop(monomial, None)
    if len(out) > TERMS:
        raise Unreadable(f"more than {TERMS} terms")
    return out


def multiply(a: Value, b: Value) -> Value:
    if len(a) * len(b) > 4 * TERMS:
        raise Unreadable(f"more than {TERMS} terms")
    out: Value = {}
    for (n, p), c in a.items():
        for (m, q), d in b.items():
            common = gcd(n, m)
            root, (powers, sign) = n * m // common**2, _times(p, q)
            out = add(out, {(root, powers): _bounded(c * d * common * sign)})
    return out


def _times(p: tuple[tuple[str, int], ...], q: tuple[tuple[str, int], ...]) -> tuple[tuple[tuple[str, int], ...], int]:
    """The product of two products of letters, and its sign: i² = −1."""
    exponents = dict(p)
    for name, e in q:
        exponents[name] = exponents.get(name, 0) + e
    sign = 1
    if "i" in exponents:
        sign = -1 if exponents["i"] % 4 in (2, 3) else 1
        exponents["i"] %= 2
    return tuple(sorted((name, e) for name, e in exponents.items() if e)), sign


def invert(a: Value) -> Value:
    if len(a) != 1:
        raise Senseless("a division by zero") if not a else Unreadable("a division by a sum")
    ((n, powers), c) = next(iter(a.items()))
    negated, sign = _times((), tuple((name, -e) for name, e in powers))
    return {(n, negated): _bounded(1 / (c * n)) * sign}


def power(a: Value, exponent: Fraction) -> Value:
    if exponent == Fraction(1, 2):
        return root(a)
    if exponent.denominator != 1:
        raise Unreadable("a fractional power")
    k = exponent.numerator
    if not a and k <= 0:
        raise Senseless("zero to the power of zero or less")
    if k < 0:
        a, k = invert(a), -k
    size = max((max(c.numerator.bit_length(), c.denominator.bit_length()) for c in a.values()), default=1)
    if (c := number(a)) is not None:
        if abs(c) not in (0, 1) and size * k > BITS:
            raise Senseless("a power too large to write out")
        return {ONE: c**k} if c else {}
    if k > 64 or (len(a) > 1 and k > 20) or size * k > BITS:
        raise Unreadable("a power too large to write out")
    out: Value = {ONE: Fraction(1)}
    for _ in range(k):
        out = multiply(out, a)
    return out


def root(a: Value) -> Value:
    c = number(a)
    if c is None:
        raise Unreadable("the root of more than a number")
    if c == 0:
        return {}
    n = abs(c.numerator) * c.denominator
    whole, rest = _square_free(n)
    i = (("i", 1),) if c < 0 else ()
    return {(rest, i): Fraction(whole, c.denominator)}


def _square_free(n: int) -> tuple[int, int]:
    """(k, m) with n = k²m and m square-free."""
    if (k := isqrt(n)) ** 2 == n:
        return k, 1
    if n > LARGEST_ROOT:
        raise Unreadable(f"the root of a number past {LARGEST_ROOT}")
    k, d = 1, 2
    while d * d <= n:
        while n % (d * d) == 0:
            n, k = n // (d * d), k * d
        d += 1
    return k, n


def _bounded(c: Fraction) -> Fraction:
    if max(c.numerator.bit_length(), c.denominator.bit_length()) > BITS:
        raise Senseless("a number too large to write out")
    return c


def decimal(text: str) -> Fraction:
    """A literal such as 12, .5 or 6.02e23, exactly."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > BITS // 4 or len(exponent) > 6 or abs(int(exponent or 0)) > BITS // 4:
        raise Senseless("a number too large to write out")
    whole, _, digits = mantissa.partition(".")
    return Fraction(int((whole + digits) or "0"), 10 ** len(digits)) * Fraction(10) ** int(exponent or 0)


class _Reader:
    """Recursive descent over tokens. Its state is the position."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.spaced: list[bool] = []
        for match in TOKEN.finditer(text.strip()):
            self.tokens.append(match.group().strip() or " ")
            self.spaced.append(match.group()[0].isspace())
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if (found := self.take()) != token:
            raise Unreadable(f"{found!r} where {token!r} should be")

    def sum(self) -> Value:
        self.depth += 1
        if self.depth > 100:
            raise Unreadable("nested too deep")
        sign = -1 if self.peek() == "-" else 1
        if self.peek() in {"+", "-"}:
            self.take()
        total = add({}, self.product(), sign)
        while self.peek() in {"+", "-"}:
            sign = -1 if self.take() == "-" else 1
            total = add(total, self.product(), sign)
        self.depth -= 1
        return total

    def product(self) -> Value:
        total = self.signed()
        while token := self.peek():
            if token == "*":
                self.take()
                total = multiply(total, self.signed())
            elif token == "/":
                self.take()
                total = multiply(total, invert(self.signed()))
            elif token == ":" or token in ")]}|+-,":
                break
            else:
                total = multiply(total, self.factor(total))
        return total

    def signed(self) -> Value:
        if self.peek() in {"-", "+"}:
            return multiply({ONE: Fraction(-1 if self.take() == "-" else 1)}, self.signed())
        return self.factor(None)

    def factor(self, left: Value | None) -> Value:
        """An atom with its powers, factorials and percent signs; a number followed by a fraction is a mixed number."""
        start = self.at
        base = self.atom(left)
        while (token := self.peek()) in {"^", "!", r"\%", "%"}:
            self.take()
            if token == "^":
                exponent = number(self.argument())
                if exponent is None:
                    raise Unreadable("a power that is not a number")
                if self.peek() == "^":
                    raise Senseless("a power of a power without brackets")
                base = power(base, exponent)
            elif token == "!":
                n = number(base)
                if n is None or n.denominator != 1 or n < 0:
                    raise Unreadable("a factorial of something else than a whole number")
                if n > 3000:
                    raise Senseless("a factorial too large to write out")
                base = {ONE: _bounded(Fraction(factorial(int(n))))}
            else:
                base = multiply(base, {ONE: Fraction(1, 100)})
        if left is None and self.tokens[start].isdigit() and self.at == start + 1:
            return self.mixed(base)
        return base

    def mixed(self, whole: Value) -> Value:
        """`7\\frac{3}{4}` and `1 1/2`: the whole and its proper fraction of positive numbers."""
        rest = self.tokens[self.at : self.at + 3]
        slash = len(rest) == 3 and rest[0].isdigit() and rest[1] == "/" and rest[2].isdigit() and self.spaced[self.at]
        if self.peek() != r"\frac" and not slash:
            return whole
        if slash:
            part = Fraction(int(rest[0]), int(rest[2]) or 1)
            proper = int(rest[2]) != 0
            self.at += 3
        else:
            read = number(self.atom(None))
            part, proper = read or Fraction(0), read is not None
        if proper and 0 < part < 1 and self.peek() not in {"^", "!"}:
            return add(whole, {ONE: part})
        raise Senseless("a number beside a fraction that is no proper part of one")

    def argument(self) -> Value:
        """What a command or a power applies to: a group, or one symbol (`\\frac12`: one digit)."""
        token = self.peek()
        if token == "{":
            self.take()
            inside = self.sum()
            self.expect("}")
            return inside
        if token[:1].isdigit() and len(token) > 1:
            self.tokens[self.at] = token[1:]
            return {ONE: Fraction(int(token[0]))} if int(token[0]) else {}
        if token in {"-", "+"}:
            self.take()
            return multiply({ONE: Fraction(-1 if token == "-" else 1)}, self.argument())
        return self.atom(None)

    def atom(self, left: Value | None) -> Value:
        token = self.take()
        if token[:1].isdigit() or token[:1] == ".":
            if left is not None:
                raise Unreadable("two numbers side by side")
            return self.literal(token)
        if token in {"(", "[", "{"}:
            inside = self.sum()
            self.expect({"(": ")", "[": "]", "{": "}"}[token])
            return inside
        if token == r"\frac":
            over = self.argument()
            return multiply(over, invert(self.argument()))
        if token == r"\sqrt":
            if self.peek() == "[":
                raise Unreadable("another root than the square root")
            return root(self.argument())
        if token == r"\pi":
            return self.letter("π")
        if token == r"\text":
            self.expect("{")
            name = self.take()
            self.expect("}")
            if name not in {"e", "i"}:
                raise Unreadable("words within an expression")
            return self.letter(name)
        if token.startswith("\\") and token[1:] in GREEK:
            return self.letter(token)
        if token.isascii() and token.isalpha() and len(token) == 1:
            return self.letter(token)
        raise Unreadable(f"{token!r} is not arithmetic" if token else "it ends too early")

    def literal(self, token: str) -> Value:
        c = decimal(token)
        if self.peek() == r"\overline" and "." in token:
            self.take()
            self.expect("{")
            period = self.take()
            self.expect("}")
            if not period.isdigit() or len(period) > 1000:
                raise Unreadable("a period that is not digits")
            decimals = len(token.partition(".")[2])
            c += Fraction(int(period), (10 ** len(period) - 1) * 10**decimals)
        return {ONE: c} if c else {}

    def letter(self, name: str) -> Value:
        if self.peek() == "_":
            self.take()
            name += "_" + self.subscript()
        rest = self.tokens[self.at : self.at + 3]
        if rest[:1] == ["("] and (name in FUNCTION_LETTERS or (rest[2:] == [")"] and name not in {"π", "e", "i"})):
            raise Unreadable("a function")
        if rest[:1] == ["'"]:
            raise Unreadable("a derivative")
        return {(1, ((name, 1),)): Fraction(1)}

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


def based(text: str) -> tuple[str, str] | None:
    """Digits and base of a literal such as `204_5`."""
    match = re.fullmatch(r"([0-9A-F]+)_\{?(?:\\text\{)?\s*(\d+)\s*\}*", text.replace(" ", ""))
    return (match.group(1).lstrip("0") or "0", match.group(2)) if match else None


def ratio(text: str) -> list[Value] | None:
    """The parts of `a:b:c`; None where the text is no ratio, or a time of day such as 12:00."""
    parts = split(text, ":")
    if len(parts) < 2 or any(not part or re.fullmatch(r"0\d", part) for part in parts):
        return None
    return [value(part) for part in parts]
