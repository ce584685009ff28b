"""What constants and echoes of the question earn on reasoning-gym's tasks: `python -m tests.tasks.gym_audit [ITEMS]`.

A candidate is a policy that has learned nothing of the task: one text for all items (a constant, or one item's
reference for all others), or the same part of every question. Its excess is its mean score less the share of items
whose reference it is. A task is fooled where the excess is above BOUND, or where the full score goes to something that
is not the reference on a task with one right answer.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from equipoise.tasks import gym, gym_grammar, scoring

BOUND = 0.2
CONSTANTS = (
    "0", "1", "2", "10", "24", "100", "-1", "0.5", "1/2", "0x0", "nan", "inf", "True", "False", "Yes", "No", "Yes No",
    "True False", "A", "x", "C", "x + C", "None", "[]", "[[]]", "{}", "()", "[0]", "[1]", "0 0", "0 1", "1 2 3",
    "0 1 2 3 4 5 6 7 8 9", "4*6*1*1", "(0, 0)", "impossible", "infeasible", "-", "the answer", "_ _",
)  # fmt: skip
SLOW = ("composite", "futoshiki", "figlet_font", "zebra_puzzles")  # to make


@dataclass
class Finding:
    task: str
    mean: float  # of the candidate that earns most beyond its base rate
    base: float
    candidate: str
    forged: int  # items on which the full score went to something else than the reference

    @property
    def excess(self) -> float:
        return self.mean - self.base


def tasks() -> list[str]:
    import reasoning_gym

    return sorted(set(reasoning_gym.factory.DATASETS) - set(SLOW) - set(gym.UNREPEATABLE))


@functools.cache
def items(task: str, count: int) -> list[dict]:
    count = min(count, 2) if task in gym_grammar.FORMULAS else count  # SymPy takes seconds to tell two formulas apart
    made = [gym.item(gym._dataset(task, "{}", 640), 640, place) for place in range(count)]
    return [entry for entry in made if not gym_grammar.entry_refusal(task, entry)]


def part(pattern: str, place: int) -> Callable[[str], str]:
    def of(question: str) -> str:
        found = re.findall(pattern, question)
        return found[place] if -len(found) <= place < len(found) else ""

    return of


def echoes() -> Iterator[tuple[str, Callable[[str], str]]]:
    yield "the question", lambda q: q
    yield "all its numbers", lambda q: " ".join(re.findall(r"-?\d+(?:\.\d+)?", q))
    yield "the line behind the last colon", lambda q: q.rpartition(":")[2].strip().partition("\n")[0]
    yield "all behind the last colon", lambda q: q.rpartition(":")[2]
    yield "the last paragraph", lambda q: q.strip().split("\n\n")[-1]
    yield "the paragraph before", lambda q: (["", *q.strip().split("\n\n")])[-2]
    yield "without its first line", lambda q: q.strip().partition("\n")[2]
    patterns = {"line": r"[^\n]+", "number": r"-?\d+(?:\.\d+)?", "word": r"[A-Za-z]+", "bracket": r"\[.*\]"}
    for name, pattern in {**patterns, "quoted": r"[\"'`]([^\"'`\n]+)[\"'`]"}.items():
        for place in (0, 1, -2, -1):
            yield f"{name} {place}", part(pattern, place)


def value(task: str, entry: dict, text: str) -> float:
    text = text.strip()
    if not text or gym_grammar.refusal(task, text, entry):
        return 0.0
    return float(scoring.score(task, {}, entry, text)[2] or 0.0)


def audit(task: str, count: int) -> Finding:
    entries = items(task, count)
    references = [str(entry["answer"]) for entry in entries]
    candidates = {f"constant {text!r}": [text] * len(entries) for text in CONSTANTS}
    for k, reference in enumerate(references[:3]):
        candidates[f"the reference of item {k}"] = [reference] * len(entries)
    for name, of in echoes():
        candidates[name] = [of(entry["question"]) for entry in entries]
    worst = Finding(task, 0.0, 0.0, "", 0)
    forged = set()
    for name, texts in candidates.items():
        scores = [value(task, entry, text) for entry, text in zip(entries, texts, strict=True)]
        own = [same(text, reference) for text, reference in zip(texts, references, strict=True)]
        forged |= {k for k in range(len(entries)) if scores[k] == 1.0 and not own[k]}
        mean, base = sum(scores) / len(scores), sum(own) / len(own)
        if mean - base > worst.excess:
            worst = Finding(task, mean, base, name, 0)
    worst.forged = len(forged)
    return worst


def same(text: str, reference: str) -> bool:
    """The same number, or the same words in any order."""
    try:
        return abs(float(text.replace(",", "")) - float(reference.replace(",", ""))) < 1e-2
    except ValueError:
        return sorted(re.findall(r"\w+", text.lower())) == sorted(re.findall(r"\w+", reference.lower()))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print("| task | earns | as its reference | what | full score for something else |\n|---|---|---|---|---|")
    for task in sys.argv[2:] or tasks():
        found = audit(task, count)
        row = (task, f"{found.mean:.2f}", f"{found.base:.2f}", found.candidate, f"{found.forged} of {count}")
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
