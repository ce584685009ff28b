"""The sentences of the advice say numbers of the studies: each is computed again from studies/results."""

from functools import cache
from pathlib import Path

import numpy as np

from equipoise.audit import studied
from equipoise.evaluate.paired import interval
from equipoise.study.effects import within
from equipoise.study.plan import Primary
from equipoise.study.results import read_results

RESULTS = Path(__file__).parents[2] / "studies" / "results"
LONG_WRONG = ("regime_gap", "batch_token", "long_sums", "long_sums_weights")  # token, over the group, and balanced


@cache
def results(name):
    return read_results(RESULTS / f"{name}.json")


def differences(name, plus, minus):
    return 100 * np.array(within(results(name), Primary("", "acc@8", plus, minus, "mean"), None))


def gain(name, plus, minus):
    return float(differences(name, plus, minus).mean())


def over_batch(name):
    """What balanced over the batch gains on token over the batch."""
    return gain(name, "batch_balanced", "batch_token")


def longer(*names):
    """How much longer wrong responses are at the first step, percent."""
    gaps = [[run["first"]["bias/group_length_gap"] for run in results(name)["runs"].values()] for name in names]
    return [100 * float(np.mean(gap)) for gap in gaps]


def span(values, form=".1f"):
    return f"{min(values):{form}} to {max(values):{form}}".replace("-0.0 ", "0 ")


def test_what_a_pull_costs():
    wrong = gain("imbalance_off_policy", "imbalance=-0.3", "imbalance=0")
    assert f"cost accuracy ({-wrong:.1f} points at 0.54 to 1)" in studied.WRONG_PULL
    assert f"they gained {gain('positive', 'positive', 'balance'):.1f} points" in studied.RIGHT_PULL


def test_what_balanced_gains_where_wrong_responses_are_long():
    balanced = [gain(name, "balanced", "token") for name in LONG_WRONG]
    over = [gain(name, "batch_balanced", "balanced") for name in ("long_sums_weights", "weights_long_wrong")]
    assert f"were {span(longer(*LONG_WRONG), '.0f')} % longer" in studied.LONG_WRONG
    assert f"balanced learnt {span(balanced)} points more" in studied.LONG_WRONG
    assert f"over the batch {span(over)} more than that" in studied.LONG_WRONG
    long = ("long_sums_weights", "weights_long_wrong", "long_sums_start_1", "long_sums_start_2")
    assert f"were {span(longer(*long), '.0f')} % longer" in studied.LONG_OVER_BATCH
    assert f"learnt {span([over_batch(name) for name in long])} points more" in studied.LONG_OVER_BATCH
    assert f"where they were {longer('longer_wrong')[0]:.0f} % longer" in studied.LONG_OVER_BATCH
    assert max(map(abs, interval(differences("longer_wrong", "batch_balanced", "batch_token")))) < 0.5


def test_where_balanced_gains_nothing_and_where_it_loses():
    gaps = longer("parted_copy_less", "weights_spread_again", "weights", "parted_skip_less")
    assert f"were {span(gaps, '.0f')} % longer" in studied.SMALL_GAP
    assert max(gaps) < 100 * studied.LONG < min(longer(*LONG_WRONG))
    first, second = "parted_copy_less", "weights_spread_again"
    assert "were {:.0f} and {:.0f} % longer".format(*longer(first, second)) in studied.SPREAD_LOSS
    assert f"learnt {-over_batch(first):.1f} and {-over_batch(second):.1f} points less" in studied.SPREAD_LOSS
    first, second = "parted_skip_only", "long_sums_ahead"
    assert "were {:.0f} and {:.0f} % shorter".format(*(-gap for gap in longer(first, second))) in studied.SHORT_LOSS
    assert f"learnt {-over_batch(first):.1f} and {-over_batch(second):.1f} points less" in studied.SHORT_LOSS


def test_sequence_beside_balanced_and_token():
    tied = [gain(name, "balanced", "sequence") for name in ("regime_gap", "long_sums")]
    assert f"balanced learnt {span(tied)} points more than sequence".replace("0.0 to", "0 to") in studied.TIED
    more = [gain(name, "sequence", "token") for name in ("regime_gap", "long_sums")]
    assert f"sequence learnt {span(more)} points more" in studied.LARGE_GAP
    assert f"were {span(longer('regime_gap', 'long_sums'), '.0f')} % longer" in studied.LARGE_GAP


def test_what_takes_a_bias_out_and_gains_nothing():
    low, high = interval(differences("histories", "debias", "none"))
    assert -0.5 < low < high < 0.5
    assert "changed no half point" in studied.NO_COST
    less = [-gain(name, "sequence+prefix", "sequence") for name in ("accuracy_again", "cells_on_policy")]
    assert "({:.1f} and {:.1f} points less)".format(*less) in studied.PREFIX
