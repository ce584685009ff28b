"""The fits of benchmarks/ranks.py find what was planted, and its error is that of the slower process."""

import json
from pathlib import Path

import pytest
import ranks
from scaling import signed

RESULTS = json.loads((Path(ranks.__file__).parent / "results" / "ranks.json").read_text(encoding="utf-8"))


def planted(processes: int, prompts: int, *, extra: float = 0.0) -> dict:
    """A decode step of 2 ms and 0.1 ms a response; passes of at least 50 ms, else 4,000 tokens a second."""
    tokens = 80 * prompts / processes
    drawn = 0.002 * 30 + 0.0001 * tokens
    passed = max(0.05, tokens / 4000)
    rows = [
        {"rollout": (1 + extra * rank) * drawn, "steps": 30, "tokens": tokens, "training": (1 + extra * rank) * passed}
        for rank in range(processes)
    ]
    return ranks.point(prompts, [[row] * 3 for row in rows])


def test_the_fits_find_what_was_planted():
    one = [planted(1, prompts) for prompts in ranks.SIZES]
    points = [(p["rollout"]["rollout"], p["rollout"]["steps"], p["rollout"]["tokens"]) for p in one]
    assert ranks.fit_rollout(points) == pytest.approx((0.002, 0.0001))
    points = [(p["training"]["training"], p["training"]["tokens"]) for p in one]
    assert ranks.fit_training(points) == pytest.approx((0.05, 4000))


@pytest.mark.parametrize("extra", [0.0, 0.25])
def test_the_error_is_what_the_slower_process_took_more(extra):
    points = [planted(n, prompts, extra=extra) for n in (1, 2) for prompts in ranks.SIZES]
    for by_size in ranks.errors(points).values():
        assert by_size == pytest.approx({str(prompts): 1 / (1 + extra) - 1 for prompts in ranks.SIZES[1:]})


def test_the_page_has_the_committed_errors():
    page = (Path(ranks.__file__).parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
    for part, by_size in RESULTS["errors"].items():
        cells = " | ".join(signed(by_size[str(prompts)]) for prompts in ranks.SIZES[1:])
        assert f"| {part} | {cells} |" in page


def test_the_committed_errors_are_those_of_the_committed_points():
    for part, by_size in ranks.errors(RESULTS["points"]).items():
        assert RESULTS["errors"][part] == pytest.approx(by_size)
    measured = {(p["processes"], p["prompts"]) for p in RESULTS["points"]}
    assert measured == {(n, prompts) for n in (1, 2) for prompts in ranks.SIZES}
