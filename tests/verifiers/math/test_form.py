"""Values and calculations: which ways of writing a number are one, and that chains agree with themselves."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.verifiers.math import equal

VALUES = [
    (r"-\frac{24}{25}", r"\text{-.96}"),
    ("155", "155.0"), ("155", r"1.55\times 10^2"), ("155", "1.55e2"), ("1/2", "2/4"), ("1/2", r"\frac{2}{4}"),
    ("-1/2", r"\frac{1}{-2}"), ("7.75", r"7\frac{3}{4}"), ("3/2", "1 1/2"), ("1/3", r"0.\overline{3}"),
    ("0.00012", r"1.2\cdot 10^{-4}"), (r"28\%", "0.28"), (r"3\sqrt{13}", r"\sqrt{117}"), (r"1+\sqrt2", r"\sqrt{2}+1"),
    (r"\frac{1+\sqrt5}{2}", r"\frac12+\frac{\sqrt5}{2}"), (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt3}"),
    (r"\sqrt2-1", r"\frac{1}{1+\sqrt2}"), (r"1+\sqrt2", r"\sqrt{3+2\sqrt2}"), (r"\sqrt2", "2^{1/2}"),
    (r"\frac{2\sqrt3}{3}", r"2\frac{\sqrt3}{3}"), (r"5\sqrt[3]{4}", r"\sqrt[3]{500}"), (r"2\pi", r"\pi\cdot 2"),
    (r"\frac{9\pi}{4}", r"\frac{9}{4}\pi"), (r"\frac{\pi^2}{6}", r"\pi^2/6"), (r"18+2\pi", r"2(9+\pi)"),
    (r"1-\frac{1}{e}", r"1-e^{-1}"), ("3+4i", "4i+3"), ("i", r"e^{i\pi/2}"), ("4.123105625617661", r"\sqrt{17}"),
    (r"\frac{\sqrt6+\sqrt2}{4}", r"\frac{\sqrt2(1+\sqrt3)}{4}"),
    # the operations of the gold answer, and its value
    ("2^{99}-1", "-1+2^{99}"), ("2^{10}", "1024"), (r"\binom{10}{3}", "120"), (r"\frac{5!}{2}", "60"),
    (r"\frac{5!}{2}", "5!/2"), (r"\ln 8", r"3\ln 2"), (r"\frac{10}{2}", "5"),
    # chains
    ("155", "(x=155)"), ("155", "{+155}dollars"), ("155", r"(155)^\circ"), ("155", r"\{(+155)\}"),
    ("58", r"\{58-0=58\}"),
    ("0.28", r"28\%"), ("1.5", r"150\%"), ("28", r"28\%"), ("155", "75+80=155"), ("155", "x=75+80=155"),
    ("155", r"75+80=155\text{ km}"),
    ("5", r"x=\frac{10}{2}=5"), ("155", r"155\approx 155.0"), ("155", r"x\approx 155"),
    (r"\frac13", r"\frac13\approx 0.333"), (r"\pi", r"\pi\approx 3.1415"), (r"\pi", r"\pi\approx 3.1416"),
    (r"\ln 2", r"\ln 2\approx 0.69"), ("1234567", r"1234567\approx 1.23\times10^6"),
    # letters keep their equivalence
    ("x^2+2x+1", "(x+1)^2"), ("x<5", "5>x"), (r"[2,\infty)", r"x\ge 2"),
]  # fmt: skip

CALCULATIONS = [
    *(("155", text) for text in (
        "75+80", "150+5", "160-5", "155+0", "310/2", r"\frac{310}{2}", r"\frac{155}{1}", "5*31", "5(31)", "155^1",
        r"15.5\cdot 10", r"15.5\cdot 10^1", r"1/\frac{1}{155}", r"\sqrt{24025}", r"\sqrt{155}\sqrt{155}",
        r"(\sqrt{155})^2", "155!/154!", r"\lfloor 155.9\rfloor", r"3^4\cdot 2-7", "|-155|", r"\binom{155}{1}",
        r"\log_{2}{2^{155}}", r"\frac{155\pi}{\pi}", "155e^0", r"155e^{2\pi i}", "-155i^2", "155+10i-10i",
        r"\frac{155+155\sqrt2}{1+\sqrt2}", r"155\sin 90^\circ", "x-x+155", r"\frac{155x}{x}", "155x^0",
        r"50\%\cdot 310", "155{1}=155", r"155\text{-}", r"155\text{to 0\circ}", "155=75+80", r"155\text{ m}/\text{m}",
    )),
    ("1000", "10^3"), ("1024", "2^{10}"), ("120", "5!"), ("1/2", r"\sin\frac{\pi}{6}"), ("0.5", "1*0.5"),
    ("3/4", r"3\cdot\frac14"), ("1/2", r"\frac{1.5}{3}"), ("31/4", r"7+\frac34"), (r"2\sqrt2", r"\sqrt2+\sqrt2"),
    (r"\sqrt6", r"\sqrt2\sqrt3"), (r"6\sqrt2", r"2\cdot3\sqrt2"), (r"\sqrt3", r"\frac{2\sqrt3}{2}"),
    ("-1", r"e^{i\pi}"), ("5i", "2i+3i"), (r"\frac{5!}{2}", r"5\cdot 4\cdot 3"), ("2^{10}", r"\binom{1024}{1}"),
    # in every part
    ("5,6", "2+3,6"), ("(1,2)", "(1,1+1)"), (r"\{1,2\}", r"\{1,4-2\}"), ("[0,2]", "[0,1+1]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\1+1\end{pmatrix}"), ("x=5", "x=2+3"), ("x=5", "2x=10"),
    ("x<5", "x<2+3"), (r"[2,\infty)", r"2x\ge 4"), ("[0,2]", r"[0,1]\cup[1,1+1]"), ("7:32", "(3+4):32"),
]  # fmt: skip

WRONG = [
    ("285", "_3soso=285"), ("370", r"_1\;waitno=370"), ("111", "0=0x=111"),
    ("398", "398 pens/\n/pens"), ("202", r"202\text{ ÷ ÷apples}"), ("483", "n=483483percentπx=483"),
    ("624", r"x=(624\approx 623)"), ("816", r"816\approx 816\in 0"), ("646", r"646\approx646\in1292"),
    ("570", r"\text{seventy}\sim570"), ("570", r"seventy=570"), ("30", r"thirty\in30"), ("58", r"x\in58"),
    ("321", r"32100\%"), ("79", "not=79"), ("27", r"27 and 27^\circ"), ("33", r"33,33^\circ"), ("68", "x=68,68"),
    ("350", "+350, 350"), ("826", "+826;826"), ("14", "+14 or 14"), ("572", r"572\approx572=363+97+112"),
    ("155", "165=155"), ("155", "75+80=165=155"), ("155", "x=165=155"), ("155", r"155\approx 165"),
    ("155", r"155\approx 155.4"), ("155", r"75+80\approx 165"), (r"\frac13", r"\frac13\approx 0.4"),
    (r"\pi", r"\pi\approx 3.2"), (r"\ln 2", r"\ln 2\approx 0.79"), ("643", r"643\approx 64+377+202"),
    ("372", r"372\approx x"), ("81", r"81\approx81=3*27"),
    (r"\frac{243}{625}", r"0.3888\sim 0"), ("0.9", r"0.9\approx 0"), (r"\frac{11}{36}", "0 11/36"),
    ("81", r"x\approx81=3*27"), ("402", r"402\sim402\le\frac12"), ("740", r"740\approx337+119+284>284"),
    ("880", r"920=880^\circ"), ("880", r"920=880\text{ km}"), ("880", r"920\text{ km}=880"), ("88", r"92\%=88"),
    ("333", r"333\sim256+77<77"), ("155", "75+80%=155"), ("150", "n=150, m=150"),
    ("318", "183=eighteen=318"), ("318", "183=x=318"), ("318", "x=183=y=318"), ("318", "300=a=b=318"),
    ("528", r"x=\{528\approx528\}"),
    ("426", r"x=\not 426=426"), ("939", r"x=1\to=939"), ("465", r"x=511 - 46\to 7930 = 465"), ("5", r"x=\foo 5=5"),
    ("193", r"x=\pm193=193"), ("71", "km=7171.km=71"),
]  # fmt: skip

ALWAYS_WRONG = [
    ("36", r"x=7\implies=36"), ("36", r"x=7\Rightarrow 36"), ("36", "7 → 36"), ("477", r"\left(x=477)"),
    ("(1,2)", "y=1, x=2"), ("C", r"(C)\ (D)"), ("C", "(C) 14, (D) 15"), ("5", r"5\text{ millions}"),
    ("3", r"3\text{ fifths}"), ("5", r"5\text{ ten-thousandths}"), ("5", "5 thousands"), ("5", r"5\text{ dozens}"),
    ("x^2", r"x^2+\lfloor|x|/100\rfloor"), ("1260", r"{63 \choose 63}"), ("68", "68apples^1"),
    ("68", r"68\text{ apples}^2"), ("68", r"68\text{ cm}^1"), ("68", r"68\text{ cm}^{23}"),
    ("432", "{54}{8}"), ("432", "{54}{8}=432"), ("548", r"\left({548}{1}=548\right)"),
    ("692", r"x=\not=692"), ("692", r"\not=692"), ("692", r"x\not=692"),
    ("98", r"98×\text{equals}"), ("621", r"621\text{apples×}"), ("314", r"314\;all/"), ("107", "107 roughly"),
    ("743", "743.0and"), ("319", r"319\quador"), ("331", r"331\text{n}"), ("5", "5apples//km"), ("5", "5 km so"),
    ("29", "29none÷yy"), ("344", "344xx/thus"),
    ("45", r"\frac=45"), ("104", "$0,104"), ("104", "00,104"), ("104", "0{,}104"), ("12104", "012,104"),
    ("344", r"\sqrt{{\begin{pmatrix}35 + 309 % !\end{pmatrix}}0}"),
]  # fmt: skip
ALWAYS_RIGHT = [
    ("(1,2)", "x=1, y=2"), (r"5 \mathrm{~cm}", "5"), ("5", r"5~\mathrm{cm}"), ("5", "5\\"), ("17", r"17\text{ apples}"),
    ("60", r"60\text{ miles per hour}"), (r"\binom{5}{2}", r"{5 \choose 2}"), ("125", r"125\text{ miles}"),
    ("68", r"68\text{ cm}^2"), ("68", r"68\text{m/s}^2"), ("68", r"68\text{ units}^2"), ("3", r"3\text{yr}^{-1}"),
    ("155", r"1.55 = 155\%"), ("2x", "{2}{x}"), ("3x^2", "x^{2}{3}"),
    ("5", r"5\text{ N}"), ("5", r"\$5/\text{hour}"), ("5", r"\$5\text{ per hour}"), ("9", r"9\text{ a.m.}"),
    ("0.104", "0,104"), ("0.104", "$0,104"), ("1104", "$1,104"),
    ("270", "300 - 30 = 270/month"), ("5", "5 / hour"), ("5", "5 kg of apples"),
]  # fmt: skip


def verdict(gold, answer, rules):
    """By both ways of comparing, which may not contradict each other."""
    quick, slow = equal.quick(gold, answer, rules), equal.slow(gold, answer, rules)
    assert quick is None or quick == bool(slow)
    return bool(slow)


@pytest.mark.parametrize(("gold", "answer"), VALUES)
def test_a_value_is_an_answer(gold, answer):
    assert verdict(gold, answer, "strict")
    assert verdict(gold, answer, "lenient")


@pytest.mark.parametrize(("gold", "answer"), CALCULATIONS)
def test_a_calculation_is_none_though_it_comes_to_the_same(gold, answer):
    assert not verdict(gold, answer, "strict")


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_a_chain_has_to_agree_with_itself(gold, answer):
    assert not verdict(gold, answer, "strict")


@pytest.mark.parametrize("rules", equal.RULES)
def test_by_both_rule_sets(rules):
    assert [pair for pair in ALWAYS_WRONG if verdict(*pair, rules)] == []
    assert [pair for pair in ALWAYS_RIGHT if not verdict(*pair, rules)] == []


RATIONALS = st.fractions(max_denominator=30).filter(lambda x: abs(x) < 10**4)


@settings(max_examples=150, deadline=None)
@given(RATIONALS, RATIONALS)
def test_no_operation_on_two_numbers_is_a_value(x, y):
    """Whatever the numbers are: sums, differences, products, and quotients of fractions."""

    def said(z):
        return rf"\frac{{{z.numerator}}}{{{z.denominator}}}" if z.denominator > 1 else str(z.numerator)

    for value, text in ((x + y, f"{said(x)}+({said(y)})"), (x - y, f"{said(x)}-({said(y)})"),
                        (x * y, rf"({said(x)})\cdot ({said(y)})")):  # fmt: skip
        assert equal.quick(said(value), text) is False
        assert equal.quick(said(value), f"{text}={said(value)}") is True
        assert equal.quick(said(value), f"{text}={said(value + Fraction(1, 7))}={said(value)}") is False
