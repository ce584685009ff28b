"""The configuration: what is written is what is read, and every mistake is named."""

import dataclasses
import math
from dataclasses import fields
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from equipoise.config import Spec, Table, Worth
from equipoise.train import Config, ConfigError, describe, dump, load

SECTIONS = get_type_hints(Config)
OPTIONS = [(s, f) for s, kind in SECTIONS.items() for f in fields(kind)]
NAMES = [f"{s}.{f.name}" for s, f in OPTIONS]

text = st.text(st.characters(exclude_categories=["Cs"]))  # a lone surrogate is no text that a file could hold
number = st.floats(allow_nan=False)
scalar = st.integers(-(2**62), 2**62) | number | text | st.booleans()
table = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), scalar | st.lists(scalar, max_size=2))
KINDS = {
    int: st.integers(-(2**62), 2**62),
    float: number,
    str: text,
    bool: st.booleans(),
    Spec: st.none() | text | table,
    Worth: number | text,
    Table: st.none() | table,
}


def values(hint):
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    return KINDS[hint]


@st.composite
def configs(draw):
    sections = {}
    for name, kind in SECTIONS.items():
        hints = get_type_hints(kind)
        sections[name] = kind(**{f.name: draw(values(hints[f.name])) for f in fields(kind)})
    return Config(**sections)


@given(config=configs())
@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_what_is_written_is_read_back_the_same(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Config, "check", lambda self: None)  # random values need not make sense together
    file = tmp_path / "config.toml"
    file.write_text(dump(config), encoding="utf-8")
    assert load(file) == config


def test_the_defaults_can_be_run_and_written():
    config = load(None)
    config.check()
    assert config == Config()


@pytest.mark.parametrize("form", ["apart", "joined"])
def test_every_option_can_be_overridden(form, monkeypatch):
    monkeypatch.setattr(Config, "check", lambda self: None)
    for section, f in OPTIONS:
        hint = get_type_hints(SECTIONS[section])[f.name]
        value, written = {
            int: (7, "7"), float: (0.25, "0.25"), str: ("seven", "seven"),
            bool: (not f.default, str(not f.default).lower()),
            Spec: ({"name": "x", "y": 2}, '{name = "x", y = 2}'), Worth: (-0.5, "-0.5"),
            Table: ({"x": "y", "z": 2}, '{x = "y", z = 2}'),
        }.get(hint, (None, None))  # fmt: skip
        if get_origin(hint) is tuple:
            value, written = ((0.5, 2.0), "[0.5, 2]") if get_args(hint)[0] is float else (("a", "b"), '["a", "b"]')
        key = f"--{section}.{f.name}"
        config = load(None, [key, written] if form == "apart" else [f"{key}={written}"])
        changed = dataclasses.replace(getattr(Config(), section), **{f.name: value})
        assert config == dataclasses.replace(Config(), **{section: changed}), key


