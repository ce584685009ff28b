import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from equipoise import policy as p
from equipoise.policy.model import gguf_read_once
from tests.policy import tiny_models


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_saved_folder_opens_with_plain_transformers_and_with_load(tmp_path):
    policy = tiny_models.policy("grouped")
    p.save(policy, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same(plain, policy.model)
    assert plain.generation_config.eos_token_id == 2
    assert "equipoise" not in (tmp_path / "config.json").read_text()
    assert AutoTokenizer.from_pretrained(tmp_path)("12+3=").input_ids == p.encode(policy, "12+3=")
    loaded = p.load(tmp_path)
    assert same(loaded.model, policy.model)
    assert loaded.eos == (2,)
    assert loaded.context == 128


def test_restore_brings_weights_back_in_place(tmp_path):
    policy = tiny_models.policy()
    p.save(policy, tmp_path)
    original = p.frozen_copy(policy)
    first = policy.parameters()[0]
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(1.0)
    p.restore(policy, tmp_path)
    assert same(policy.model, original.model)
    assert policy.parameters()[0] is first  # an optimizer still holds the right tensors


def test_lora_trains_the_adapter_alone_and_saves_both_ways(tmp_path):
    base = tiny_models.policy("qwen2")
    p.save(base, tmp_path / "base")
    policy = p.load(tmp_path / "base", lora=p.Lora(rank=4, alpha=8))
    assert all("lora_" in name for name, q in policy.model.named_parameters() if q.requires_grad)
    assert policy.is_llama_like
    prompts = tiny_models.prompts(3)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 2))
    untrained = p.token_logprobs(base, pack).logprobs.detach()
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.05 * torch.randn_like(q))
    trained = p.token_logprobs(policy, pack).logprobs
    assert (trained - untrained).abs().max() > 1e-2
    torch.testing.assert_close(p.reference_logprobs(policy, None, pack), untrained, atol=1e-5, rtol=0)
    trained.sum().backward()
    assert all(q.grad is not None for q in policy.parameters())

    weights = {k: v.clone() for k, v in policy.model.state_dict().items()}
    p.save(policy, tmp_path / "saved")
    assert all(torch.equal(v, weights[k]) for k, v in policy.model.state_dict().items())
    merged = p.load(tmp_path / "saved")
    assert not merged.has_adapter
    torch.testing.assert_close(p.token_logprobs(merged, pack).logprobs, trained, atol=1e-4, rtol=0)
    again = p.load(tmp_path / "base", lora=p.Lora(rank=4, alpha=8))
    p.restore(again, tmp_path / "saved")
    assert same(again.model, policy.model)


def test_prompts_are_text_or_messages():
    policy = tiny_models.policy()
    assert policy.tokenizer.decode(p.encode(policy, "1+2=")) == "1+2="
    chat = p.encode(policy, [{"role": "user", "content": "1+2"}])
    assert p.decode(policy, torch.tensor(chat), torch.tensor([len(chat)])) == [".1+2;b."]
    policy.tokenizer.chat_template = None
    with pytest.raises(p.ModelError, match="no chat template"):
        p.encode(policy, [{"role": "user", "content": "1+2"}])
    with pytest.raises(ValueError, match="no tokens"):
        p.encode(policy, "")


def test_a_prompt_that_fills_the_context_is_refused():
    policy = tiny_models.policy()
    assert len(p.encode(policy, "1" * 127)) == 127
    with pytest.raises(p.PromptTooLong, match=r"128 tokens.*context of 128"):
        p.encode(policy, "1" * 128)


def test_a_missing_or_broken_model_is_one_sentence(tmp_path):
    with pytest.raises(p.ModelError, match="nowhere is not there"):
        p.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(p.ModelError, match=r"has no config\.json"):
        p.load(tmp_path / "empty")
    p.save(tiny_models.policy(), tmp_path / "torn")
    weights = tmp_path / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(p.ModelError, match=r"cannot load .*torn") as error:
        p.load(tmp_path / "torn")
    assert "\n" not in str(error.value)


def test_a_folder_without_a_tokenizer_is_one_sentence_with_the_way_out(tmp_path):
    p.save(tiny_models.policy(), tmp_path / "bare")
    for file in (tmp_path / "bare").glob("*token*"):
        file.unlink()
    with pytest.raises(p.ModelError) as error:
        p.load(tmp_path / "bare")
    assert str(error.value) == (
        f"{tmp_path}/bare has no tokenizer (tokenizer.json and the like): "
        "copy the files of the model it was made from into it"
    )


def test_a_hub_name_that_cannot_be_had_is_one_sentence(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(p.ModelError, match=r"model 'nobody/nothing': .* offline mode is enabled") as error:
        p.load("nobody/nothing")
    assert "\n" not in str(error.value)


def test_targets_alpha_and_dropout_of_lora_reach_peft(tmp_path):
    p.save(tiny_models.policy(), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=4, alpha=6.0, targets=("q_proj", "down_proj"), dropout=0.25))
    adapted = {name.split(".")[-4] for name, q in policy.model.named_parameters() if q.requires_grad}
    assert adapted == {"q_proj", "down_proj"}
    layer = policy.core.model.layers[0].self_attn.q_proj
    assert layer.scaling == {"default": 6.0 / 4}
    assert layer.lora_dropout["default"].p == 0.25


def test_a_target_of_lora_that_is_no_layer_is_one_sentence(tmp_path):
    p.save(tiny_models.policy(), tmp_path)
    with pytest.raises(p.ModelError, match=r"LoRA targets q_prog: must be names of linear layers, .*, q_proj, "):
        p.load(tmp_path, lora=p.Lora(targets=("q_prog",)))


def test_a_gguf_file_is_parsed_once(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    with gguf_read_once():
        assert gguf.GGUFReader(tmp_path / "tiny.gguf") is gguf.GGUFReader(tmp_path / "tiny.gguf")
        llama = gguf.MODEL_ARCH.LLAMA
        assert gguf.get_tensor_name_map(llama, 2) is gguf.get_tensor_name_map(llama, 2)
        assert gguf.get_tensor_name_map(llama, 3) is not gguf.get_tensor_name_map(llama, 2)
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == (reader, names)
