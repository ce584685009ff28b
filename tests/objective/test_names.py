"""Objectives by name."""

import pytest

from equipoise.config import Config, ConfigError, load
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
    ("dappo", 'objective.preset = "dappo" is not known; did you mean "dapo"?'),  # dppo is as near
    ("dapo+balancd", 'objective.preset = "balancd" is not known; did you mean "balanced"?'),
    ("dapo+token+balanced", "dapo+token+balanced: token and balanced are both aggregation; leave one of them out"),
    ("dapo+prefix", "dapo+prefix: aggregation = token is exchangeable on every token already"),
])  # fmt: skip
def test_what_is_not_a_name(name, words):
    for build in (named, Objective.preset):
        with pytest.raises(ValueError) as error:
            build(name)
        assert str(error.value).startswith(words)


def test_a_composite_name_is_a_preset_wherever_one_is_taken():
    """By the constructor with further choices, in a configuration, by its flag, and in verl's table of options."""
    name, wanted = "dapo+balanced+hadw", Objective.preset("dapo", aggregation="balanced", difficulty="hadw").choices()
    assert Objective.preset(name).choices() == wanted
    lenient = Objective.preset(name, surrogate={"high": 0.4}, difficulty={"lam": 1.5})
    assert lenient.surrogate.options["high"] == 0.4
    assert (lenient.difficulty_choice.name, lenient.difficulty_choice.options["lam"]) == ("hadw", 1.5)
    for config in (load(None, ["--objective.preset", name]), Config.model_validate({"objective": {"preset": name}})):
        assert config.build_objective().choices() == wanted
    with pytest.raises(ConfigError, match=r'objective\.preset = "hadww" is not known; did you mean "hadw"\?'):
        load(None, ["--objective.preset", "dapo+hadww"])


def test_a_change_to_another_objective_names_what_it_could_be():
    with pytest.raises(ValueError, match='against = "balancd" is not known; did you mean "balanced"'):
        named("balancd", base=Objective())
    with pytest.raises(ValueError, match=r"\(grpo, dapo, .*token, sequence, .*\)"):
        named("zzz", base=Objective())
    with pytest.raises(ValueError, match=r"token, sequence") as error:
        named("dapo+zzz")
    assert "dapo," not in str(error.value)  # a preset is the first word, or none
