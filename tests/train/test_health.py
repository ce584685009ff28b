"""What a run warns of and why it stops, from the counts of its steps alone."""

from collections import Counter
from types import SimpleNamespace

import pytest

from equipoise.config import Config
from equipoise.train.folder import RunFolder
from equipoise.train.health import CUT_STEPS, QUIET_STEPS, Health
from equipoise.train.tally import STEPS, Tally


@pytest.fixture
def health(tmp_path):
    return Health(Config(), RunFolder(tmp_path), "token")


def batch(unscored=0, troubles=(), **kinds):
    """What Health reads of a step: by default eight responses that were graded."""
    kinds = kinds or {"correct": 4, "wrong": 4}
    return SimpleNamespace(kinds=Counter(kinds), unscored=unscored, troubles=list(troubles))


def quiet(health, steps, first=1, **kinds):
    """The warnings of steps in which no response pulled."""
    return [warning for k in range(steps) for warning in health.see(first + k, batch(**kinds), None)]


def test_a_run_that_learns_is_warned_of_nothing(health):
    warnings = [warning for step in range(1, 50) for warning in health.see(step, batch(), 0.5)]
    assert warnings == []
    assert health.problem() == ""


def test_steps_that_teach_nothing_are_warned_of_once_and_stop_the_run_in_the_end(health):
    most = health.config.train.max_uninformative
    assert quiet(health, QUIET_STEPS - 1) == []
    (warning,) = quiet(health, 1)
    assert f"for {QUIET_STEPS} steps: there is nothing to learn from" in warning
    assert str(health.folder.rollouts) in warning
    assert quiet(health, most - QUIET_STEPS - 1) == []
    assert health.problem() == ""
    quiet(health, 1)
    assert f"for {most} steps" in health.problem()
    assert health.problem().endswith("or raise train.max_uninformative")


def test_one_gradient_begins_the_count_anew(health):
    quiet(health, QUIET_STEPS - 1)
    health.see(QUIET_STEPS, batch(), 0.1)
    assert health.uninformative == 0
    assert quiet(health, QUIET_STEPS - 1) == []


@pytest.mark.parametrize(("unread", "is_said"), [(4, False), (5, True)])
def test_answers_that_cannot_be_read_are_named_as_the_cause_past_half(health, unread, is_said):
    (warning,) = quiet(health, QUIET_STEPS, unparsed=unread, wrong=8 - unread)
    assert ("task.suffix" in warning) == is_said
    assert ("too hard or too easy" in warning) == (not is_said)


def test_the_learning_rate_is_suspected_only_after_an_update(health):
    (warning,) = quiet(health, QUIET_STEPS)
    assert "learning rate" not in warning
    health.see(QUIET_STEPS + 1, batch(), 0.1)
    (warning,) = quiet(health, QUIET_STEPS, first=QUIET_STEPS + 2)
    assert f"the learning rate, {health.config.optim.lr}, too large" in warning


def test_steps_whose_verifier_failed_do_not_count_as_uninformative(health):
    crashed = Tally("mine:reward", "reward", Counter(crashed=8), failed=8, reason="ZeroDivisionError")
    for step in range(1, STEPS + 1):
        assert health.problem() == ""
        assert health.failing.see([crashed])
        assert health.see(step, batch(crashed=8), None) == []
    assert health.uninformative == 0
    assert "the reward function mine:reward crashed on 100% of the responses" in health.problem()
    assert str(health.folder.troubles) in health.problem()


def test_responses_without_a_score_stop_the_run_past_the_bound(health):
    health.config.reward.max_unscored = 0.25
    health.see(1, batch(unscored=2), 0.5)
    assert health.problem() == ""
    troubles = [{"verdict": "bad_gold", "reason": "Traceback\n  File x\nthe gold answer is empty"}] * 3
    health.see(2, batch(unscored=3, troubles=troubles), 0.5)
    assert health.problem().startswith(
        "38% of the responses have no score (bad_gold 3; the first: the gold answer is empty); "
    )
    assert "reward.max_unscored" in health.problem()


def test_unscored_responses_without_a_trouble_were_masked(health):
    health.see(1, batch(unscored=8), None)
    assert "have no score (masked)" in health.problem()


@pytest.mark.parametrize(("aggregation", "says_length"), [("token", False), ("constant", True)])
def test_a_clip_norm_that_cuts_every_step_is_told_once(tmp_path, aggregation, says_length):
    health = Health(Config(), RunFolder(tmp_path), aggregation)
    norm = 3 * health.config.optim.clip_norm
    told = [health.see(step, batch(), norm) for step in range(1, 2 * CUT_STEPS)]
    assert [bool(warnings) for warnings in told] == [step == CUT_STEPS for step in range(1, 2 * CUT_STEPS)]
    (warning,) = told[CUT_STEPS - 1]
    assert f"the gradients of {CUT_STEPS} steps" in warning
    assert ("objective.aggregation.length" in warning) == says_length
    assert health.problem() == ""  # it is no reason to stop


def test_gradients_a_little_over_the_clip_norm_or_without_one_are_not_told(health):
    clip = health.config.optim.clip_norm
    assert [w for step in range(30) for w in health.see(step, batch(), 2 * clip)] == []
    health.config.optim.clip_norm = 0.0  # no clipping
    assert [w for step in range(30) for w in health.see(step, batch(), 100.0)] == []


def test_a_step_without_a_gradient_does_not_end_a_row_of_cut_ones(health):
    norm = 3 * health.config.optim.clip_norm
    for step in range(1, CUT_STEPS):
        assert health.see(step, batch(), norm) == []
    assert health.see(CUT_STEPS, batch(), None) == []
    assert len(health.see(CUT_STEPS + 1, batch(), norm)) == 1
    assert health.see(CUT_STEPS + 2, batch(), 0.1) == []
    assert health.cut_norms == []
