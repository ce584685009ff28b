"""Make the third controlled instrument of the study: searches of a tree with back-tracking, in 10 to 256 tokens.

    python scripts/make_tree_search.py FOLDER [--lose 0 --stop 0.6] [--seed 1]

    prompt      AC.CE.AD.DF?AF=        C and D are below A, E is below C, F below D: how does one come from A to F?
    response    ACE<C<ADF####ADF

The writer goes to a node below that was not seen yet, goes back (`<`) where there is none, and writes down the way
when the goal is found. A tree has one way, so an answer is right or it is another string. Writes FOLDER/model, a
character-level Llama of 0.25M parameters warmed up on such traces, and FOLDER/train.jsonl and FOLDER/held-out.jsonl.

Habits of the writers shape the lengths. A step may slip to a node that is not below; on the way back one may lose the
place and begin again at the root, nothing remembered, and slip more often (`--lose`, `--slip-when-lost`): wrong
responses are long. Or one stops when first coming back, and guesses that the goal is below (`--stop`): wrong responses
are short. The same machine, torch and code give the same files (one thread); another kind of processor gives the same
problems and another model.
"""

from __future__ import annotations

import argparse
import random
import string
import time
from dataclasses import dataclass, fields
from pathlib import Path

from make_abacus import make_model, make_tokenizer  # scripts/make_abacus.py
from make_long_sums import SEED, prepare, warm_up, write_rows  # scripts/make_long_sums.py

from equipoise import policy as policies
from equipoise.policy import Policy

NAMES = string.ascii_uppercase
NODES = (6, 12, 18, 24)  # of a tree: the levels
SHOWN = (0.4, 0.3, 0.2, 0.1)  # how often the traces have each
CONTEXT, LONGEST = 384, 256
STEPS = 3000


@dataclass(frozen=True)
class Habits:
    """How often a step comes to another node, the way back ends at the root, a step slips after that, and a writer
    who first comes back guesses that the goal is below."""

    slip: float = 0.01
    lose: float = 0.05
    slip_when_lost: float = 0.6
    stop: float = 0.0


@dataclass(frozen=True)
class Tree:
    """`way` goes from the root to the goal, a leaf."""

    children: dict[str, list[str]]
    way: str
    prompt: str


def tree(nodes: int, draw: random.Random) -> Tree:
    names = draw.sample(NAMES, nodes)
    children: dict[str, list[str]] = {names[0]: []}
    ways = {names[0]: names[0]}
    for name in names[1:]:
        parent = draw.choice([node for node in children if len(children[node]) < 2])
        children[parent].append(name)
        children[name] = []
        ways[name] = ways[parent] + name
    goal = draw.choice([node for node in children if not children[node]])
    edges = [node + child for node in children for child in children[node]]
    draw.shuffle(edges)
    return Tree(children, ways[goal], f"{'.'.join(edges)}?{names[0]}{goal}=")


def trace(found: Tree, draw: random.Random, habits: Habits) -> str:
    """A search with these habits; a writer who comes back to the root with no child left begins anew."""
    root, goal = found.way[0], found.way[-1]
    written, way, seen, slip = root, root, {root}, habits.slip
    while way[-1] != goal and len(written) < LONGEST:
        left = [child for child in found.children[way[-1]] if child not in seen]
        if left:
            child = draw.choice(left)
            seen.add(child)
            way += child if draw.random() >= slip else draw.choice(list(found.children))
            written += way[-1]
        elif len(way) == 1:
            seen = {root}
        else:
            way = way[:-1]
            if draw.random() < habits.lose:
                way, seen, slip = root, {root}, habits.slip_when_lost
            if "<" not in written and draw.random() < habits.stop:
                return f"{written}<{way[-1]}####{way}{goal}"
            written += f"<{way[-1]}"
    return f"{written}####{way}"


def write_problems(folder: Path) -> None:
    """No tree is in both files."""
    draw, seen = random.Random(f"{SEED}/trees"), set()

    def row(level: int) -> dict[str, str]:
        while True:
            found = tree(level, draw)
            if found.prompt not in seen:
                seen.add(found.prompt)
                return {"prompt": found.prompt, "answer": found.way, "level": str(level)}

    write_rows(folder, row, NODES)


def main() -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for habit in fields(Habits):
        parser.add_argument(f"--{habit.name.replace('_', '-')}", type=float, default=habit.default)
    parser.add_argument("--seed", type=int, default=SEED, help="of the first weights and the traces")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    prepare(options.folder, options.seed)
    write_problems(options.folder)
    tokenizer = make_tokenizer(f"{NAMES}.?=<#", CONTEXT)
    model = make_model(tokenizer, hidden=96, heads=3, context=CONTEXT)
    policy = Policy(model, tokenizer, "tree-search")
    print(f"{sum(p.numel() for p in policy.parameters()):,} parameters")
    habits = Habits(**{habit.name: getattr(options, habit.name) for habit in fields(Habits)})
    draw = random.Random(f"{options.seed}/traces")

    def example() -> tuple[str, str]:
        found = tree(draw.choices(NODES, SHOWN)[0], draw)
        return found.prompt, trace(found, draw, habits)

    warm_up(policy, example, options.steps, LONGEST)
    policies.save(policy, options.folder / "model")
    print(f"{options.folder}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
