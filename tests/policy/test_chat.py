"""How prompts are shown: which models are taken for chat models, and what the template is given."""

import pytest

from equipoise.policy import ModelError
from equipoise.policy.chat import AS_TEXT, Chat, decide
from tests.policy import tiny_models

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML


def tokenizer(template=CHATML):
    made = tiny_models.tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]})
    made.chat_template = template
    return made


def policy(template=CHATML):
    made = tiny_models.policy()
    made.tokenizer = tokenizer(template)
    made.model.resize_token_embeddings(len(made.tokenizer))
    return made


# As published: the token that ends a text, by generation config and tokenizer, and whether the model is a chat model.
@pytest.mark.parametrize(
    ("name", "ends", "chat"),
    [
        ("Qwen/Qwen3-0.6B", ["<|im_end|>", "<|endoftext|>"], True),
        ("Qwen/Qwen3-0.6B-Base", ["<|endoftext|>"], False),
        ("Qwen/Qwen2.5-1.5B", ["<|endoftext|>"], False),
        ("Qwen/Qwen2.5-1.5B-Instruct", ["<|im_end|>", "<|endoftext|>"], True),
        ("Qwen/Qwen2.5-Math-7B", ["<|endoftext|>"], False),
        ("google/gemma-3-1b-it", ["<|endoftext|>"], True),  # the name speaks where the end token does not
        ("google/gemma-3-1b-pt", ["<|im_end|>"], False),
        ("runs/mine/checkpoints/step-20", ["<|im_end|>"], True),
        ("runs/base", ["<|im_end|>"], True),  # a folder's own name says nothing about the model
        ("someone/italian-7b", ["<|endoftext|>"], False),
    ],
)
def test_chat_models_are_told_from_base_models(name, ends, chat):
    made = tokenizer()
    decision = decide(made, name, made.convert_tokens_to_ids(ends))
    assert decision.on is chat
    assert name in decision.why


def test_without_a_template_there_is_no_chat():
    decision = decide(tokenizer(None), "any/model-Instruct", [2])
    assert decision == (False, "any/model-Instruct has no chat template")


def test_a_template_that_writes_the_prompt_alone_is_none():
    """verl keeps such a template with the checkpoints of a launch without chat."""
    made = tokenizer('{{ messages[0]["content"] }}')
    assert not decide(made, "runs/verl", made("a", add_special_tokens=False)["input_ids"]).on


def shown(chat, text, messages=None, template=CHATML):
    made = policy(template)
    return made.tokenizer.decode(chat.encode(made, text, messages))


def test_the_system_message_comes_first_unless_the_row_has_one():
    chat = Chat(on=True, system="be brief")
    system = "<|im_start|>system\n"
    told = shown(chat, "1+2=")
    # The tiny tokenizer has few letters; those it has stand in their order.
    assert told.startswith("<|im_start|>")
    assert chat.messages("1+2=")[0] == {"role": "system", "content": "be brief"}
    own = ({"role": "system", "content": "1"}, {"role": "user", "content": "2"})
    assert chat.messages("", own) == [dict(m) for m in own]
    assert Chat(on=True).messages("1+2=") == [{"role": "user", "content": "1+2="}]
    assert system not in shown(Chat(on=True), "1")


def test_options_reach_the_template():
    made = policy()
    plain = Chat(on=True).encode(made, "1+2=")
    quiet = Chat(on=True, options={"enable_thinking": False}).encode(made, "1+2=")
    loud = Chat(on=True, options={"enable_thinking": True}).encode(made, "1+2=")
    assert loud == plain
    assert quiet[: len(plain)] == plain
    assert len(quiet) > len(plain)


def test_a_text_is_continued_as_it_stands():
    made = policy()
    assert AS_TEXT.encode(made, "1+2=") == made.tokenizer("1+2=")["input_ids"]


def test_a_template_that_refuses_a_role_says_so():
    with pytest.raises(ModelError, match="chat template of llama refuses messages of system, user: no system role"):
        Chat(on=True, system="1").encode(policy(NO_SYSTEM), "1")
