r"""Two units: one unit in two spellings is the same answer, two different ones never are."""

from itertools import permutations, product

import pytest

from equipoise.verifiers import grade_math
from equipoise.verifiers.math import equal

# Each line is one unit in its spellings, of the number 5.
ONE_UNIT = {
    "cm": [r"5\text{ cm}", "5 cm", "5cm", r"5\,\mathrm{cm}", r"5\mbox{ centimeters}", r"5\text{ centimetres}",
           r"5\text{ cm.}", r"5\text{ cm long}"],
    "nm": [r"5\text{ nm}", r"5\,\mathrm{nm}", r"5\text{ nanometers}"],
    "micrometer": [r"5\text{ micrometers}", r"5\text{ microns}"],
    "mm": [r"5\text{ mm}", r"5\text{ millimetres}"],
    "m": [r"5\text{ m}", r"5\text{ meters}", r"5\text{ metre}", r"5\text{ m tall}"],
    "km": [r"5\text{ km}", "5 km", r"5\text{ kilometers}"],
    "inch": [r"5\text{ in.}", r"5\text{ inches}"],
    "foot": [r"5\text{ ft}", r"5\text{ feet}", "5 feet"],
    "yard": [r"5\text{ yd}", r"5\text{ yards}"],
    "mile": [r"5\text{ mi}", r"5\text{ miles}"],
    "cm²": [r"5\text{ cm}^2", r"5\text{ square centimeters}", r"5\text{ sq cm}", "5 cm^2"],
    "cm³": [r"5\text{ cm}^3", r"5\text{ cubic centimeters}", r"5\text{ mL}", r"5\text{ milliliters}", r"5\text{ cc}"],
    "liter": [r"5\text{ L}", r"5\text{ liters}", r"5\text{ litre}", r"5\text{ cubic decimeters}"],
    "1/cm": [r"5\text{ cm}^{-1}"],
    "m/s": [r"5\text{ m/s}", r"5\text{ meters per second}", r"5\text{ metres/second}", r"5\text{ m s}^{-1}",
            r"5\text{ m/sec}"],
    "cm/s": [r"5\text{ cm/s}", r"5\text{ centimeters per second}"],
    "m/s²": [r"5\text{ m/s}^2", r"5\text{ meters per second per second}"],
    "mph": [r"5\text{ mph}", r"5\text{ miles per hour}", r"5\text{ miles/hour}", r"5\text{ miles an hour}"],
    "km/h": [r"5\text{ km/h}", r"5\text{ kph}", r"5\text{ kilometers per hour}", r"5\text{ km/hr}"],
    "g": [r"5\text{ g}", r"5\text{ grams}", r"5\text{ gm}"],
    "kg": [r"5\text{ kg}", r"5\text{ kilograms}", r"5\text{ Kg}"],
    "mg": [r"5\text{ mg}", r"5\text{ milligrams}"],
    "g/cm³": [r"5\text{ g/cm}^3", r"5\text{ g/mL}", r"5\text{ kg/L}", r"5\text{ grams per cubic centimeter}"],
    "oz": [r"5\text{ oz}", r"5\text{ ounces}"],
    "gallon": [r"5\text{ gal}", r"5\text{ gallons}"],
    "s": [r"5\text{ s}", r"5\text{ seconds}", r"5\text{ sec}"],
    "ms": [r"5\text{ ms}", r"5\text{ milliseconds}"],
    "minute": [r"5\text{ min}", r"5\text{ minutes}", r"5\text{ minutes late}"],
    "hour": [r"5\text{ h}", r"5\text{ hrs}", r"5\text{ hours}"],
    "day": [r"5\text{ days}"],
    "year": [r"5\text{ years}", r"5\text{ years old}"],
    "decade": [r"5\text{ decades}"],
    "dollar": [r"\$5", "$5", r"\$5.00", r"5\text{ dollars}", r"5\text{ USD}", r"\$5\text{ per hour}",
               r"5\text{ dollars per hour}"],
    "euro": ["€5", r"5\text{ euros}", "5 EUR", "€5.00"],
    "sterling": ["£5", r"5\text{ GBP}"],
    "yen": [r"5\text{ yen}", r"5\text{ JPY}"],
    "yuan": [r"5\text{ yuan}", r"5\text{ RMB}"],
    "cent": [r"5\text{ cents}"],
    "J": [r"5\text{ J}", r"5\text{ joules}"],
    "kJ": [r"5\text{ kJ}", r"5\text{ kilojoules}"],
    "N": [r"5\text{ N}", r"5\text{ newtons}"],
    "W": [r"5\text{ W}", r"5\text{ watts}", r"5\text{ J/s}"],
    "mW": [r"5\text{ mW}", r"5\text{ milliwatts}"],
    "MW": [r"5\text{ MW}", r"5\text{ megawatts}"],
    "V": [r"5\text{ V}", r"5\text{ volts}"],
    "Hz": [r"5\text{ Hz}", r"5\text{ hertz}", r"5\text{ s}^{-1}"],
    "°C": [r"5^\circ C", r"5^\circ\text{C}", r"5\text{ degrees Celsius}", r"5\text{ degrees C}"],
    "°F": [r"5^\circ F", r"5\text{ degrees Fahrenheit}"],
    "kelvin": [r"5\text{ K}", r"5\text{ kelvin}"],
    "radian": [r"5\text{ rad}", r"5\text{ radians}"],
    "percent": [r"5\%", r"5\text{ percent}"],
}  # fmt: skip

