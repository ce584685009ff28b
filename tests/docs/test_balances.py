"""The picture of docs/mathematics.md: its identity holds for any coefficients, and the script draws the file."""

import itertools
import math
import random

import pytest

from scripts.docs import balances


def test_the_identity_of_the_two_sums():
    draw = random.Random(0)
    for _ in range(50):
        right = [(draw.random() + 0.01, draw.randint(1, 50)) for _ in range(draw.randint(1, 5))]
        wrong = [(draw.random() + 0.01, draw.randint(1, 50)) for _ in range(draw.randint(1, 5))]
        push = sum(c for c, _ in right) - sum(c for c, _ in wrong)
        pull = sum(c for c, _ in right + wrong)
        mass = sum(c * T for c, T in right) - sum(c * T for c, T in wrong)
        total = sum(c * T for c, T in right + wrong)
        mean_right = sum(c * T for c, T in right) / sum(c for c, _ in right)
        mean_wrong = sum(c * T for c, T in wrong) / sum(c for c, _ in wrong)
        expected = math.atanh(push / pull) + math.log(mean_right / mean_wrong) / 2
        assert math.atanh(mass / total) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("group", balances.GROUPS.values(), ids=("meet", "apart"))
def test_no_coefficients_leave_the_band(group):
    """Weights of the extreme responses alone span it; every other mixture lies inside."""
    right, wrong = group
    for weights in itertools.product((0.0, 0.3, 1.0), repeat=len(right) + len(wrong)):
        plus, minus = weights[: len(right)], weights[len(right) :]
        if not any(plus) or not any(minus):
            continue
        x = (sum(plus) - sum(minus)) / sum(weights)
        pulls = [w * T for w, T in zip(weights, [*right, *wrong], strict=True)]
        y = (sum(pulls[: len(right)]) - sum(pulls[len(right) :])) / sum(pulls)
        least, greatest = balances.allowed(x, right, wrong)
        assert least - 1e-12 <= y <= greatest + 1e-12


def test_the_rules_lie_where_the_page_says():
    for right, wrong in balances.GROUPS.values():
        residual = (sum(wrong) - sum(right)) / (sum(wrong) + sum(right))  # as many right as wrong
        assert balances.balances("token", "none", right, wrong) == pytest.approx((0, -residual), abs=1e-7)
        assert balances.balances("balanced", "none", right, wrong) == pytest.approx((residual, 0), abs=1e-7)
    meet = balances.GROUPS["Lengths meet: both balances exist"]
    assert balances.balances("balanced", "both", *meet) == pytest.approx((0, 0), abs=1e-6)


def test_the_file_is_what_the_script_draws():
    assert balances.OUT.read_text(encoding="utf-8") == balances.draw()
