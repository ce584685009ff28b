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
LONG_WRONG = ("long_sums", "long_sums_weights", "tree_search")  # token, over the group, and balanced
LONG_OVER_BATCH = (
    "long_sums_weights",
    "long_sums_start_1",
    "long_sums_start_2",
    "tree_search",
    "tree_search_short",
    "tree_search_start_1",
    "tree_search_less",
)
SMALL_GAP = ("weights", "parted_skip_less", "parted_copy_only", "weights_long_wrong", "longer_wrong")
LEVEL = ("long_sums_ahead", "parted_skip_only", "parted_copy_less", "weights_spread_again")


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


def longer(*names, rule="batch_token"):
    """How much longer wrong responses are over the runs of token, percent of the mean length."""

    def gap(name):
        runs = results(name)["runs"]
        return np.mean([runs[key]["run"]["bias/group_length_gap"] for key in runs if key.startswith(f"{rule}/")])

    return [100 * float(gap(name)) for name in names]


def span(values, form=".1f"):
    values = list(values)
    return f"{min(values):{form}} to {max(values):{form}}".replace("-0.0 ", "0 ")


def test_what_a_pull_costs():
    wrong = gain("imbalance_off_policy", "imbalance=-0.3", "imbalance=0")
    assert f"cost accuracy ({-wrong:.1f} points at 0.54 to 1)" in studied.WRONG_PULL
    assert f"they gained {gain('positive', 'positive', 'balance'):.1f} points" in studied.RIGHT_PULL


def test_what_balanced_gains_where_wrong_responses_are_long():
    gaps = longer(*LONG_WRONG, rule="token")
    balanced = [gain(name, "balanced", "token") for name in LONG_WRONG]
    over = [gain(name, "batch_balanced", "balanced") for name in ("long_sums_weights", "tree_search")]
    assert f"were {span(gaps, '.0f')} % longer" in studied.LONG_WRONG
    assert f"balanced learnt {span(balanced)} points more" in studied.LONG_WRONG
    assert f"over the batch {span(over)} more than that" in studied.LONG_WRONG
    assert f"were {span(longer(*LONG_OVER_BATCH), '.0f')} % longer" in studied.LONG_OVER_BATCH
    assert f"learnt {span(map(over_batch, LONG_OVER_BATCH))} points more" in studied.LONG_OVER_BATCH


def test_where_balanced_gains_little_and_where_it_loses():
    gaps, level = longer(*SMALL_GAP), longer(*LEVEL)
    assert f"were {span(gaps, '.0f')} % longer" in studied.SMALL_GAP
    assert f"learnt {span(map(over_batch, SMALL_GAP))} points more" in studied.SMALL_GAP
    assert f"from {-min(level):.0f} % shorter to {max(level):.0f} % longer" in studied.LEVEL_LOSS
    assert f"learnt {span(-over_batch(name) for name in LEVEL)} points less" in studied.LEVEL_LOSS
    assert max(level) < 100 * studied.LEVEL < min(gaps)
    assert max(gaps) < 100 * studied.LONG < min(longer(*LONG_OVER_BATCH))


def test_the_batches_of_the_shortest_run():
    runs = [
        run for name in (*LONG_WRONG, *LONG_OVER_BATCH, *SMALL_GAP, *LEVEL) for run in results(name)["runs"].values()
    ]
    assert min(run["steps"][-1] for run in runs) == studied.BATCHES
    assert f"of {studied.BATCHES} batches" in studied.EARLY


def test_no_real_model_decided_it():
    for name in ("gsm8k_15b", "gsm8k_long"):
        row = Primary("", "acc@8", "batch_balanced", "batch_token", "last")
        low, high = interval([100 * d for d in within(results(name), row, None)])
        assert low < 0 < high


def test_sequence_beside_balanced_and_token():
    tied = [gain(name, "balanced", "sequence") for name in ("regime_gap", "long_sums")]
    assert f"balanced learnt {span(tied)} points more than sequence".replace("0.0 to", "0 to") in studied.TIED
    more = [gain(name, "sequence", "token") for name in ("regime_gap", "long_sums")]
    assert f"sequence learnt {span(more)} points more" in studied.LARGE_GAP
    assert f"were {span(longer('regime_gap', 'long_sums', rule='token'), '.0f')} % longer" in studied.LARGE_GAP


def test_what_takes_a_bias_out_and_gains_nothing():
    low, high = interval(differences("histories", "debias", "none"))
    assert -0.5 < low < high < 0.5
    assert "changed no half point" in studied.NO_COST
    less = [-gain(name, "sequence+prefix", "sequence") for name in ("accuracy_again", "cells_on_policy")]
    assert "({:.1f} and {:.1f} points less)".format(*less) in studied.PREFIX
