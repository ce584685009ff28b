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
    """Line and name below `equipoise` (`rollout`, `rollout.native.NativeSampler`) of every import of ours in a file."""
    for node in parsed(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("equipoise."):
                yield node.lineno, name.removeprefix("equipoise.")


def first(name: str) -> str:
    return name.partition(".")[0]


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
        if first(name) in FLOOR and first(name) != package and FLOOR[first(name)] >= FLOOR[package]
    ]
    assert upwards == []


@pytest.mark.parametrize("plugin", sorted(ROOT.glob("integrations/*/plugin.py")), ids=lambda path: path.parent.name)
def test_a_plugin_needs_the_objective_alone(plugin):
    beside = {"integrations"} if plugin.parent.name == "verl" else set()  # cpu.py, which needs verl alone
    assert {first(name) for _, name in imported(plugin)} <= {"objective", "files"} | beside


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in parsed(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def module(path: Path) -> str:
    """`train.loop`; of a package's `__init__` the package, `train`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_modules_import_each_other_one_way():
    """Also inside functions, and for types alone: of two modules at most one knows the other."""
    graph: dict[str, set[str]] = {module(path): set() for path in MODULES}
    for path in MODULES:
        for _, name in imported(path):
            graph[module(path)] |= {name if name in graph else name.rpartition(".")[0]} & set(graph)
    assert {"kernels.plain_fp8", "kernels.triton_fp8"} <= graph["kernels.fp8"]
    circle: list[str] = []
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert circle == []
