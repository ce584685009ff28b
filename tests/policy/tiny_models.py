"""Random models of the size of a finger nail with a character tokenizer, made in memory: no test needs a download."""

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from equipoise.policy import Policy

CHARACTERS = "0123456789+-*/=;. abcdefghij\nxyzé"
VOCABULARY = 3 + len(CHARACTERS)
CHAT = "{% for m in messages %}{{ m['role'][0] }}.{{ m['content'] }};{% endfor %}"
CHAT += "{% if add_generation_prompt %}b.{% endif %}"


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {t: i for i, t in enumerate(["<pad>", "<bos>", "<eos>", *CHARACTERS])}
    t = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    t.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=t, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", chat_template=CHAT
    )


LLAMA_LIKE = {
    "llama": ("Llama", {"num_key_value_heads": 4}),
    "grouped": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "gemma": ("Gemma", {"head_dim": 64}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "phi3": ("Phi3", {}),
}
"""Of the families in `policy.architectures`: transformers' name, and how the configuration departs from `SHAPE`."""

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}


def policy(kind: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 0, **options) -> Policy:
    """kind: one of LLAMA_LIKE, or gpt2, which is no Llama at all."""
    torch.manual_seed(seed)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind in LLAMA_LIKE:
        name, changes = LLAMA_LIKE[kind]
        config = getattr(transformers, f"{name}Config")(**SHAPE | changes, **ids)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    else:
        config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=64, n_layer=2, n_head=2, **ids)
        model = transformers.GPT2LMHeadModel(config)
    for p in model.parameters():
        if p.dim() == 1:  # norms of one and biases of zero would hide a forgotten one
            p.data.add_(0.1 * torch.randn_like(p))
    return Policy(model.to(dtype), tokenizer(), kind, **options)


def responses(prompts: list[list[int]], n: int, *, longest: int = 24, seed: int = 0, alike: int = 0):
    """Random flat responses, n for each prompt: tokens [N], lengths [B], prompt [B]; one of a single token.

    The first `alike` tokens of a response are one and the same token, so that responses share prefixes.
    """
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (len(prompts) * n,), generator=g)
    lengths[0] = 1
    tokens = torch.randint(3, VOCABULARY, (int(lengths.sum()),), generator=g)
    for start, length in zip((lengths.cumsum(0) - lengths).tolist(), lengths.tolist(), strict=True):
        tokens[start : start + min(alike, length)] = 5
    return tokens, lengths, torch.arange(len(prompts)).repeat_interleave(n)


def prompts(count: int, *, seed: int = 0, shortest: int = 1, longest: int = 20) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(shortest, longest + 1, (count,), generator=g).tolist()
    return [torch.randint(3, VOCABULARY, (size,), generator=g).tolist() for size in sizes]
