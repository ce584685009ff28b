"""What a configuration leaves to the model: told, written down, the same after a kill; and rates that destroy."""

import re
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from equipoise.config import ConfigError
from equipoise.config.sections import OptimConfig
from equipoise.config.sft import SftOptimConfig
from equipoise.policy import load as load_policy
from equipoise.train import RunFolder, Trainer, load
from equipoise.train.settle import RATES, SFT_RATES, Outline, as_begun, default_rate, open_chat, settle

from . import tiny

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}#{{ start }}{% endif %}"


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """A model that ends its texts as its template ends a turn."""
    folder = tiny.make_model(tmp_path_factory.mktemp("model") / "chatty")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def outline(folder, parameters=600_000_000):
    policy = load_policy(folder)
    return Outline(str(folder), policy.tokenizer, policy.eos, parameters)


@pytest.mark.parametrize(
    ("parameters", "rate", "with_lora"),
    [
        (344_000, 5e-4, 5e-4),
        (9_999_999, 5e-4, 5e-4),
        (135_000_000, 1e-5, 1e-4),
        (494_000_000, 3e-6, 3e-5),
        (1_000_000_000, 1e-6, 1e-5),
        (7_600_000_000, 1e-6, 1e-5),
    ],
)
def test_the_rate_goes_by_the_size(parameters, rate, with_lora):
    assert default_rate(parameters, False) == rate
    assert default_rate(parameters, True) == pytest.approx(with_lora)


@pytest.mark.parametrize(("section", "rates"), [(OptimConfig, RATES), (SftOptimConfig, SFT_RATES)])
def test_the_help_has_the_rates_that_are_taken(section, rates):
    said = section.model_fields["lr"].description
    assert [float(rate) for rate in re.findall(r"\de-\d", said)] == [rate for _, rate in rates]


def test_an_explicit_rate_wins_and_a_wrecking_one_is_a_warning(model):
    auto = settle(load(None), outline(model))
    assert auto.config.optim.lr == 3e-6
    assert any("learning rate: 3e-06 (the default for a model of 600M parameters" in note for note in auto.notes)
    assert auto.warnings == []
    high = settle(load(None, ["--optim.lr", "5e-4"]), outline(model))
    assert high.config.optim.lr == 5e-4
    assert "167 times the default" in high.warnings[0]
    assert settle(load(None, ["--optim.lr", "3e-5"]), outline(model)).warnings == []  # ten times: a choice
    small = settle(load(None, ["--optim.lr", "0.01"]), outline(model, 300_000))
    assert small.warnings == []


def test_options_of_adapters_without_any_are_a_warning(model):
    idle = settle(load(None, ["--model.lora_alpha", "4", "--model.lora_dropout", "0.1"]), outline(model))
    options = "model.lora_alpha = 4.0 and model.lora_dropout = 0.1"
    assert idle.warnings == [f"warning: {options} do nothing: model.lora_rank = 0 trains every weight"]
    assert settle(load(None, ["--model.lora_alpha", "4", "--model.lora_rank", "2"]), outline(model)).warnings == []


def test_chat_is_settled_by_the_model_unless_said(model, chat_model):
    on, off = (settle(load(None), outline(folder)) for folder in (chat_model, model))
    assert (on.chat.on, on.config.task.chat) == (True, True)
    assert (off.chat.on, off.config.task.chat) == (False, False)
    assert off.notes[0] == f"chat template: off ({model} has no chat template)"  # there is no other way
    assert on.notes[0].startswith("chat template: on (")
    assert "task.chat = false" in on.notes[0]
    said = settle(load(None, ["--task.chat", "false"]), outline(chat_model))
    assert (said.chat.on, said.notes[0]) == (False, "chat template: off (task.chat = false)")
    given = settle(load(None, ["--task.chat_template", TEMPLATE]), outline(model))
    assert given.chat.on


