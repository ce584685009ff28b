"""The scripts behind `make coverage` and `make mutation`: what they count and what they change."""

import ast
import json
from pathlib import Path

import pytest

from equipoise.verifiers.workers.process_pool import Pool
from scripts import coverage_floors, mutation

from .conftest import count_workers


def summary(covered, lines):
    return {"summary": {"covered_lines": covered, "num_statements": lines, "missing_lines": lines - covered}}


@pytest.mark.parametrize(("covered", "status"), [(95, 0), (94, 1)])
def test_a_missed_floor_is_an_exit_code(tmp_path, capsys, covered, status):
    files = {
        "src/equipoise/objective/loss.py": summary(covered, 100),
        "src/equipoise/train/loop.py": summary(80, 100),
        "src/equipoise/cli.py": summary(90, 100),
    }
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"files": files}))
    assert coverage_floors.main(str(path)) == status
    assert coverage_floors.floors({"files": files}) == {"objective": (covered, 95.0), "rest": (85.0, 85.0)}
    printed = capsys.readouterr().out
    assert ("MISSED" in printed) == bool(status)
    assert printed.splitlines()[-3].split() == ["20", "src/equipoise/train/loop.py"]


SOURCE = """
LIMIT = 3
def f(x: int = 4) -> int:
    "a string"
    if x < 2 and not x:
        raise ValueError(f"{x + 1}: too small")
    for a, b in zip([x], [x], strict=True):
        del a
    return -x * 5.0 if x else x
"""


def test_every_change_is_one_change():
    tree = ast.parse(SOURCE)
    sites = mutation.sites(tree)
    changes = [mutation.describe(SOURCE, k)[1] for k in range(len(sites))]
    assert sorted(changes) == sorted([
        "x < 2 and (not x)  →  x < 2 or not x",
        "x < 2  →  x <= 2",
        "2  →  3",
        "not x  →  x",
        "return -x * 5.0 if x else x  →  return None",
        "-x * 5.0 if x else x  →  x if x else -x * 5.0",
        "-x * 5.0  →  -x / 5.0",
        "-x  →  x",
        "5.0  →  6.0",
    ])  # fmt: skip
    for k in range(len(sites)):
        mutant = mutation.mutate(SOURCE, k)
        compile(mutant, "mutant", "exec")
        before, after = (ast.unparse(t).splitlines() for t in (ast.parse(SOURCE), mutant))
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_a_mutant_is_killed_by_a_test_that_reaches_it_and_survives_one_that_looks_away(tmp_path):
    (tmp_path / "adding.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_looks.py").write_text("from adding import add\ndef test_it():\n    assert add(2, 2) == 4\n")
    (tmp_path / "test_away.py").write_text("from adding import add\ndef test_it():\n    add(2, 2)\n")
    path = tmp_path / "adding.py"
    number = [mutation.describe(path.read_text(), k)[1] for k in range(2)].index("a + b  →  a - b")

    def of(*tests):
        return mutation.verdict("adding", path, number, [str(tmp_path / t) for t in tests], 120, tmp_path)

    assert of("test_looks.py") == "killed"
    assert of("test_away.py") == "survived"
    assert of() == "not reached"


def test_a_line_that_only_a_property_runs_is_reached(tmp_path, monkeypatch):
    """Hypothesis runs a test inside a frame of its own, by which coverage.py does not know whose lines these are."""
    pytest.importorskip("coverage")
    package = tmp_path / "doubling"
    package.mkdir()
    (package / "__init__.py").write_text("def double(a):\n    return a + a\n")
    (tmp_path / "test_property.py").write_text(
        "from doubling import double\nfrom hypothesis import given, strategies\n"
        "@given(a=strategies.integers())\ndef test_it(a):\n    assert double(a) == 2 * a\n"
    )
    monkeypatch.chdir(tmp_path)
    reached = mutation.reach(package, ["test_property.py"], tmp_path, 15.0)
    assert reached[str(package / "__init__.py")][2] == ["test_property.py::test_it"]


def test_a_mutant_is_judged_by_the_quickest_tests_that_fit():
    seconds = {"slow": 9.0, "quick": 0.5, "other": 1.5}
    assert mutation.within(seconds, 100.0) == ["quick", "other", "slow"]
    assert mutation.within(seconds, 2.0) == ["quick", "other"]
    assert mutation.within(seconds, 0.1) == ["quick"]
    assert mutation.within({}, 1.0) == []


def test_a_mutant_that_does_not_end_is_a_timeout(tmp_path):
    path = tmp_path / "counting.py"
    path.write_text("def count(n):\n    while n > 0:\n        n = n - 1\n    return n\n")
    test = tmp_path / "test_count.py"
    test.write_text("from counting import count\ndef test_it():\n    assert count(3) == 0\n")
    number = [mutation.describe(path.read_text(), k)[1] for k in range(4)].index("n - 1  →  n + 1")
    assert mutation.verdict("counting", path, number, [str(test)], 2, tmp_path) == "timeout"


def test_lines_of_a_worker_without_rights_count(tmp_path, monkeypatch):
    """It may write no file and ends by SIGKILL; what it ran is in the data all the same."""
    coverage = pytest.importorskip("coverage")
    monkeypatch.setattr(Pool, "__init__", Pool.__init__)  # put back afterwards
    monkeypatch.setenv("EQUIPOISE_COUNTS_PATIENCE", "600")
    count_workers(str(tmp_path / "counts"))
    rights = "equipoise.verifiers.workers.confine:give_up_rights"
    with Pool("equipoise.verifiers.grade:math_job", workers=1, confine=rights, quiet=True) as pool:
        assert pool.submit("1/2", "0.5", "boxed", seconds=60.0).result().kind == "correct"
    (found,) = tmp_path.glob("counts.*")
    data = coverage.CoverageData(str(found))
    data.read()
    counted = {Path(file).name for file in data.measured_files()}
    assert {"confine.py", "grade.py", "symbolic.py"} <= counted


def test_the_sample_is_the_same_every_time(tmp_path, capsys):
    (tmp_path / "a.py").write_text(SOURCE)
    assert mutation.draw(tmp_path, 4, 0) == mutation.draw(tmp_path, 4, 0)
    assert mutation.draw(tmp_path, 4, 0) != mutation.draw(tmp_path, 4, 1)
    assert capsys.readouterr().out.startswith("4 of 9 mutants")


def test_what_is_listed_as_equivalent_is_there():
    """A line that has changed is a mutant to look at again."""
    listed = json.loads(mutation.EQUIVALENT.read_text(encoding="utf-8"))
    folder = mutation.EQUIVALENT.parents[1] / "src" / "equipoise" / "objective"
    for place, reason in listed.items():
        name, _, rest = place.partition(": ")
        line, _, change = rest.rpartition(": ")
        assert line in (text.strip() for text in (folder / name).read_text(encoding="utf-8").splitlines())
        assert "→" in change
        assert reason