# A general word is no other unit than each of these.
EITHER = {
    r"5\text{ pounds}": ["5\\text{ lb}", "£5"],
    r"5^\circ": [r"5^\circ C", r"5\text{ degrees Fahrenheit}", r"5\text{ degrees}"],
    "¥5": [r"5\text{ yen}", r"5\text{ yuan}"],
}

UNKNOWN = ["5", r"5\text{ apples}", r"5\text{ units}", r"5\text{ whole days}", r"5\text{ N m}", r"5\text{ in all}"]


def refused(gold: str, answer: str) -> bool:
    return grade_math(rf"\boxed{{{answer}}}", gold).kind in ("wrong", "unparsed")


@pytest.mark.parametrize("unit", ONE_UNIT)
def test_one_unit_in_two_spellings_is_one_answer(unit):
    pairs = permutations(ONE_UNIT[unit], 2)
    assert [(gold, answer) for gold, answer in pairs if refused(gold, answer)] == []


@pytest.mark.parametrize("unit", ONE_UNIT)
def test_another_unit_is_another_answer(unit):
    others = [answer for other, spellings in ONE_UNIT.items() if other != unit for answer in spellings]
    pairs = product(ONE_UNIT[unit], others)
    assert [(gold, answer) for gold, answer in pairs if equal.quick(gold, answer) is not False] == []


@pytest.mark.parametrize("general", EITHER)
def test_a_general_word_may_be_any_of_its_units(general):
    for unit in EITHER[general]:
        assert not refused(general, unit)
        assert not refused(unit, general)


@pytest.mark.parametrize("unit", [unit for unit in ONE_UNIT if unit != "percent"])
def test_a_unit_may_be_left_out_and_a_noun_is_any_unit(unit):
    pairs = [pair for side in product(ONE_UNIT[unit], UNKNOWN) for pair in (side, side[::-1])]
    assert [(gold, answer) for gold, answer in pairs if refused(gold, answer)] == []


def test_degrees_are_left_out_like_any_unit_and_never_converted():
    degrees = [r"60^\circ", r"60\text{ degrees}", "60°"]
    for alike in (["60", *degrees], ["60", r"60\text{ radians}"], [r"\frac{\pi}{3}", r"\frac{\pi}{3}^\circ"]):
        assert not any(refused(*pair) for pair in permutations(alike, 2))
    apart = [*product(degrees, [r"60\text{ rad}"]), (r"180^\circ", r"\pi"), (r"180^\circ", r"\pi\text{ rad}")]
    apart += [(r"\sin 60^\circ", r"\sin 60"), (r"60^\circ", "60^o"), (r"60^\circ", "60^0")]
    assert all(refused(*pair) and refused(*pair[::-1]) for pair in apart)


@pytest.mark.parametrize(("gold", "answer"), [
    (r"\$1,000", "€1,000"), ("€1,000", r"\$1,000"), ("-€5", r"-\$5"),
    (r"1\text{ cm}, 2\text{ cm}", r"1\text{ cm}, 2\text{ nm}"), (r"x=5\text{ cm}", r"x=5\text{ nm}"),
    (r"9\text{ a.m.}", r"9\text{ p.m.}"), (r"9:30\text{ AM}", r"9:30\text{ PM}"),
    (r"28\%", r"28\text{ cm}"), (r"28\text{ cm}", r"28\%"), (r"28\%", r"\$28"), (r"28\%", r"28^\circ"),
    (r"5\text{ miles per day}", r"5\text{ miles per week}"), (r"5\text{ miles per day}", r"5\text{ km per day}"),
    (r"5\text{ miles per day}", r"5\text{ km}"), (r"5\text{ miles per hour}", r"5\text{ miles}"),
    (r"0.28\text{ cm}", r"28\%"), (r"\$5", r"\$5\text{ euros}"), (r"\$5", r"\$€5"), ("€5", r"€\$5"),
])  # fmt: skip
def test_other_places_of_a_unit(gold, answer):
    assert refused(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [
    ("€1,000", "1000"), ("1000", "€1,000"), ("€1,000", r"1000\text{ euros}"), ("-€5", "-5"), ("£2.50", "2.5"),
    (r"5\text{ miles}", r"5\text{ miles per day}"), (r"5\text{ hours per week}", r"5\text{ hours/week}"),
    (r"5\text{ hours per week}", r"5\text{ hours}"),
    (r"9\text{ a.m.}", r"9\text{ AM}"), (r"28\%", "28"), (r"28\%", r"28\text{ percent}"),
])  # fmt: skip
def test_the_same_in_other_places(gold, answer):
    assert not refused(gold, answer)


