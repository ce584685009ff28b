"""Objectives by name."""

import pytest

from equipoise.objective import PRESETS, Objective, named


def test_a_preset_is_itself():
    for name in PRESETS:
        assert named(name).choices() == Objective.preset(name).choices()


def test_words_replace_the_presets_own_choices():
    wanted = Objective.preset("dapo", aggregation="balanced", difficulty="hadw", cancellation="recentre")
    assert named("dapo+balanced+hadw+recentre").choices() == wanted.choices()
    assert named("sequence", base=wanted).choices() == {**wanted.choices(), "aggregation": {"name": "sequence"}}


@pytest.mark.parametrize(("name", "words"), [
    ("dapoo+hadw", 'objective.preset = "dapoo" is not known; did you mean "dapo"?'),
    ("dapo+balancd", 'objective = "balancd" is not known; did you mean "balanced"?'),
    ("dapo+prefix", "dapo+prefix: aggregation = token is exchangeable on every token already"),
])  # fmt: skip
def test_what_is_not_a_name(name, words):
    with pytest.raises(ValueError) as error:
        named(name)
    assert str(error.value).startswith(words)
