"""Make the second controlled instrument of the study: sums of up to 40 digits, worked out in 40 to 400 tokens.

    python scripts/make_long_sums.py FOLDER [--lost ahead] [--seed 1]

    prompt      A8B3C5D9=
    response    A8:8B3:11C5:15~C5:16D9:25####25

Every number has a letter, and the response goes from letter to letter with the running sum. Writes
FOLDER/model, a character-level Llama of 0.2M parameters warmed up on such traces, and FOLDER/train.jsonl and
FOLDER/held-out.jsonl, problems that have no sum in common. The traces lose their place as hasty writers do: one goes
back to an earlier letter and adds numbers again, so wrong responses are long; with `--lost ahead` one goes on at a
later letter instead and leaves numbers out, so wrong responses are short. A slip may be seen (`~`) and written again.
Another `--seed` draws other first weights and traces, and the same problems. The same machine, torch and code give the
same files (one thread); another kind of processor gives the same problems and another model.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import string
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from make_abacus import make_model, make_tokenizer  # scripts/make_abacus.py

from equipoise import policy as policies
from equipoise.policy import Policy
from equipoise.study.start import imitate_batch

SEED = 0
LETTERS = string.ascii_uppercase + string.ascii_lowercase
LEVELS = (10, 20, 30, 40)
SHOWN = (0.4, 0.3, 0.2, 0.1)  # how often the traces have each
TRAIN, HELD_OUT = 4096, 64  # problems; of each level
STEPS, RESPONSES, LEARNING_RATE = 2000, 16, 4e-3
CONTEXT, LONGEST = 640, 512  # tokens, which are characters; of a response
SLIP, NOTICE, LOSE, FARTHEST = 0.01, 0.5, 0.02, 40


def problem(numbers: list[int]) -> str:
    return "".join(f"{letter}{number}" for letter, number in zip(LETTERS, numbers, strict=False)) + "="


def trace(numbers: list[int], draw: random.Random, lost: str = "back") -> str:
    """A step's sum is off with probability SLIP, which is seen with probability NOTICE and written again; after a
    step, with probability LOSE, the writer goes on at one of the FARTHEST letters before it, or after it.
    """
    written, total, at = "", 0, 0
    while at < len(numbers):
        step = f"{LETTERS[at]}{numbers[at]}:"
        right = total + numbers[at]
        if draw.random() < SLIP:
            total = max(0, right + draw.choice((-10, 10, -1, 1)))
            written += f"{step}{total}"
            if draw.random() < NOTICE:
                total = right
                written += f"~{step}{total}"
        else:
            total = right
            written += f"{step}{total}"
        away = draw.randrange(FARTHEST) if draw.random() < LOSE else -1
        at = at + 1 + max(0, away) if lost == "ahead" else max(0, at - away)
    return f"{written}####{total}"


def write_problems(folder: Path) -> None:
    """No list of numbers, whatever their order, is in both files."""
    draw, seen = random.Random(f"{SEED}/problems"), set()

    def row(level: int) -> dict[str, str]:
        while True:
            numbers = [draw.randint(1, 9) for _ in range(level)]
            key = tuple(sorted(numbers))
            if key not in seen:
                seen.add(key)
                return {"prompt": problem(numbers), "answer": str(sum(numbers)), "level": str(level)}

    write_rows(folder, row, LEVELS)


def write_rows(folder: Path, row: Callable[[int], dict[str, str]], levels: Sequence[int]) -> None:
    """FOLDER/held-out.jsonl and FOLDER/train.jsonl, the levels by turns."""
    for name, count in (("held-out", HELD_OUT * len(levels)), ("train", TRAIN)):
        lines = [json.dumps(row(levels[k % len(levels)])) + "\n" for k in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def warm_up(policy: Policy, example: Callable[[], tuple[str, str]], steps: int, longest: int = LONGEST) -> None:
    """Imitates what `example` draws, a prompt and a response; one of `longest` characters or more is drawn again."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        prompts, responses = [], []
        while len(prompts) < RESPONSES:
            prompt, response = example()
            if len(response) < longest:
                prompts.append(policies.encode(policy, prompt))
                responses.append([*policies.encode(policy, response), policy.tokenizer.eos_token_id])
        fall = 0.5 * (1 + math.cos(math.pi * step / steps))
        rate = LEARNING_RATE * min(1, (step + 1) / 100) * fall
        loss = imitate_batch(policy, optimizer, prompts, responses, rate)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps}  loss {loss:.4f}", flush=True)


def prepare(folder: Path, seed: int) -> None:
    """The folder is there, and the same seed gives the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)


def main() -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--lost", choices=("back", "ahead"), default="back", help="where a writer goes who loses the place"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the first weights and the traces")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    prepare(options.folder, options.seed)
    write_problems(options.folder)
    tokenizer = make_tokenizer(f"0123456789{LETTERS}:~#=", CONTEXT)
    policy = Policy(make_model(tokenizer, hidden=96, heads=3, context=CONTEXT), tokenizer, "long-sums")
    print(f"{sum(p.numel() for p in policy.parameters()):,} parameters")
    draw = random.Random(f"{options.seed}/traces")

    def example() -> tuple[str, str]:
        numbers = [draw.randint(1, 9) for _ in range(draw.choices(LEVELS, SHOWN)[0])]
        return problem(numbers), trace(numbers, draw, options.lost)

    warm_up(policy, example, options.steps)
    policies.save(policy, options.folder / "model")
    print(f"{options.folder}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
