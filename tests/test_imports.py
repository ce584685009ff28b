"""Who may import whom: a package imports packages of lower floors alone, also inside functions.

`cli` may import everything and nothing imports it. A plug-in runs inside another trainer and imports
`objective` and the writing of files alone; verl's registers a platform and a rollout besides.
"""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import equipoise

ROOT = Path(equipoise.__file__).parent
FLOORS = (
    {"arguments", "files", "hub_lookup", "splitmix", "toml"},  # single modules that need nothing else of ours
    {"objective", "theory"},
    {"verifiers", "kernels"},
    {"policy", "tasks", "config"},
    {"rollout"},
    {"audit", "evaluate"},
    {"report"},
    {"train"},
    {"integrations", "study", "doctor"},
    {"model_commands"},  # those of cli that open a model
    {"cli"},
    {"run_server"},
)
FLOOR = {package: number for number, packages in enumerate(FLOORS) for package in packages}


@functools.cache
def parsed(path: Path) -> list[ast.Import | ast.ImportFrom | ast.ClassDef]:
    """The nodes of a file that a test looks at: to read and to walk all files takes seconds."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef)]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level name (`rollout`) of every import of ours in a file."""
    for node in parsed(path):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "equipoise":
            modules = [f"equipoise.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            package, _, rest = module.partition(".")
            if package == "equipoise" and rest:
                yield node.lineno, rest.partition(".")[0]


def owner(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


MODULES = [path for path in sorted(ROOT.rglob("*.py")) if not owner(path).startswith("__")]


def test_every_package_has_a_floor():
    assert {owner(path) for path in MODULES} == set(FLOOR)


@pytest.mark.parametrize("package", sorted(FLOOR))
def test_imports_go_down(package):
    upwards = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in MODULES
        if owner(path) == package
        for line, name in imported(path)
        if name in FLOOR and name != package and FLOOR[name] >= FLOOR[package]
    ]
    assert upwards == []


@pytest.mark.parametrize("plugin", sorted(ROOT.glob("integrations/*/plugin.py")), ids=lambda path: path.parent.name)
def test_a_plugin_needs_the_objective_alone(plugin):
    beside = {"integrations"} if plugin.parent.name == "verl" else set()  # cpu.py, which needs verl alone
    assert {name for _, name in imported(plugin)} <= {"objective", "files"} | beside


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in parsed(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_kernels_import_each_other_one_way():
    """Also inside functions: a dispatcher imports a reference and Triton's kernels, and neither imports it."""
    graph: dict[str, set[str]] = {}
    for path in (ROOT / "kernels").glob("*.py"):
        graph[path.stem] = set()
        for node in parsed(path):
            if isinstance(node, ast.ImportFrom) and node.module == "equipoise.kernels":
                graph[path.stem] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise.kernels."):
                graph[path.stem].add(node.module.rpartition(".")[2])
    assert {"fp8", "plain_fp8", "triton_fp8"} <= set(graph)
    assert {"plain_fp8", "triton_fp8"} <= graph["fp8"]
    circle: list[str] = []
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert circle == []