@pytest.mark.parametrize("option", [("system", "Be brief."), ("chat_template_kwargs", "{ start = '0' }")])
def test_what_only_a_template_writes_is_refused_without_one(model, chat_model, option):
    name, value = option
    with pytest.raises(ConfigError, match=f"task.{name} = .*has no chat template; task.chat_template gives it one$"):
        open_chat(load(None, [f"--task.{name}", value]).task, outline(model))
    base = replace(outline(chat_model), name="Some-0.6B-Base")
    with pytest.raises(ConfigError, match=f"task.{name} = .*Base.*; task.chat = true uses it$"):
        open_chat(load(None, [f"--task.{name}", value]).task, base)
    with pytest.raises(ConfigError, match=f"task.{name} = .*task.chat = false goes without one"):
        load(None, [f"--task.{name}", value, "--task.chat", "false"])


def test_a_template_file_lies_beside_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.jinja").write_text(TEMPLATE)
    (tmp_path / "configs" / "c.toml").write_text('[task]\nchat_template = "mine.jinja"\n')
    assert load(tmp_path / "configs" / "c.toml").task.chat_template == TEMPLATE
    monkeypatch.chdir(tmp_path / "configs")
    assert load(None, ["--task.chat_template", "mine.jinja"]).task.chat_template == TEMPLATE
    with pytest.raises(ConfigError, match=rf"there is no such file, not in {tmp_path}/configs, and it is no template"):
        load("c.toml", ["--task.chat_template", "other.jinja"])
    with pytest.raises(ConfigError, match=r'"thinking=false": must be a table, \{ name = value \}'):
        load("c.toml", ["--task.chat_template_kwargs", "thinking=false"])


def test_a_run_shows_what_the_model_read_and_says_what_was_settled(chat_model, tmp_path, capsys):
    options = {"task__chat_template_kwargs": {"start": "~"}, "train__steps": 1, "eval__every": 0, "optim__lr": "auto"}
    out = tmp_path / "run"
    Trainer(tiny.settings(chat_model, out, **options)).run()
    said = capsys.readouterr().out
    assert "chat template: on (" in said
    assert "learning rate: 0.0005 (the default for a model of " in said
    rows = pq.read_table(next(RunFolder(out).rollouts.iterdir())).to_pylist()
    for row in rows:
        assert row["model_input"] == f"{row['prompt']}<eos>#~"
    assert f"the model read   {rows[0]['prompt']}<eos>#~" in said
    assert f"it answered      {rows[0]['response']}" in said
    kept = load(RunFolder(out).config)
    assert (kept.task.chat, kept.optim.lr) == (True, 5e-4)


def test_a_template_of_the_configuration_is_saved_with_the_model(model, tmp_path):
    options = {"task__chat_template": TEMPLATE, "train__steps": 1, "eval__every": 0, "log__terminal": False}
    Trainer(tiny.settings(model, tmp_path / "run", **options)).run()
    assert AutoTokenizer.from_pretrained(tiny.last_checkpoint(tmp_path / "run")).chat_template == TEMPLATE


def test_a_resumed_run_keeps_what_it_began_with(chat_model, tmp_path):
    """Also one begun when the defaults were others: its configuration says so."""
    out = tmp_path / "run"
    begun = {"task__chat": False, "optim__lr": 0.002, "train__steps": 1, "eval__every": 0, "log__terminal": False}
    Trainer(tiny.settings(chat_model, out, **begun)).run()
    left = begun | {"task__chat": "auto", "optim__lr": "auto", "train__steps": 2}
    resumed = Trainer(tiny.settings(chat_model, out, **left), resume=True)
    assert (resumed.config.task.chat, resumed.config.optim.lr) == (False, 0.002)
    resumed.run()
    assert not resumed.settled.chat.on
    assert load(RunFolder(out).config).optim.lr == 0.002
    whole = as_begun(load(None, ["--optim.lr", "1.0"]), load(None, ["--optim.lr", "2.0"]))
    assert whole.optim.lr == 2.0  # said, and therefore a difference