# Where a unit may stand outside of what is read; {u} is the unit's words, {t} the same in a \text.
OUTSIDE = [
    r"\boxed{{5}} {u}", r"\boxed{{5}} {u}.", r"It is $\boxed{{5}}$ {u}.", r"\[\boxed{{5}}{t}\]",
    r"$x = \boxed{{5}}\,{t}$.",
    r"**\boxed{{5}}** {u}", "It is $\\boxed{{5}}$ {u}, since\nit is.", r"<answer>\boxed{{5}} {u}</answer>",
    r"The answer is $5$ {u}.", r"The answer is 5 {u}.", r"Answer: **5 {u}**",
]  # fmt: skip
WORDS = {
    "cm": ["cm", "centimeters", "cm long"], "m": ["m", "meters", "metres"], "km": ["km", "kilometers"],
    "mile": ["miles", "mi"], "hour": ["hours", "h", "hrs"], "s": ["seconds", "s"], "dollar": ["dollars"],
    "cent": ["cents"], "m/s": ["m/s", "meters per second"], "mph": ["mph", "miles per hour", "miles an hour"],
    "cm²": ["cm^2", "square centimeters", "sq cm"], "kg": ["kg"], "°C": ["degrees Celsius", "°C"],
}  # fmt: skip


def outside(place: str, words: str) -> str:
    unit, _, power = words.partition("^")
    marked = rf"\text{{ {unit}}}" + (f"^{power}" if power else "")
    return place.format(u=words, t=words if "°" in words else marked)


@pytest.mark.parametrize("place", OUTSIDE)
def test_a_unit_outside_is_read_as_inside(place):
    said = [(unit, words) for unit, spelled in WORDS.items() for words in spelled]
    if "5 {u}" in place:  # 5 m/s without a mark is a formula
        said = [(unit, words) for unit, words in said if words.replace(" ", "").isalpha()]
    for unit, words in said:
        response = outside(place, words)
        verdicts = {other: grade_math(response, ONE_UNIT[other][0]).kind for other in WORDS}
        assert verdicts == {other: "correct" if other == unit else "wrong" for other in WORDS}, response
        for gold in UNKNOWN:
            assert grade_math(response, gold).kind == "correct", response


@pytest.mark.parametrize(("response", "gold"), [
    (r"\$\boxed{5}", "€5"), (r"€\boxed{5}", r"\$5"), (r"\$\boxed{5}", r"5\text{ cents}"), (r"\boxed{28} cm", r"28\%"),
    (r"$90^\circ$ are $\boxed{90}^\circ$", r"90\text{ cm}"), (r"\boxed{5} cm", r"x = 5\text{ m}"),
    (r"$\boxed{60}\text{ miles}$ from home.", r"60\text{ km}"),
    (r"$\boxed{60}\text{ miles}$ per hour", r"60\text{ km/h}"),
    (r"$\boxed{5}\ \mathrm{m}\,\mathrm{s}^{-1}$", r"5\text{ km/s}"),
])  # fmt: skip
def test_other_units_outside(response, gold):
    assert grade_math(response, gold).kind == "wrong"


