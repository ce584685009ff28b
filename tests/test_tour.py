"""The tour of the code: every name it points at exists, and the additions it shows work as they stand there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from equipoise.objective import surrogate

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
POINTERS = sorted(set(re.findall(r"`([\w/]+(?:\.py)?)::([\w.]+)`", PAGE)))


def names(body):
    """What a module or a class defines: functions, classes, assigned and imported names."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, getattr(node, "body", [])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, []) for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, []) for alias in node.names)


@pytest.mark.parametrize(("file", "name"), POINTERS, ids=str)
def test_every_name_of_the_tour_exists(file, name):
    if not file.endswith(".py"):  # a package or a module, whichever it is
        assert hasattr(importlib.import_module(f"equipoise.{file.replace('/', '.')}"), name)
        return
    body = ast.parse((ROOT / "src" / "equipoise" / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = dict(names(body))
        assert part in found, f"{file} has no {part}"
        body = found[part]


def test_the_tour_points_at_much_of_the_code():
    assert len(POINTERS) > 40
    assert {file.split("/")[0] for file, _ in POINTERS} >= {
        "cli.py", "config", "evaluate", "kernels", "objective", "policy", "report", "rollout", "tasks", "train",
        "verifiers",
    }  # fmt: skip


def added(file):
    """The lines that a diff of the page adds to a file, as Python."""
    (part,) = re.findall(rf"^\+\+\+ b/{re.escape(file)}\n@@\n(.*?)(?=^--- |^```)", PAGE, re.M | re.S)
    return "\n".join(line[1:] for line in part.splitlines() if line.startswith("+")) + "\n"


def run_tests(code, page) -> int:
    """Every test function of a module that stands in the page, those of a grid for each of its cases; how many."""
    space = {}
    exec(compile(code, page, "exec"), space)
    cases = 0
    for function in [f for name, f in space.items() if name.startswith("test_")]:
        grids = [(mark.args[0], case) for mark in getattr(function, "pytestmark", []) for case in mark.args[1]]
        for keywords, case in grids or [((), ())]:
            function(**dict(zip(keywords, case, strict=True)))
            cases += 1
    return cases


def test_the_objective_that_is_added_passes_its_test(monkeypatch):
    function, entry = added("src/equipoise/objective/surrogate.py").split("\n\n\n")
    space = vars(surrogate).copy()
    exec(function, space)
    (name,) = re.findall(r'^    "(\w+)": \1,$', entry, re.M)
    monkeypatch.setitem(surrogate.SURROGATES, name, space[name])
    assert run_tests(added("tests/objective/test_tanh_gate.py"), "docs/tour.md") > 0


def test_the_verifier_that_is_added_passes_its_test(tmp_path, monkeypatch):
    (tmp_path / "choice.py").write_text(added("choice.py"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert run_tests(added("test_choice.py"), "docs/tour.md") > 0
