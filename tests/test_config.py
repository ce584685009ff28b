"""The configuration: what is written is what is read, and every mistake is named."""

import datetime
import inspect
import math
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import Field, create_model

from equipoise.config import TaskConfig, config
from equipoise.config.errors import NAMED_ELSEWHERE, help_of, options_of
from equipoise.config.sections import VERDICTS
from equipoise.tasks import open_task
from equipoise.toml import toml
from equipoise.train import Config, ConfigError, describe, dump, load
from equipoise.verifiers.math.equal import RULES
from equipoise.verifiers.math.extract import ANSWER_IN
from equipoise.verifiers.verdict import LARGEST
from tests.integrations.test_account import OTHERS

SECTIONS = {name: field.annotation for name, field in Config.model_fields.items()}
OPTIONS = {
    f"{section}.{key}": option for section, fields in options_of(Config).items() for key, option in fields.items()
}

# The same sections without the rules between them: random values need not make sense together.
Loose = create_model(
    "Loose",
    __config__=Config.model_config,
    **{name: (section, Field(default_factory=section)) for name, section in SECTIONS.items()},
)


@pytest.fixture
def loose(monkeypatch):
    monkeypatch.setattr(config, "Config", Loose)


number = st.floats(allow_nan=False, allow_infinity=False)
scalar = st.integers(-(2**62), 2**62) | number | st.text() | st.booleans() | st.dates()
reward = st.floats(-LARGEST, LARGEST)
table = st.dictionaries(st.text(), scalar | st.lists(scalar, max_size=2))
no_file = st.text().filter(lambda name: ".py:" not in name)  # a file must be there
# Options that take less than their type says.
SPECIAL = {
    "model.device": st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    "rollout.stop": st.lists(st.text(min_size=1), max_size=3).map(tuple),
    "reward.functions": st.lists(no_file, max_size=3).map(tuple),
    "reward.judge": no_file,
    "reward.weights": st.lists(reward, max_size=3).map(tuple),
    **{f"reward.{verdict}": reward | st.sampled_from(["wrong", "mask"]) for verdict in VERDICTS},
    "task.chat_template": st.text().map(lambda text: text and "{{" + text),  # without braces, a file that must be there
    "reward.tags": st.lists(st.from_regex(r"[a-z]+", fullmatch=True), min_size=1, max_size=3).map(tuple),
    "optim.lr": st.just("auto") | st.floats(0, allow_infinity=False),
    "optim.betas": st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
    "sandbox.backend": st.sampled_from(["bubblewrap", "http://runner:8770"]),
    "sandbox.memory_bytes": st.integers(1 << 26, 1 << 60),
    "train.memory": st.sampled_from(["auto", "20 GiB", "1.5GB"]),
}


def values(name: str) -> st.SearchStrategy:
    """What an option takes, by its type and bounds."""
    option = OPTIONS[name]
    if name in SPECIAL:
        return SPECIAL[name]
    if dict[str, Any] in get_args(option.annotation):
        return st.none() | table | (st.text() if str in get_args(option.annotation) else st.nothing())
    drawn = st.from_type(Annotated[option.annotation, *option.metadata, name])
    return drawn.filter(lambda value: not isinstance(value, float) or math.isfinite(value))


CONFIGS = st.builds(
    Loose,
    **{
        section: st.fixed_dictionaries({key: values(f"{section}.{key}") for key in options})
        for section, options in options_of(Config).items()
    },
)


@given(written=CONFIGS)
@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_what_is_written_is_read_back_the_same(written, tmp_path, loose):
    file = tmp_path / "config.toml"
    file.write_text(dump(written), encoding="utf-8")
    assert load(file) == written


def test_the_defaults_can_be_run_and_written():
    config = load(None)
    config.check()
    assert config == Config()


