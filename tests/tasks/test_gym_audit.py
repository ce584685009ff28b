"""No constant and no echo of the question is paid for on any reasoning-gym task; `gym_audit` says what that means."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym")

from equipoise.tasks import scoring

from . import gym_audit

DOCUMENT = Path(__file__).parents[2] / "docs" / "gym.md"
REPAIRED = {*scoring.OWN, *scoring.CONFIRMED, *scoring.ALL_OR_NOTHING}
# One right answer in many forms, or an item whose question is its answer.
ALTERNATIVES = {
    "countdown": "many expressions make the target",
    "pool_matrix": "a kernel of size 1 changes nothing",
    "power_function": "three significant figures are asked for",
    "puzzle24": "many expressions make 24",
    "quantum_lock": "any shortest sequence opens it",
}
QUICK = sorted(
    REPAIRED - {"rectangle_count"} | {"chain_sum", "leg_counting", "spell_backward", "caesar_cipher", "dice"}
)


def assert_not_fooled(task, count):
    found = gym_audit.audit(task, count)
    assert found.excess <= gym_audit.BOUND, found
    assert found.forged == 0 or task in ALTERNATIVES, found


@pytest.mark.parametrize("task", QUICK)
def test_what_was_repaired_is_not_fooled(task):
    assert_not_fooled(task, 4)


@pytest.mark.slow
def test_no_task_is_fooled():
    for task in gym_audit.tasks():
        assert_not_fooled(task, 8)


@pytest.mark.parametrize("task", ["game_of_life", "coin_flip", "course_schedule", "puzzle24"])
def test_the_audit_finds_what_the_package_pays_for(task, monkeypatch):
    """Without the repairs it fails: a test that cannot fail shows nothing."""
    monkeypatch.setattr(scoring, "OWN", {})
    monkeypatch.setattr(scoring, "CONFIRMED", {})
    monkeypatch.setattr(scoring, "ALL_OR_NOTHING", ())
    found = gym_audit.audit(task, 4)
    assert found.excess > gym_audit.BOUND or found.forged


@pytest.mark.parametrize(
    ("task", "text"), [("puzzle24", "4*6*1*1"), ("coin_flip", "0.5"), ("puzzle24", "24"), ("puzzle24", "5*5-1/1")]
)
def test_the_constants_of_an_attack_earn_nothing(task, text):
    for entry in gym_audit.items(task, 4):
        right = task == "coin_flip" and abs(Fraction(entry["answer"]) - 0.5) < 1e-4
        given = sorted(map(int, re.findall(r"\d+", text))) == sorted(entry["metadata"].get("numbers", []))
        assert right or given or gym_audit.value(task, entry, text) == 0.0


def test_references_of_repaired_tasks_score_one():
    for task in sorted(REPAIRED):
        (entry, *_) = gym_audit.items(task, 1)
        assert gym_audit.value(task, entry, entry["answer"]) == 1.0, task


def test_the_document_lists_every_repair():
    text = DOCUMENT.read_text()
    assert not [task for task in REPAIRED if not re.search(rf"^\| {task} \|", text, re.MULTILINE)]
