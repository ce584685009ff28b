r"""What the words behind a number measure, in one spelling: 5 cm is 5 centimeters, and not 5 nm.

`measure_of` gives a power of ten and base units ("-2 m" for cm, "0 hour-1 mile" for mph), "" where a
word is none in these tables. Metric units are told by what they measure, so that 5 J/s is 5 W; every
other unit is only itself. Two units above the fraction bar (N m) are not read.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

# Read as units without \text around them too, except those in `units.SHORT`.
NAMES = {
    "m": "m meter meters metre metres", "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters", "km": "km kilometer kilometers kilometre kilometres",
    "inch": "in inch inches", "foot": "ft foot feet", "yard": "yd yard yards", "mile": "mi mile miles",
    "s": "s sec secs second seconds", "min": "min mins minute minutes", "hour": "h hr hrs hour hours",
    "day": "day days", "week": "week weeks", "month": "month months", "year": "yr yrs year years",
    "g": "g gram grams", "kg": "kg kilogram kilograms", "mg": "mg", "lb": "lb lbs", "pound": "pound pounds",
    "oz": "oz ounce ounces",
    "l": "l liter liters litre litres", "ml": "ml", "gallon": "gal gallon gallons",
    "degree": "degree degrees deg", "radian": "rad radian radians", "dollar": "dollar dollars usd bucks",
    "euro": "euro euros eur", "yen": "yen", "rupee": "rupee rupees", "yuan": "yuan rmb",
    "cent": "cent cents", "mph": "mph", "km/h": "km/h kmh kph",
}  # fmt: skip
# Told apart where they are marked as text, or are too long for a product of letters.
MORE_NAMES = {
    "sterling": "gbp quid", "yen": "jpy", "yuan": "cny renminbi", "rupee": "inr", "peso": "peso pesos mxn",
    "franc": "franc francs chf", "ruble": "ruble rubles rub", "celsius": "celsius centigrade",
    "fahrenheit": "fahrenheit", "kelvin": "kelvin kelvins", "quart": "qt quart quarts", "pint": "pt pint pints",
    "cup": "cup cups", "tablespoon": "tbsp tablespoon tablespoons", "teaspoon": "tsp teaspoon teaspoons",
    "acre": "acre acres", "ton": "ton tons", "decade": "decade decades", "century": "century centuries",
    "am": "am", "pm": "pm",
}  # fmt: skip
CURRENCIES = frozenset(
    ["dollar", "euro", "sterling", "yen", "yuan", "rupee", "cent", "peso", "franc", "ruble"]
)
CURRENCY_SIGNS = {r"\$": "dollar", "€": "euro", "£": "sterling", "¥": "¥"}
# Words and signs that may mean either of two units.
GENERAL = {
    "pound": {"lb", "sterling"},
    "degree": {"celsius", "fahrenheit"},
    "¥": {"yen", "yuan"},
    "ton": {"6 g"},
}

# symbol: its words, and what it is in powers of ten, grams, meters, seconds, amperes and its own kind
METRIC = {
    "m": ("meter meters metre metres", "0 m"), "g": ("gram grams gramme grammes", "0 g"),
    "s": ("second seconds", "0 s"), "l": ("liter liters litre litres", "-3 m3"), "A": ("ampere amperes amps", "0 A"),
    "Hz": ("hertz", "0 s-1"), "N": ("newton newtons", "3 g m s-2"), "J": ("joule joules", "3 g m2 s-2"),
    "W": ("watt watts", "3 g m2 s-3"), "Pa": ("pascal pascals", "3 g m-1 s-2"), "V": ("volt volts", "3 g m2 s-3 A-1"),
    "mol": ("mole moles", "0 mol"), "B": ("byte bytes", "0 B"),
}  # fmt: skip
PREFIXES = {
    "pico": -12, "nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "": 0, "kilo": 3, "mega": 6, "giga": 9,
    "tera": 12,
}  # fmt: skip
LETTERS = {"nano": "n", "milli": "m", "centi": "c", "deci": "d", "": "", "kilo": "k"}
CAPITALS = {"mega": "M", "giga": "G", "tera": "T"}  # Mg and ML are mg and mL in capitals
OF_CAPITALS = frozenset({"Hz", "N", "J", "W", "Pa", "V", "B"})
OTHERS = {
    "sec": "0 s", "secs": "0 s", "gm": "0 g", "gms": "0 g", "cc": "-6 m3", "micron": "-6 m", "microns": "-6 m",
    "hectare": "4 m2", "hectares": "4 m2", "tonne": "6 g", "tonnes": "6 g", "mph": "0 mile hour-1",
    "kmh": "3 m hour-1", "kph": "3 m hour-1", "kmph": "3 m hour-1", "kms": "3 m", "cms": "-2 m", "K": "0 kelvin",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """A power of ten and the powers of base units: N is 10³ g m s⁻²."""

    ten: int
    powers: tuple[tuple[str, int], ...]


def _defined(text: str) -> Quantity:
    """From "3 g m s-2"."""
    ten, *factors = text.split()
    powers = [re.fullmatch(r"(\D+?)(-?\d*)", factor) for factor in factors]
    return Quantity(int(ten), tuple((m[1], int(m[2] or 1)) for m in powers if m))


def _table() -> dict[str, Quantity]:
    names = [*NAMES.items(), *MORE_NAMES.items()]
    table = {word: Quantity(0, ((name, 1),)) for name, words in names for word in words.split()}
    for symbol, (words, definition) in METRIC.items():
        unit = _defined(definition)
        for prefix, ten in PREFIXES.items():
            measure = Quantity(unit.ten + ten, unit.powers)
            letters = LETTERS | CAPITALS if symbol in OF_CAPITALS else LETTERS
            short = [letters[prefix] + symbol] if prefix in letters else []
            table |= dict.fromkeys([*short, *(prefix + word for word in words.split())], measure)
    return table | {word: _defined(definition) for word, definition in OTHERS.items()}


MEASURES = _table()  # symbols in their own case, words in small letters
FACTOR = re.compile(r"(/)|([a-zA-Z]+(?:['-][a-zA-Z]+)*)(?:\s*\^\s*(-?\d))?")
BELOW = frozenset({"per", "an"})
# "each day" of a story, which may be left out
PERIODS = frozenset({"day", "week", "month", "year"})
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
DEGREES = re.compile(
    r"\bdeg(?:ree)?s?\s+(?:(c)(?:elsius|entigrade)?|f(?:ahrenheit)?)\b", re.IGNORECASE
)


def measure_of(text: str) -> str:
    """What words and powers such as "cm ^2", "miles per hour" measure; "" if they are unknown."""
    text = DEGREES.sub(lambda match: "celsius" if match[1] else "fahrenheit", text)
    ten, powers = 0, Counter[str]()
    above, side, times, described, period = 0, 1, 1, False, ""
    for slash, word, power in FACTOR.findall(text):
        if slash or word.lower() in BELOW:
            side = -1
            continue
        if word.lower() in POWERS:
            times = POWERS[word.lower()]
            continue
        measure = MEASURES.get(word) or MEASURES.get(word.lower())
        if measure is None:
            if side < 0 or not powers or "inch" in powers:  # 5 in all
                return ""
            described = True  # 5 cm long
            continue
        if described or (side < 0 and not powers):  # so much per hour, and of what is not said
            return ""
        (name, _), *_ = measure.powers
        if name in CURRENCIES and not powers:
            return name  # \$5 an hour is \$5
        if name in PERIODS and side < 0:
            period = f" per {name}"
            continue
        exponent = side * times * int(power or 1)
        above += exponent > 0
        times = 1
        ten += exponent * measure.ten
        for base, count in measure.powers:
            powers[base] += exponent * count
    written = "" if above > 1 else _written(ten, powers)
    return written and written + period


def _written(ten: int, powers: Counter[str]) -> str:
    factors = sorted((base, power) for base, power in powers.items() if power)
    if len(factors) == 1 and factors[0][1] == 1 and ten == 0:
        return factors[0][0]
    if not factors or any(base in GENERAL for base, _ in factors):
        return ""
    return " ".join(
        [str(ten), *(base + (str(power) if power != 1 else "") for base, power in factors)]
    )


def differ(one: str, other: str) -> bool:
    """Whether two measures are known and not the same; a general word is each of its units."""
    one, _, period = one.partition(" per ")
    other, _, other_period = other.partition(" per ")
    if not one or not other:
        return False
    if period and other_period and period != other_period:
        return True
    return one != other and other not in GENERAL.get(one, ()) and one not in GENERAL.get(other, ())
