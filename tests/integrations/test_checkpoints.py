"""A model by the folder of the run that made it: ours, TRL's and verl's, and one sentence where there is none."""

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from equipoise import policy
from equipoise.policy.names import ABACUS, folder_of
from tests.train.tiny import make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three models that differ, by their seed."""
    return [make_model(tmp_path_factory.mktemp("models") / str(seed), seed=seed) for seed in range(3)]


def weights(path):
    return AutoModelForCausalLM.from_pretrained(path).state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    ("inside", "asked"),
    [
        ("global_step_{}/actor/huggingface", ["", "global_step_10", "global_step_10/actor"]),  # verl
        ("checkpoint-{}", ["", "checkpoint-10"]),  # TRL
        ("checkpoints/step-{}", ["", "checkpoints", "checkpoints/step-10"]),  # ours
    ],
)
def test_the_last_checkpoint_of_a_run_is_the_run(models, tmp_path, inside, asked):
    """By number: 10 comes after 9, which a sort of the names would put last."""
    for number, model in zip((9, 10), models, strict=False):
        shutil.copytree(model, tmp_path / inside.format(number))
    for outer in asked:
        assert folder_of(str(tmp_path / outer)) == str(tmp_path / inside.format(10))
        opened = policy.load(tmp_path / outer)
        assert same(opened.model.state_dict(), weights(models[1]))
        assert opened.tokenizer("1+2=")["input_ids"] == AutoTokenizer.from_pretrained(models[1])("1+2=")["input_ids"]


def test_a_model_beside_its_checkpoints_comes_before_them(models, tmp_path):
    """TRL's `save_model` at the end writes into the folder that holds the checkpoints."""
    shutil.copytree(models[0], tmp_path / "run")
    shutil.copytree(models[1], tmp_path / "run" / "checkpoint-5")
    assert same(policy.load(tmp_path / "run").model.state_dict(), weights(models[0]))


def test_a_checkpoint_that_was_not_finished_is_passed_over(models, tmp_path):
    shutil.copytree(models[0], tmp_path / "checkpoint-5")
    (tmp_path / "checkpoint-6").mkdir()
    (tmp_path / "checkpoint-last").mkdir()
    assert folder_of(str(tmp_path)) == str(tmp_path / "checkpoint-5")


def test_an_adapter_alone_is_merged_into_its_base(models, tmp_path):
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(models[0])
    torch.manual_seed(0)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "checkpoint-1")
    AutoTokenizer.from_pretrained(models[0]).save_pretrained(tmp_path / "checkpoint-1")
    opened = policy.load(tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected, plain = adapted(ids).logits, AutoModelForCausalLM.from_pretrained(models[0])(ids).logits
        torch.testing.assert_close(opened.model(ids).logits, expected, rtol=1e-5, atol=1e-5)
        assert (expected - plain).abs().max() > 1e-2


def test_a_folder_without_a_model_says_what_was_looked_for(tmp_path):
    with pytest.raises(policy.ModelError) as error:
        folder_of(str(tmp_path))
    for place in ("config.json", "actor/huggingface", "checkpoints/step-N", "checkpoint-N", "global_step_N"):
        assert place in str(error.value)
    assert "\n" not in str(error.value)


def test_a_verl_checkpoint_without_its_weights_says_how_to_get_them(models, tmp_path):
    """verl writes config and tokenizer there always, the weights if asked."""
    inner = tmp_path / "global_step_3" / "actor" / "huggingface"
    shutil.copytree(models[0], inner, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(policy.ModelError, match=r"has no weights: .*names hf_model; .*model_merger merge"):
        policy.load(tmp_path)


def test_hub_names_stay_as_they_are():
    assert folder_of("Qwen/Qwen3-1.7B") == "Qwen/Qwen3-1.7B"
    assert folder_of("abacus") == str(ABACUS)
