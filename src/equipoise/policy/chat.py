"""How a prompt is shown to a model: as text to continue, or as a conversation in a chat template.

`Chat` is what a run does with every prompt: whether a template is used, the system message before
it, and what the template gets besides. `decide` says whether a model was trained on its template,
for `task.chat = "auto"`. Base models often come with a template too (Qwen's do), but end their
texts with another token than the template's turns, so that a response in it would never end. Not
covered: tools, images, and conversations that end with the assistant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from equipoise.policy.model import Policy, encode, templated

Message = Mapping[str, str]
# How publishers end the names of models, by hyphen or underscore.
BASE = re.compile(r"[-_](base|pt|pretrained)$", re.IGNORECASE)
INSTRUCT = re.compile(r"[-_](instruct|it|chat|thinking)(?![a-z])", re.IGNORECASE)
MARK = "equipoise"  # an answer that no template writes by itself


@dataclass(frozen=True)
class Chat:
    """`on`: whether prompts go through the chat template, and `why`; `options`: what it gets."""

    on: bool = False
    system: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        return f"chat template: {'on' if self.on else 'off'} ({self.why})"

    def messages(
        self, text: str, messages: Sequence[Message] | None = None
    ) -> list[dict[str, str]]:
        """The conversation of a prompt; a row that brings a system message of its own keeps that."""
        shown = [dict(m) for m in messages or ({"role": "user", "content": text},)]
        if self.system and shown[0].get("role") != "system":
            shown.insert(0, {"role": "system", "content": self.system})
        return shown

    def encode(
        self, policy: Policy, text: str, messages: Sequence[Message] | None = None
    ) -> list[int]:
        """Token ids of a prompt, given as a text and, where the data has it so, as messages."""
        if not self.on:
            return encode(policy, text)
        return encode(policy, self.messages(text, messages), self.options)


AS_TEXT = Chat()


class Decision(NamedTuple):
    on: bool
    why: str


def decide(tokenizer: Any, name: str, ends: Sequence[int]) -> Decision:
    """Whether the model of this name, whose texts end with `ends`, was trained on its template.

    No template: no. A name that says so (…-Base, …-pt; …-Instruct, …-it, …-Chat): as it says. Else,
    whether the template ends an assistant's turn with one of the tokens that end the model's texts.
    """
    if tokenizer.chat_template is None:
        return Decision(False, f"{name} has no chat template")
    if found := BASE.search(name):
        return Decision(False, f'"{found[1]}" in the name says that {name} is a base model')
    if found := INSTRUCT.search(name):
        return Decision(True, f'"{found[1]}" in the name says that {name} is a chat model')
    end = end_of_turn(tokenizer, name)
    shown = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(list(ends))))
    if any(token in ends for token in tokenizer(end, add_special_tokens=False)["input_ids"]):
        return Decision(
            True, f"{name} ends its texts with {shown}, as its chat template ends a turn"
        )
    return Decision(
        False,
        f"{name} ends its texts with {shown}, its chat template ends a turn with {end.strip()!r}: a base model",
    )


def end_of_turn(tokenizer: Any, name: str) -> str:
    """What the template writes behind an assistant's message; nothing if it writes no message."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
    _, answer, behind = str(templated(tokenizer, name, said, tokenize=False)).rpartition(MARK)
    return behind if answer else ""