@pytest.mark.parametrize(("response", "gold"), [
    # words that are no unit, or not the answer's
    (r"There are $\boxed{5}$ in $\triangle ABC$.", r"5\text{ cm}"), (r"\boxed{5} in all", r"5\text{ cm}"),
    (r"\boxed{60} miles each hour", r"60\text{ mph}"), (r"\boxed{60} miles in one hour", r"60\text{ mph}"),
    (r"\boxed{5} is the length in meters", r"5\text{ cm}"), (r"\boxed{5} feet 3 inches", r"5\text{ cm}"),
    (r"\boxed{5}. Miles", r"5\text{ cm}"), ("\\boxed{5}\n\nHours", r"5\text{ cm}"),
    (r"\boxed{5} a day", r"5\text{ cm}"),
    (r"$\boxed{60}\text{ miles}$ per hour", r"60\text{ mph}"),
    (r"\(\boxed{60} \text{ miles}\) *per* hour", r"60\text{ mph}"),
    (r"\boxed{60}\frac{\text{miles}}{\text{hour}}", r"60\text{ mph}"), (r"\boxed{5} cm squared", r"5\text{ cm}^2"),
    (r"\boxed{5} m = 500 cm", r"5\text{ m}"), (r"$\boxed{5}\ \mathrm{m}\,\mathrm{s}^{-1}$", r"5\text{ m/s}"),
    # one of its own stands in the box
    (r"\boxed{5\text{ miles}} hours", r"5\text{ miles}"), (r"\boxed{28\%} dollars", r"28\%"),
    (r"\boxed{\$5} hours", r"\$5"),
    # a general word, what a price is for, and the sign that opens a formula
    (r"\boxed{5} pounds", "£5"), (r"\boxed{5}^\circ", r"5^\circ C"), (r"\boxed{5} dollars an hour", r"\$5"),
    (r"$\boxed{5}$", "€5"), (r"\$\boxed{5}", r"5\text{ dollars}"), (r"\boxed{28}\%", r"28\%"),
])  # fmt: skip
def test_what_stands_outside_and_is_no_other_unit(response, gold):
    assert grade_math(response, gold).kind == "correct"


@pytest.mark.parametrize(("gold", "answer"), [
    ("3s^2", "3"), ("3", "3s^2"), ("3m^2", "3"), (r"\frac{3}{2}m^3", r"\frac{3}{2}"), ("3m^2", r"3\text{ apples}"),
    ("3m^2", "3m^3"), ("x=3m^2", "3"), ("2mg", "2"), (r"2\pi hr", r"2\pi"), (r"\frac{1}{2}mg", r"\frac{1}{2}"),
    ("6xyz", "6"), ("6xyz", "6pqr"), ("6", "6xyz"), ("2mgh", "2"), ("-3abc", "-3"), (r"\frac{1}{2}bch", r"\frac{1}{2}"),
])  # fmt: skip
def test_letters_that_nothing_marks_as_a_unit_cannot_be_left_out(gold, answer):
    assert refused(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [
    ("3m^2", "3m^2"), ("3m^2", r"3\text{ m}^2"), (r"3\text{ m}^2", "3m^2"), ("3", "3m²"),
    ("6xyz", "6zyx"), ("2mg", r"2\text{ mg}"), ("5km", "5"), ("5", "5days"), ("6", "6 apples"),
    (r"4\pi", r"4\pi units"), ("6", "6students"), ("6", r"6\,men"), ("6", "6kms"), ("6", "6kmph"),
])  # fmt: skip
def test_a_unit_without_a_mark_is_read(gold, answer):
    assert not refused(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [
    (r"10\text{ cm}^2", r"10\text{ cm²}"), (r"10\text{ cm}^2", r"10\text{ cm^2}"), (r"10\text{ cm}^2", "10 cm²"),
    (r"10\text{ cm}^2", r"10\,\mathrm{cm^{2}}"), (r"5\text{ m/s}^2", r"5\text{ m/s²}"), ("10", r"10\text{ cm²}"),
    (r"155\text{ km/h}", r"155\,\frac{\text{km}}{\text{h}}"),
    (r"155\text{ km/h}", r"155\dfrac{\mathrm{km}}{\mathrm{h}}"),
    (r"5\text{ m/s}^2", r"5\ \frac{\text{m}}{\text{s}^2}"), (r"5\text{ g/cm}^3", r"5\frac{\text{ g }}{\text{cm}^{3}}"),
    ("5", r"5\frac{\text{apples}}{\text{box}}"),
])  # fmt: skip
def test_powers_within_the_text_and_units_in_a_fraction(gold, answer):
    assert not refused(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [
    (r"10\text{ cm}^2", r"10\text{ cm³}"), (r"10\text{ cm}^2", r"10\text{ m²}"), ("10", r"10\text{ apples²}"),
    ("10", r"10\text{ }^2"), ("100", r"10\text{²}"), ("10", r"10\text{²}"), ("10", r"10\text{x²}"),
    (r"155\text{ km/h}", r"155\frac{\text{h}}{\text{km}}"), (r"155\text{ km/h}", r"155\frac{\text{km}}{\text{s}}"),
    (r"155\text{ km}", r"155\frac{\text{km}}{\text{h}}"), ("5", r"5\frac{\text{cm}}{\text{cm}}"),
    ("5", r"5\frac{\text{million}}{\text{h}}"), ("5", r"5\frac{\text{one}}{\text{half}}"),
    ("5", r"5\frac{\text{km}}{2}"),
    ("5", r"5\frac{\text{x}}{\text{y}}"),
])  # fmt: skip
def test_other_powers_and_fractions_are_other_answers(gold, answer):
    assert refused(gold, answer)
