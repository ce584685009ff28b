"""How many tokens a pass would give if drafts were looked up in what is already written: a count on logged rollouts.

    python benchmarks/speculation.py RUN/rollouts/step-*.parquet --tokenizer MODEL

A draft is what followed the latest occurrence of a response's last tokens, in its own prompt and response or in
those of the whole group. The sampler's draw is a fixed function of logits and of a position's uniform number, so a
draft is kept as long as it is what was drawn, and the logged tokens say exactly how much of it that is. All responses
of a group are taken to be written side by side, one pass at a time. What a pass with drafts costs is not measured here.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass

import pyarrow.parquet
from transformers import AutoTokenizer

LONGEST, SHORTEST = 4, 2  # of the matched tokens; a longer match is preferred
DRAFTS = (1, 2, 4, 8)  # tokens drafted at most


@dataclass
class Count:
    tokens: int = 0
    passes: int = 0  # one per response and pass
    drafted: int = 0
    rounds: int = 0  # passes until the group's last response is written
    longest: int = 0  # the same without drafts


class Texts:
    """The tokens of a group so far, with an index of what followed each few of them last."""

    def __init__(self, prompts: list[list[int]], shared: bool) -> None:
        self.texts: list[list[int]] = [[] for _ in prompts]
        index: dict[tuple[int, ...], tuple[int, int]] = {}
        self.index = [index if shared else {} for _ in prompts]
        for row, prompt in enumerate(prompts):
            self.append(row, prompt)

    def append(self, row: int, tokens: list[int]) -> None:
        text = self.texts[row]
        for token in tokens:
            for length in range(SHORTEST, LONGEST + 1):
                if len(text) >= length:
                    self.index[row][tuple(text[-length:])] = row, len(text)
            text.append(token)

    def draft(self, row: int, most: int) -> list[int]:
        text = self.texts[row]
        for length in range(LONGEST, SHORTEST - 1, -1):
            found = self.index[row].get(tuple(text[-length:]))
            if found is not None:
                other, position = found
                return self.texts[other][position : position + most]
        return []


def count(prompts: list[list[int]], responses: list[list[int]], most: int, shared: bool) -> Count:
    """One group, drafts of at most `most` tokens, from the whole group if `shared`."""
    result = Count(tokens=sum(map(len, responses)), longest=max(map(len, responses)))
    texts, left = Texts(prompts, shared), [list(response) for response in responses]
    while any(left):
        result.rounds += 1
        drafts = [texts.draft(row, most) if rest else [] for row, rest in enumerate(left)]
        for row, (draft, rest) in enumerate(zip(drafts, left, strict=True)):
            if not rest:
                continue
            kept = 0
            while kept < min(len(draft), len(rest)) and draft[kept] == rest[kept]:
                kept += 1
            texts.append(row, rest[: kept + 1])  # the token drawn after what was kept is drawn in the same pass
            del rest[: kept + 1]
            result.passes += 1
            result.drafted += len(draft)
    return result


def total(counts: list[Count]) -> Count:
    names = Count.__dataclass_fields__
    return Count(**{name: sum(getattr(c, name) for c in counts) for name in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="rollouts of a run with whole groups")
    parser.add_argument("--tokenizer", required=True, help="of the model they were drawn from")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    groups = []
    for file in arguments.files:
        rows = pyarrow.parquet.read_table(file, columns=["group", "model_input", "tokens"]).to_pylist()
        of_file = defaultdict(list)
        for row in rows:
            of_file[row["group"]].append(row)
        groups += of_file.values()
    prompts = [[tokenizer.encode(row["model_input"]) for row in group] for group in groups]
    responses = [[row["tokens"] for row in group] for group in groups]
    print("drafts from   at most   tokens a pass   rows a token   passes of the longest, to without")
    for shared, name in ((False, "its own"), (True, "the group")):
        for most in DRAFTS:
            c = total([count(p, r, most, shared) for p, r in zip(prompts, responses, strict=True)])
            rows_a_token = (c.passes + c.drafted) / c.tokens
            print(
                f"{name:<13} {most:>7} {c.tokens / c.passes:>15.2f} {rows_a_token:>14.2f} {c.rounds / c.longest:>33.2f}"
            )


if __name__ == "__main__":
    main()
