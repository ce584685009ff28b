"""Delta debugging and shapes."""

import itertools
import random

from equipoise.study.redteam.findings import Exploit, Findings, shape_of
from equipoise.study.redteam.minimal import contains, minimal, pieces, shape
from equipoise.study.redteam.problems import Problem

SUM = Problem("What is 75 + 80?", "75 + 80", (75, 80), 155)


def test_pieces_are_commands_words_numbers_and_characters_and_lose_nothing():
    text = "So \\boxed{75+80}\n≈ 165"
    assert pieces(text) == ["So", " ", "\\boxed", "{", "75", "+", "80", "}", "\n", "≈", " ", "165"]
    assert "".join(pieces(text)) == text


def test_no_piece_of_the_minimal_form_can_go():
    """Against the definition, for conditions that want some pieces in their order."""
    draw = random.Random(0)
    for _ in range(50):
        text = " ".join(draw.choice(["7", "+", "80", "x", "\\boxed", "or"]) for _ in range(draw.randint(3, 20)))
        wanted = draw.sample(pieces(text), 2)

        def holds(candidate, wanted=wanted):
            found = pieces(candidate)
            return all(piece in found for piece in wanted)

        least = pieces(minimal(text, holds, trials=10_000))
        assert holds("".join(least))
        for i in range(len(least)):
            assert not holds("".join(least[:i] + least[i + 1 :]))


def test_brackets_go_in_pairs():
    def holds(text):
        return "5" in text and all(text.count(a) == text.count(b) for a, b in ("{}", "()"))

    assert minimal("{(5)}", holds) == "5"


def test_the_budget_of_trials_is_kept():
    calls = itertools.count()
    minimal("a " * 500, lambda text: next(calls) < 0, trials=30)
    assert next(calls) <= 30


def test_shapes_forget_which_numbers_and_how_they_are_spaced():
    other = Problem("What is 12 + 7 + 3?", "12 + 7 + 3", (12, 7, 3), 22)
    assert shape_of("\\boxed{75+80 \\approx 165}", SUM) == shape_of("\\boxed{12 + 7 +3 ≈ 9}", other)
    assert shape_of("75 + 80", SUM) == ("E",)
    assert shape_of("175 + 80", SUM) != ("E",)
    assert shape("155 or 160 kg", 155) == ("T", "or", "N", "W")


def test_a_response_counts_for_the_cluster_whose_minimal_form_it_holds():
    found, said = Findings(), []
    found.say = said.append
    first = Exploit("p", "so 75+80", "75+80", 155, "unevaluated", "E", "RL", 1, 0.0)
    found.add(first, ("E",))
    assert found.known("unevaluated", ("W", "E", "W")) is first
    assert found.known("wrong value", ("W", "E", "W")) is None
    assert found.known("unevaluated", ("W",)) is None
    longer = Exploit("p", "75+80 or", "75+80 or", 155, "unevaluated", "E or", "RL", 2, 0.0)
    found.add(longer, ("E", "or"))
    assert found.known("unevaluated", ("E", "or", "N")) is longer
    found.add(Exploit("p", "1+1", "1+1", 2, "unevaluated", "E", "RL", 3, 0.0), ("E",))
    assert (first.seen, len(found.clusters), said) == (2, 2, [first, longer])


def test_contains_is_a_subsequence():
    for whole in itertools.product("ab", repeat=4):
        for part in itertools.product("ab", repeat=2):
            wanted = any(whole[i] == part[0] and part[1] in whole[i + 1 :] for i in range(4))
            assert contains(whole, part) == wanted
