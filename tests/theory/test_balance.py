"""The balance conditions against a double loop over the tokens of random groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import theory


@st.composite
def groups(draw):
    """Lengths and zero-sum advantages with both signs: binary (GRPO-normalised or centred) or real-valued."""
    G = draw(st.integers(2, 12))
    T = draw(st.lists(st.integers(1, 500), min_size=G, max_size=G))
    kind = draw(st.sampled_from(["grpo", "centred", "real"]))
    if kind == "real":
        r = draw(st.lists(st.integers(0, 100), min_size=G, max_size=G).filter(lambda r: len(set(r)) > 1))
    else:
        k = draw(st.integers(1, G - 1))
        r = draw(st.permutations([1] * k + [0] * (G - k)))
    A = np.array(r, dtype=float) - np.mean(r)
    if kind == "grpo":
        A /= np.std(r)
    return kind, np.array(T, dtype=float), A


def loop(T, A, ell):
    """(Σ c over the responses of a shared token, Σ c over all tokens, Σ|c|), one token at a time."""
    G = len(T)
    shared, mass, size = 0.0, 0.0, 0.0
    for length, advantage, effective in zip(T, A, ell, strict=True):
        c = advantage / (G * effective)
        shared += c
        size += abs(c)
        for _ in range(int(length)):
            mass += c
    return shared, mass, size


def effective_lengths(T, A, rule, batch_mean=300.0, L=1000.0):
    if rule == "balanced":
        out = np.full(len(T), np.nan)
        for sign in (A > 0, A < 0):
            out[sign] = (np.abs(A[sign]) * T[sign]).sum() / np.abs(A[sign]).sum()
        out[A == 0] = 1.0  # no sign, coefficient 0
        return out
    common = {"token": T.mean(), "token (batch)": batch_mean, "constant": L}
    return T if rule == "sequence" else np.full(len(T), common[rule])


def weighted(A, x):
    return (np.abs(A) * x).sum() / np.abs(A).sum()


@settings(deadline=None)
@given(groups(), st.sampled_from(["sequence", "token", "token (batch)", "constant", "balanced"]))
def test_closed_forms_equal_the_double_loop(group, rule):
    kind, T, A = group
    G, plus, minus = len(T), A > 0, A < 0
    m = A[plus].sum()
    T_plus, T_minus = weighted(A[plus], T[plus]), weighted(A[minus], T[minus])
    H_plus, H_minus = 1 / weighted(A[plus], 1 / T[plus]), 1 / weighted(A[minus], 1 / T[minus])
    if kind != "real":  # the plain means of docs/formulas.md
        assert T_plus == pytest.approx(T[plus].mean())
        assert H_minus == pytest.approx(1 / np.mean(1 / T[minus]))
    ell = effective_lengths(T, A, rule)
    shared, mass, size = loop(T, A, ell)
    close = {"rel": 1e-9, "abs": 1e-9 * m}
    match rule:
        case "sequence":
            assert mass == pytest.approx(0, abs=1e-9 * m)
            assert theory.exchangeability_sum(m, H_plus, H_minus, G) == pytest.approx(shared, **close)
            assert theory.exchangeability_residual(H_plus, H_minus) == pytest.approx(abs(shared) / size, abs=1e-9)
            assert theory.sequence_token_weight(T, G) == pytest.approx(1 / (G * ell))
        case "balanced":
            assert mass == pytest.approx(0, abs=1e-9 * m)
            assert theory.exchangeability_sum(m, T_plus, T_minus, G) == pytest.approx(shared, **close)
            assert theory.exchangeability_residual(T_plus, T_minus) == pytest.approx(abs(shared) / size, abs=1e-9)
        case _:
            assert theory.mass_imbalance(m, T_plus, T_minus, G, ell[0]) == pytest.approx(mass, **close)
            assert shared == pytest.approx(0, abs=1e-9 * m)
            assert theory.exchangeability_sum(m, ell[0], ell[0], G) == 0
    if rule == "token":
        assert mass == pytest.approx(m * (T_plus - T_minus) / T.sum(), **close)


@settings(deadline=None)
@given(groups(), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 3))
def test_hadw_leaves_this_sum_and_breaks_the_balance_its_rule_held(group, p_hat, anchor, lam):
    _, T, A = group
    m = A[A > 0].sum()
    Phi = lam * np.exp(-np.sign(A) * np.sign(p_hat - anchor) * abs(p_hat - anchor))
    left = theory.reweighted_sum(m, p_hat, anchor, lam)
    assert left == pytest.approx((Phi * A).sum(), rel=1e-9, abs=1e-9 * m)
    shared, _, _ = loop(T, Phi * A, effective_lengths(T, A, "token"))
    assert shared == pytest.approx(left / (len(T) * T.mean()), rel=1e-9, abs=1e-9 * m)
    for rule in ("sequence", "balanced"):
        _, mass, _ = loop(T, Phi * A, effective_lengths(T, Phi * A, rule))
        assert mass == pytest.approx(left / len(T), rel=1e-9, abs=1e-9 * m)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_masses_named_in_the_opening(k):
    G = 8
    r = np.array([1.0] * k + [0.0] * (G - k))
    centred = r - r.mean()
    assert (centred / r.std())[:k].sum() == pytest.approx(np.sqrt(k * (G - k)))
    assert centred[:k].sum() == pytest.approx(k * (G - k) / G)


def test_lengths_must_be_positive():
    with pytest.raises(ValueError, match="T_minus = 0 must be"):
        theory.mass_imbalance(1.0, 10, 0, 8, 10)
    with pytest.raises(ValueError, match="T = -3 must be"):
        theory.sequence_token_weight([10, -3], 8)
