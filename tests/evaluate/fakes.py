"""A model that writes what a test wants: tokens are characters, and a function says the response to each problem."""

from types import SimpleNamespace

import torch

from equipoise.rollout import Rollouts


class Characters:
    """Every character is a token, and the chat template writes the last message and the end token alone."""

    chat_template = "none"
    told = None  # the last conversation, and what the template got besides

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [ord(c) for c in text]}

    def apply_chat_template(self, messages, tokenize=True, **options):
        self.told = messages, options
        return self(messages[-1]["content"]) if tokenize else f"{messages[-1]['content']}\0"

    def convert_ids_to_tokens(self, ids):
        return [*map(chr, ids)]

    def decode(self, tokens, skip_special_tokens):
        return "".join(map(chr, tokens))


def fake_policy(name="fake", weight=1.0):
    model = SimpleNamespace(state_dict=lambda: {"w": torch.full((3,), weight)})
    return SimpleNamespace(
        name=name,
        model=model,
        tokenizer=Characters(),
        context=10**9,
        dtype=torch.float32,
        device=torch.device("cpu"),
        eos=(0,),
    )


class Writer:
    """`write(benchmark, problem, sample)` is the response; `asked` counts calls, `fail_at` makes one of them die."""

    def __init__(self, write, fail_at=None):
        self.write, self.fail_at, self.asked, self.params = write, fail_at, 0, []

    def sample(self, prompts, n, params, *, keys=None, step=0, finished=None):
        if self.asked == self.fail_at:
            raise KeyboardInterrupt
        self.asked += 1
        self.params.append(params)
        texts = [self.write(*key.split("/", 1), i) for key in keys for i in range(n)]
        lengths = torch.tensor([len(text) for text in texts])
        tokens = torch.tensor([ord(c) for text in texts for c in text], dtype=torch.int64)
        finished(list(range(len(texts))), tokens, lengths)
        zeros = torch.zeros(len(tokens))
        rows = torch.arange(len(prompts)).repeat_interleave(n)
        return Rollouts([list(p) for p in prompts], tokens, zeros, lengths, rows, ["stop"] * len(texts))