@pytest.mark.parametrize("form", ["apart", "joined"])
def test_every_option_can_be_overridden(form, loose):
    assert OTHERS.keys() == OPTIONS.keys()
    for name, value in OTHERS.items():
        section, key = name.split(".")
        written = [f"--{name}", toml(value)] if form == "apart" else [f"--{name}={toml(value)}"]
        expected = Loose()
        setattr(getattr(expected, section), key, tuple(value) if isinstance(value, list) else value)
        assert load(None, written) == expected, name
        assert load(None, written) != Loose(), name


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
    for name, option in OPTIONS.items():
        sentence = help_of(option)
        assert len(sentence.split()) >= 2, name
        (line,) = [line for line in shown.splitlines() if line.startswith(f"  --{name} ")]
        assert sentence in line
        assert "default:" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--objective.agregation", "token"], 'objective.agregation is not an option; did you mean "aggregation"?'),
        (["--objectiv.kl", "1"], 'objectiv is not a section; did you mean "objective"?'),
        (["--train.lr", "1"], "train.lr is not an option; did you mean optim.lr?"),
        (["--train.learning_rate", "1"], "train.learning_rate is not an option; did you mean optim.lr?"),
        (["--optim.name", "adamw"], "optim.name is not an option; did you mean model.name or task.name?"),
        (["--objective.aggregation", "balancd"], 'aggregation = "balancd" is not known; did you mean "balanced"?'),
        (["--objective.preset", "grppo"], 'objective.preset = "grppo" is not known; did you mean "grpo"?'),
        (["--objective.surrogate.hihg", "1"], "hihg"),
        (["--optim.schedule", "cosin"], 'optim.schedule = "cosin" is not known; did you mean "cosine"?'),
        (["--model.dtype", "float16"], 'model.dtype = "float16" is not known'),
        (["--train.steps", "many"], 'train.steps = "many": must be a whole number (steps: a batch of rollouts'),
        (["--train.steps", "1.5"], "train.steps = 1.5: must be a whole number"),
        (["--train.steps", "true"], "train.steps = true: must be a whole number"),
        (["--optim.lr", "fast"], 'optim.lr = "fast": must be auto, or a finite number'),
        (["--task.chat", "1"], "task.chat = 1: must be true, false or auto"),
        (["--objective.advantage", "3"], "objective.advantage = 3: must be a name or a table"),
        (["--reward.weights", '["a"]'], 'reward.weights[0] = "a": must be a number'),
        (["--train", "3"], "--train: an override is --section.key value"),
        (["train.steps", "3"], "train.steps: an override is --section.key value"),
        (["--train.steps"], "--train.steps: the value is missing"),
        (["--train.steps.more", "3"], "train.steps"),
        (["--model", "{}", "--train.steps", "0"], "--model: an override"),
        (["--train.steps", "0"], "train.steps = 0: must be at least 1"),
        (["--rollout.group_size", "1"], "rollout.group_size = 1: advantage = grpo compares responses"),
        (
            ["--rollout.group_size", "2", "--objective.advantage", "pass_at_k"],
            "rollout.group_size = 2: must be at least k = 4 with objective.advantage = pass_at_k",
        ),
        (["--rollout.temperature", "0"], "rollout.temperature = 0: must be more than 0"),
        (["--rollout.temperature", "inf"], "rollout.temperature = inf"),
        (["--rollout.top_p", "0"], "rollout.top_p = 0: must be more than 0 (nucleus"),
        (["--rollout.top_p", "1.5"], "rollout.top_p = 1.5: must be at most 1 (nucleus; 1 keeps the whole vocabulary)"),
        (["--rollout.min_p", "-0.1"], "rollout.min_p = -0.1: must be at least 0"),
        (["--rollout.min_p", "1.5"], "rollout.min_p = 1.5: must be at most 1"),
        (["--rollout.engine", "vllm", "--rollout.top_p", "0.9"], "rollout.top_k = 0: must be from 1 to 1000"),
        (["--rollout.engine", "vllm", "--rollout.top_k", "1001"], "rollout.top_k = 1001: must be from 1 to 1000"),
        (["--rollout.top_k", "-1"], "rollout.top_k = -1: must be at least 0"),
        (["--rollout.max_tokens", "-1"], "rollout.max_tokens = -1: must be at least 0"),
        (["--rollout.stop", '[""]'], "rollout.stop"),
        (["--reward.functions", '["task", "task"]'], "reward.functions has 2 entries, reward.weights 1"),
        (["--reward.functions", "[]", "--reward.weights", "[]"], "reward.functions"),
        (["--reward.weights", "nan"], "reward.weights"),
        (["--reward.weights", "0"], "reward.weights = [0.0]: at least one must not be 0, or every reward is 0"),
        (["--reward.functions", '["task", "tags"]', "--reward.weights", "[0, 0]"], "[1.0, 1.0] adds the functions up"),
        (["--reward.correct", "-1"], "reward.wrong = 0: must be at most reward.correct, -1, or what is not right"),
        (["--reward.wrong", "2"], "reward.wrong = 2: must be at most reward.correct, 1"),
        (["--reward.unparsed", "2"], "reward.unparsed = 2: must be at most reward.correct, 1"),
        (["--reward.overlong_buffer", "-1"], "reward.overlong_buffer = -1: must be at least 0"),
        (["--optim.betas", "[0.9]"], "optim.betas = [0.9]: must be two numbers"),
        (["--optim.betas", "[0.9, 1.0]"], "optim.betas[1] = 1.0: must be less than 1 (AdamW's two decay rates)"),
        (["--optim.betas", "[0.9, 0.9, 0.9]"], "optim.betas = [0.9, 0.9, 0.9]: must be two numbers"),
        (["--optim.lr", "-1e-3"], "optim.lr = -0.001"),
        (["--optim.lr", "nan"], "optim.lr = nan"),
        (["--optim.weight_decay", "-0.1"], "optim.weight_decay = -0.1"),
        (["--optim.clip_norm", "-1"], "optim.clip_norm = -1: must be at least 0"),
        (["--optim.warmup", "-1"], "optim.warmup = -1: must be at least 0"),
        (["--train.max_skipped", "0"], "train.max_skipped = 0: must be at least 1"),
        (["--train.max_uninformative", "0"], "train.max_uninformative = 0: must be at least 1"),
        (["--eval.every", "-1"], "eval.every = -1: must be at least 0"),
        (["--eval.temperature", "-1"], "eval.temperature = -1: must be at least 0"),
        (["--log.rollouts_every", "-1"], "log.rollouts_every = -1: must be at least 0"),
        (["--model.device", "gpu"], 'model.device = "gpu"'),
        (["--objective.kl", "-1"], "kl = -1.0"),
        (["--objective.cancellation.name", "prefix"], "objective.cancellation"),
        (["--train.seed", "99999999999999999999"], "99999999999999999999: must be at most 9223372036854775807 (seed"),
        (["--rollout.max_tokens", "99999999999999999999"], "99999999999999999999: must be at most 9223372036854775807"),
        (["--train.threads", "1000000"], "train.threads = 1000000: must be at most 4096"),
        (["--reward.correct", "1e308"], "reward.correct = 1e+308: must be at most 1e+15 (reward of a correct answer)"),
        (["--reward.timeout", "-1e16"], "timeout = -1e+16: must be a number from −1e+15 to 1e+15, wrong or mask"),
        (["--reward.weights", "[1e300]"], "reward.weights[0] = 1e+300: must be at most 1e+15"),
        (["--train.out", ""], 'train.out = "": must be at least a character long'),
        (["--model.name", ""], 'model.name = "": must be at least a character long'),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_the_rule(arguments, said):
    with pytest.raises(ConfigError) as error:
        load(None, arguments)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    (tmp_path / "c.toml").write_text("[train]\nsteps = 7\n", encoding="utf-8-sig")
    assert load(tmp_path / "c.toml").train.steps == 7


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        (b"[train\nsteps = 3", "not valid TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b"train = 3", "train = 3: must be a section of options"),
        (b"steps = 3", r"steps is not a section; did you mean train\.steps\?"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content, said, tmp_path):
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load(file)
    with pytest.raises(ConfigError, match=r"is a folder; a configuration is a \.toml file"):
        load(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=r"is a folder; did you mean .*config\.toml\?"):
        load(tmp_path)


def test_data_in_the_place_of_a_configuration(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    with pytest.raises(ConfigError, match=r"a configuration is a \.toml file, and names its data as task\.name"):
        load(rows)


def test_names_of_other_trainers_lead_to_options_that_exist():
    sections = options_of(Config)
    for name, option in NAMED_ELSEWHERE.items():
        section, key = option.split(".")
        assert key in sections[section]
        assert not any(name in options for options in sections.values()), name


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [
        (["--reward.wrong", "-1", "--reward.unparsed", "-2", "--reward.bad_gold", "2"], "bad_gold", 2.0),
        (["--reward.correct", "0", "--reward.wrong", "0", "--reward.unparsed", "-1"], "correct", 0.0),
        (["--reward.weights", "-1"], "weights", (-1.0,)),  # on purpose
        (["--reward.functions", '["task", "tags"]', "--reward.weights", "[0, 1]"], "weights", (0.0, 1.0)),
        (["--reward.weights", "0", "--train.teacher", "abacus"], "weights", (0.0,)),
        (["--reward.correct", "1e15"], "correct", 1e15),
    ],
)
def test_rewards_that_can_teach_something_are_taken(arguments, option, value):
    assert getattr(load(None, arguments).reward, option) == value


def test_a_single_response_is_allowed_where_nothing_is_compared():
    assert load(None, ["--rollout.group_size", "1", "--objective.preset", "reinforce"]).rollout.group_size == 1


def test_infinite_and_tiny_numbers_survive_the_file(tmp_path):
    config = Config()
    config.optim.lr, config.optim.weight_decay, config.optim.clip_norm = 5e-324, 1e22, math.inf
    (tmp_path / "c.toml").write_text(dump(config))
    assert load(tmp_path / "c.toml") == config


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("optim", "lr", -1.0, "optim.lr = -1.0: must be auto, or a finite number that is at least 0"),
        ("optim", "lr", "fast", 'optim.lr = "fast": must be auto, or a finite number'),
        ("train", "out", Path("runs"), f"train.out = {Path('runs')!r}: must be a text (the run directory)"),
        ("train", "mini_batch", 40, "train.mini_batch = 40: must be at most rollout.prompts, 32; 0 is all of them"),
        ("train", "shard", True, "train.shard = true: must go without LoRA"),
        ("model", "quantize", "nf4", "model.quantize = nf4: must be none without LoRA"),
        ("train", "average", 4, "train.average = 4: must be at most train.keep + 1, 3"),
        ("train", "keep_best", "loss", 'train.keep_best = "loss": must be a metric of the evaluations, acc@8'),
        ("log", "project", "", 'log.project = "": must be a name'),
        ("objective", "advantage", "none", "objective.advantage = none: there is nothing to learn without"),
        ("objective", "mismatch", "tis", 'objective.mismatch = "tis": must be none unless rollout.exact = true'),
        ("sandbox", "backend", "docker", 'sandbox.backend = "docker" is no backend: it must be bubblewrap'),
        ("sandbox", "memory_bytes", 5, "memory_bytes = 5: the interpreter alone needs"),
    ],
)
def test_what_a_program_assigned_is_checked_like_a_file(section, key, value, said):
    config = Config()
    setattr(getattr(config, section), key, value)
    with pytest.raises(ConfigError) as error:
        config.check()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "value",
    [3, 10**20, 1e308, -1, 1.5, math.nan, True, "x", [], [1, "a", 0.5], {"a": [1]}, datetime.date(2026, 11, 16)],
    ids=str,
)
def test_no_value_of_any_option_is_more_than_a_sentence(value, tmp_path):
    """Whatever a file holds, it is taken or refused by name; nothing else is raised."""
    refused = {}
    for name in OPTIONS:
        section, key = name.split(".")
        (tmp_path / "c.toml").write_text(f"[{section}]\n{key} = {toml(value)}\n")
        try:
            load(tmp_path / "c.toml")
        except ConfigError as error:
            refused[name] = str(error)
    assert len(refused) > len(OPTIONS) // 4
    assert all(name.split(".")[1] in said and "\n" not in said for name, said in refused.items())


