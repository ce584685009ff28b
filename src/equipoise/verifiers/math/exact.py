r"""Exact values without computer algebra: sums of rational multiples of √n, π, e, i, letters.

`value(text)` reads an expression into a normal form. Two texts are equal exactly if their forms
are, for √n with n square-free, π and letters are independent over the rationals. Every coefficient
is a `fractions.Fraction`, and every size is bounded.

Not covered, and refused with `Unreadable`: functions, division by sums, other roots than square,
powers that are not small whole numbers. What has no value, or none that could be written out, is
refused with `Senseless`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil, comb, factorial, floor, gcd, isqrt

from equipoise.verifiers.math.grammar import read
from equipoise.verifiers.math.notation import Senseless, Unreadable, split

BITS = 40_000  # of a numerator or denominator
TERMS = 200
PRODUCT_BITS = 200_000  # of all coefficients that a product of two sums computes
LARGEST_FACTORIAL = 3_000
LARGEST_ROOT = 10**6  # √n is made square-free by trial division

PRINTED = re.compile(
    r"[-+]?\s?\d*(\.\d*)?(?:[eE]([-+]?\d+)|\s*\*\s*10\s*\^\s*\{?\s*(-?\d+)\s*\}?)?"
)
CONSTANTS = {
    "π": Fraction("3.141592653589793238462643383279502884197169399375105820974944592307816406"),
    "e": Fraction("2.718281828459045235360287471352662497757247093699959574966967627724076630"),
}

Monomial = tuple[int, tuple[tuple[str, int], ...]]  # √n, then letters with exponents
Value = dict[Monomial, Fraction]
ONE: Monomial = (1, ())


def number(value: Value) -> Fraction | None:
    """The value where it is rational, else None."""
    if not value:
        return Fraction(0)
    return value[ONE] if len(value) == 1 and ONE in value else None


def letters(value: Value) -> set[str]:
    return {name for _, powers in value for name, _ in powers}


def same(a: Value, b: Value) -> bool | None:
    """Whether two values are equal; None with both π and e: their independence is unknown."""
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
    if len(a) * len(b) > 4 and len(a) * len(b) * (_bits(a) + _bits(b)) > PRODUCT_BITS:
        raise Unreadable("a product too long to write out")
    out: Value = {}
    for (n, p), c in a.items():
        for (m, q), d in b.items():
            common = gcd(n, m)
            root, (powers, sign) = n * m // common**2, _times(p, q)
            key = (root, powers)
            out[key] = _bounded(out.get(key, Fraction(0)) + c * d * common * sign)
    return {key: c for key, c in out.items() if c}


def _times(
    p: tuple[tuple[str, int], ...], q: tuple[tuple[str, int], ...]
) -> tuple[tuple[tuple[str, int], ...], int]:
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
    size = _bits(a)
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


@lru_cache(maxsize=1024)
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


def _bits(a: Value) -> int:
    """Of the longest numerator or denominator."""
    return max(
        (max(c.numerator.bit_length(), c.denominator.bit_length()) for c in a.values()), default=1
    )


def _bounded(c: Fraction) -> Fraction:
    if max(c.numerator.bit_length(), c.denominator.bit_length()) > BITS:
        raise Senseless("a number too large to write out")
    return c


class Exact:
    """The algebra of values, as the grammar needs it."""

    def number(self, c: Fraction) -> Value:
        return {ONE: _bounded(c)} if c else {}

    def letter(self, name: str) -> Value:
        return {(1, ((name, 1),)): Fraction(1)}

    def rational(self, a: Value) -> Fraction | None:
        return number(a)

    def add(self, a: Value, b: Value) -> Value:
        return add(a, b)

    def multiply(self, a: Value, b: Value) -> Value:
        return multiply(a, b)

    def invert(self, a: Value) -> Value:
        return invert(a)

    def power(self, a: Value, exponent: Value) -> Value:
        e = number(exponent)
        if e is None:
            raise Unreadable("a power that is not a number")
        return power(a, e)

    def root(self, a: Value, index: Value | None) -> Value:
        if index is not None and number(index) != 2:
            raise Unreadable("another root than the square root")
        return root(a)

    def factorial(self, a: Value) -> Value:
        n = number(a)
        if n is None or n.denominator != 1 or n < 0:
            raise Unreadable("a factorial of something else than a whole number")
        if n > LARGEST_FACTORIAL:
            raise Senseless("a factorial too large to write out")
        return {ONE: _bounded(Fraction(factorial(int(n))))}

    def function(self, name: str, *arguments: Value) -> Value:
        c = number(arguments[0])
        if name == "abs" and c is not None:
            return self.number(abs(c))
        if name in {"floor", "ceiling"} and c is not None:
            return self.number(Fraction(floor(c) if name == "floor" else ceil(c)))
        k = number(arguments[1]) if name == "binomial" else None
        if (
            c is not None
            and k is not None
            and c.denominator == k.denominator == 1
            and 0 <= k <= c <= LARGEST_FACTORIAL
        ):
            return self.number(Fraction(comb(int(c), int(k))))
        raise Unreadable("a function")


EXACT = Exact()


@lru_cache(maxsize=1024)
def value(text: str) -> Value:
    """The normal form of an expression in the spelling of `notation.spell`."""
    return read(text, EXACT)


def printed_step(text: str) -> Fraction | None:
    """One unit in the last digit that a decimal shows, 1/100 for 0.33; None for no decimal."""
    match = PRINTED.fullmatch(text)
    if match is None or not re.match(r"[-+\s]*\.?\d", text):
        return None
    digits, power = len(match.group(1) or "."), match.group(2) or match.group(3) or "0"
    return Fraction(10) ** (int(power) - digits + 1) if len(power) < 6 else None


def shows(number: Fraction, printed: Fraction, step: Fraction) -> bool:
    """Whether a decimal of that step is the number, rounded or cut off.
    0 shows no digit of another number.
    """
    if printed == 0:
        return number == 0
    cut = abs(number) - abs(printed)
    return abs(number - printed) * 2 <= step or (0 <= cut < step and number * printed >= 0)


def approximate(value: Value) -> Fraction | None:
    """A real value to about sixty digits; None where it holds i or letters."""
    total = Fraction(0)
    for (root_of, powers), c in value.items():
        for name, exponent in powers:
            if name not in CONSTANTS or abs(exponent) > 64:
                return None
            c *= CONSTANTS[name] ** exponent
        total += c * Fraction(isqrt(root_of * 10**120), 10**60)
    return total


def based(text: str) -> tuple[str, str] | None:
    """Digits and base of a literal such as `204_5`, `-1.2_3`."""
    match = re.fullmatch(
        r"(-?)([0-9A-F]+(?:\.[0-9A-F]+)?)_\{?(?:\\text\{)?\s*(\d+)\s*\}*", text.replace(" ", "")
    )
    return (match[1] + (match[2].lstrip("0") or "0"), match[3]) if match else None


def infinite(text: str) -> int | None:
    """The sign of ∞ or −∞; None for everything else: nothing is computed with infinity."""
    match = re.fullmatch(r"([-+]?)\s*\\infty", text)
    return (-1 if match.group(1) == "-" else 1) if match else None


def ratio(text: str) -> list[Value] | None:
    """The parts of `a:b:c`; None where the text is no ratio, or a time of day such as 12:00."""
    parts = split(text, ":")
    if len(parts) < 2 or any(not part or re.fullmatch(r"0\d", part) for part in parts):
        return None
    return [value(part) for part in parts]
