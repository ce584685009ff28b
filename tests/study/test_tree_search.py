"""The third controlled instrument: its trees have one way, a faultless search finds it, habits make lengths."""

import json
import random
import sys
from pathlib import Path
from statistics import mean

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))  # its scripts import one another by name

from make_tree_search import LONGEST, NODES, Habits, trace, tree, write_problems

FAULTLESS = Habits(slip=0, lose=0)


def edges_of(prompt):
    return prompt.partition("?")[0].split(".")


@pytest.mark.parametrize("nodes", NODES)
def test_the_way_follows_the_edges_of_the_prompt_from_the_root_to_the_goal(nodes):
    found = tree(nodes, random.Random(nodes))
    edges = edges_of(found.prompt)
    assert len(edges) == nodes - 1
    assert all(above + below in edges for above, below in zip(found.way, found.way[1:], strict=False))
    assert found.prompt.endswith(f"?{found.way[0]}{found.way[-1]}=")
    below = [edge[1] for edge in edges]
    assert len(set(below)) == len(below)  # every node has one node above: there is no other way


@pytest.mark.parametrize("nodes", NODES)
def test_a_faultless_search_takes_edges_alone_and_ends_with_the_way(nodes):
    draw = random.Random(nodes)
    for _ in range(50):
        found = tree(nodes, draw)
        search, _, answer = trace(found, draw, FAULTLESS).partition("####")
        assert answer == found.way
        edges = edges_of(found.prompt)
        for step in range(1, len(search)):
            here, there = search[step - 1], search[step]
            if "<" not in (here, there):
                assert here + there in edges
            if here == "<":  # back to the node above the one that was left
                assert there + search[step - 2] in edges or search[step - 3] == "<"


def gap(habits):
    """How much longer wrong traces are than right ones of the same tree, of the mean length."""
    draw, gaps = random.Random(0), []
    for k in range(60):
        found = tree(NODES[k % len(NODES)], draw)
        traces = [text for text in (trace(found, draw, habits) for _ in range(32)) if len(text) < LONGEST]
        right = [len(text) for text in traces if text.endswith(f"####{found.way}")]
        wrong = [len(text) for text in traces if not text.endswith(f"####{found.way}")]
        if right and wrong:
            gaps.append((mean(wrong) - mean(right)) / mean(right + wrong))
    return mean(gaps)


def test_writers_who_lose_the_place_are_wrong_at_length_and_those_who_stop_are_wrong_soon():
    assert gap(Habits()) > 0.5
    assert gap(Habits(lose=0, stop=0.4)) < -0.25


def test_no_tree_is_both_trained_on_and_held_out(tmp_path):
    write_problems(tmp_path)
    train, held_out = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "held-out")
    )
    assert {row["level"] for row in held_out} == {str(nodes) for nodes in NODES}
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}