def test_an_override_wins_over_the_file_and_the_last_over_the_first(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[optim]\nlr = 0.5\nwarmup = 9\n")
    config = load(file, ["--optim.lr", "0.25", "--optim.lr=0.125"])
    assert (config.optim.lr, config.optim.warmup) == (0.125, 9)


def test_setting_an_option_of_a_choice_makes_the_name_a_table(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[objective]\ndifficulty = "hadw"\n')
    config = load(file, ["--objective.difficulty.lam", "1.5"])
    assert config.objective.difficulty == {"name": "hadw", "lam": 1.5}
    assert config.build_objective().difficulty.lam == 1.5
    options_alone = load(None, ["--objective.preset", "dapo", "--objective.surrogate.high", "0.4"])
    assert options_alone.build_objective().surrogate.options["high"] == 0.4


def test_the_order_of_a_choice_and_its_options_does_not_matter():
    config = load(None, ["--objective.difficulty.lam", "1.5", "--objective.difficulty", "hadw"])
    assert config.objective.difficulty == {"name": "hadw", "lam": 1.5}


def test_a_text_option_takes_what_looks_like_something_else():
    """A run directory may be called 7 or after a date."""
    for name in ("7", "2024-05-01", "true", "1e3", "[a]", '"quoted"'):
        assert load(None, ["--train.out", name]).train.out == name.strip('"')
    assert load(None, ["--rollout.stop", "5"]).rollout.stop == ("5",)
    assert load(None, ["--rollout.stop", '["5", ";"]']).rollout.stop == ("5", ";")


def test_every_option_has_a_sentence_and_stands_in_the_help():
    shown = describe()
    for (_, f), name in zip(OPTIONS, NAMES, strict=True):
        sentence = f.metadata["sentence"]
        assert len(sentence.split()) >= 2, name
        (line,) = [line for line in shown.splitlines() if line.startswith(f"  --{name} ")]
        assert sentence in line
        assert "default:" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--objective.agregation", "token"], 'objective.agregation is not an option; did you mean "aggregation"?'),
        (["--objectiv.kl", "1"], 'objectiv is not a section; did you mean "objective"?'),
        (["--objective.aggregation", "balancd"], 'aggregation = "balancd" is not known; did you mean "balanced"?'),
        (["--objective.preset", "grppo"], 'objective.preset = "grppo" is not known; did you mean "grpo"?'),
        (["--objective.surrogate.hihg", "1"], "hihg"),
        (["--optim.schedule", "cosin"], 'optim.schedule = "cosin" is not known; did you mean "cosine"?'),
        (["--model.dtype", "float16"], 'model.dtype = "float16" is not known'),
        (["--train.steps", "many"], "train.steps = 'many' should be a whole number"),
        (["--train.steps", "1.5"], "train.steps = 1.5 should be a whole number"),
        (["--train.steps", "true"], "train.steps = True should be a whole number"),
        (["--optim.lr", "fast"], "optim.lr = 'fast' should be a number"),
        (["--task.chat", "1"], "task.chat = 1 should be true or false"),
        (["--objective.advantage", "3"], "objective.advantage = 3 should be a name or a table"),
        (["--reward.weights", '["a"]'], "reward.weights[0] = 'a' should be a number"),
        (["--train", "3"], "--train: an override is --section.key value"),
        (["train.steps", "3"], "train.steps: an override is --section.key value"),
        (["--train.steps"], "--train.steps: the value is missing"),
        (["--train.steps.more", "3"], "train.steps"),
        (["--model", "{}", "--train.steps", "0"], "--model: an override"),
        (["--train.steps", "0"], "train.steps = 0: the rule is at least 1"),
        (["--rollout.group_size", "1"], "rollout.group_size = 1: advantage = grpo compares responses"),
        (["--rollout.temperature", "0"], "rollout.temperature = 0.0: the rule is more than 0"),
        (["--rollout.temperature", "inf"], "rollout.temperature = inf"),
        (["--rollout.top_p", "0"], "rollout.top_p = 0.0"),
        (["--rollout.top_p", "1.5"], "rollout.top_p = 1.5"),
        (["--rollout.min_p", "-0.1"], "rollout.min_p = -0.1"),
        (["--rollout.min_p", "1.5"], "rollout.min_p = 1.5"),
        (["--rollout.engine", "vllm", "--rollout.top_p", "0.9"], "rollout.top_k = 0: the rule is from 1 to 1000"),
        (["--rollout.engine", "vllm", "--rollout.top_k", "1001"], "rollout.top_k = 1001: the rule is from 1 to 1000"),
        (["--rollout.top_k", "-1"], "rollout.top_k = -1: the rule is at least 0"),
        (["--rollout.max_tokens", "-1"], "rollout.max_tokens = -1: the rule is at least 0"),
        (["--rollout.stop", '[""]'], "rollout.stop"),
        (["--reward.functions", '["task", "task"]'], "reward.functions has 2 entries, reward.weights 1"),
        (["--reward.functions", "[]", "--reward.weights", "[]"], "reward.functions"),
        (["--reward.weights", "nan"], "reward.weights"),
        (["--reward.overlong_buffer", "-1"], "reward.overlong_buffer = -1: the rule is at least 0"),
        (["--optim.betas", "[0.9]"], "optim.betas = [0.9]: the rule is two numbers"),
        (["--optim.betas", "[0.9, 1.0]"], "optim.betas"),
        (["--optim.lr", "-1e-3"], "optim.lr = -0.001"),
        (["--optim.lr", "nan"], "optim.lr = nan"),
        (["--optim.weight_decay", "-0.1"], "optim.weight_decay = -0.1"),
        (["--optim.clip_norm", "-1"], "optim.clip_norm = -1.0"),
        (["--optim.warmup", "-1"], "optim.warmup = -1: the rule is at least 0"),
        (["--train.max_skipped", "0"], "train.max_skipped = 0: the rule is at least 1"),
        (["--train.max_uninformative", "0"], "train.max_uninformative = 0: the rule is at least 1"),
        (["--eval.every", "-1"], "eval.every = -1: the rule is at least 0"),
        (["--eval.temperature", "-1"], "eval.temperature = -1.0"),
        (["--log.rollouts_every", "-1"], "log.rollouts_every = -1: the rule is at least 0"),
        (["--model.device", "gpu"], 'model.device = "gpu"'),
        (["--objective.kl", "-1"], "kl = -1.0"),
        (["--objective.cancellation.name", "prefix"], "objective.cancellation"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_the_rule(arguments, said):
    with pytest.raises(ConfigError) as error:
        load(None, arguments)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        (b"[train\nsteps = 3", "not valid TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b"train = 3", "train = 3 should be a section of options"),
        (b"steps = 3", "steps is not a section"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content, said, tmp_path):
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_a_single_response_is_allowed_where_nothing_is_compared():
    assert load(None, ["--rollout.group_size", "1", "--objective.preset", "reinforce"]).rollout.group_size == 1


def test_infinite_and_tiny_numbers_survive_the_file(tmp_path):
    config = Config()
    config.optim.lr, config.optim.weight_decay = 5e-324, 1e22
    config.reward.correct = math.inf
    (tmp_path / "c.toml").write_text(dump(config))
    again = load(tmp_path / "c.toml", ["--reward.correct", "1"])
    assert (again.optim.lr, again.optim.weight_decay) == (5e-324, 1e22)


def test_a_function_beside_the_configuration_or_in_the_working_directory(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    config = beside / "run.toml"
    config.write_text('[reward]\nfunctions = ["mine.py:f", "task", "module:f"]\nweights = [1, 1, 1]\n')
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError, match=rf'"mine.py:f": there is no file mine.py, not in {beside} and not in {here}'):
        load(config)
    (here / "mine.py").touch()
    assert load(config).reward.functions == (f"{here}/mine.py:f", "task", "module:f")
    (beside / "mine.py").touch()
    found = load(config)
    assert found.reward.functions == (f"{beside}/mine.py:f", "task", "module:f")
    (tmp_path / "config.toml").write_text(dump(found))
    assert load(tmp_path / "config.toml") == found
    assert load(None, ["--reward.functions", "mine.py:f"]).reward.functions == (f"{here}/mine.py:f",)