def test_the_choices_are_those_of_the_verifier():
    assert get_args(TaskConfig.model_fields["answer_in"].annotation) == ANSWER_IN
    assert get_args(TaskConfig.model_fields["rules"].annotation) == RULES


def test_the_command_line_and_verifiers_do_not_load_the_configuration():
    """Their processes start by the dozen: neither pydantic nor torch belongs in them."""
    modules = ("cli", "verifiers", "verifiers.workers.worker", "verifiers.workers.functions", "verifiers.code.judge")
    imports = "; ".join(f"import equipoise.{module}" for module in modules)
    heavy = {"pydantic", "torch", "equipoise.config"}
    code = f"import sys; {imports}; print({heavy} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


@pytest.mark.parametrize("folder", ["", "rewards/", "{tmp_path}/rewards/"])
def test_the_nearest_file_of_a_function_in_its_own_folder(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    folder = folder.format(tmp_path=tmp_path)
    (tmp_path / folder).mkdir(exist_ok=True)
    for name in ("brief.py", "brif.toml"):
        (tmp_path / folder / name).touch()
    with pytest.raises(ConfigError, match=rf"; did you mean {folder}brief\.py\?$"):
        load(None, ["--reward.functions", f'["{folder}brif.py:f"]'])


def test_a_function_beside_the_configuration_or_in_the_working_directory(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    config = beside / "run.toml"
    config.write_text('[reward]\nfunctions = ["mine.py:f", "task", "module:f"]\nweights = [1, 1, 1]\n')
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError, match=rf'"mine.py:f": there is no file mine.py in {beside} or {here}'):
        load(config)
    monkeypatch.chdir(beside)
    with pytest.raises(ConfigError, match=rf"there is no file mine.py in {beside}$"):  # one place, said once
        load(config)
    (beside / "mines.py").touch()
    with pytest.raises(ConfigError, match=rf"there is no file mine.py in {beside}; did you mean mines.py\?$"):
        load(config)
    (beside / "mines.py").unlink()
    monkeypatch.chdir(here)
    (here / "mine.py").touch()
    assert load(config).reward.functions == (f"{here}/mine.py:f", "task", "module:f")
    (beside / "mine.py").touch()
    found = load(config)
    assert found.reward.functions == (f"{beside}/mine.py:f", "task", "module:f")
    (tmp_path / "config.toml").write_text(dump(found))
    assert load(tmp_path / "config.toml") == found
    assert load(None, ["--reward.functions", "mine.py:f"]).reward.functions == (f"{here}/mine.py:f",)


def test_a_task_is_opened_with_every_option_of_its_section():
    """An option that open_task does not know would fail at the first run, and one it alone knows could not be set."""
    taken = set(inspect.signature(open_task).parameters)
    # `graded` is what the section [reward] asks for, the others are given by the run.
    assert set(TaskConfig().options()) == taken - {"name", "seed", "count_tokens", "rows", "graded"}
    assert TaskConfig().options()["held_out"] is None
    assert TaskConfig(held_out="x.jsonl").options()["held_out"] == "x.jsonl"
