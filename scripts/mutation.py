"""Mutation testing of a package: change one operator, number or condition at a time; some test must
fail.

    python scripts/mutation.py src/equipoise/objective tests/objective --sample 150 --out mutation.json

First the tests run once under coverage.py, which says which of them reach each line. Then every
sampled mutant runs in a process of its own, forked from one that has torch imported, and runs the
tests that reach its line, the quickest first, until one fails. Of the tests that reach a line those
are run that take no more than `--seconds` of CPU together: what only slower ones would notice counts
against the tests. A mutant that no test fails on is a survivor: a missing test, or a change that
changes nothing (scripts/mutation_equivalent.json lists those, by file, line of source and change,
with the reason). A mutant that uses several times the CPU of its tests counts as killed: it hangs.
The sample is drawn with a fixed seed, so the same sources give the same mutants. Not covered:
mutants of two changes, deleted statements, changed strings, and lines of a module that run when it
is imported.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

EQUIVALENT = Path(__file__).with_name("mutation_equivalent.json")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def changed(node: ast.AST) -> ast.AST | None:
    """The node with its one change; None where it has none to make."""
    new = copy.copy(node)
    if isinstance(new, ast.Compare):
        new.ops = [COMPARISONS[type(new.ops[0])](), *new.ops[1:]]
    elif isinstance(new, ast.BinOp) and type(new.op) in ARITHMETIC:
        new.op = ARITHMETIC[type(new.op)]()
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub):
        return new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
    elif isinstance(new, ast.Constant) and isinstance(new.value, int | float):
        new.value = new.value + 1
    elif isinstance(new, ast.Return) and new.value is not None:
        new.value = ast.copy_location(ast.Constant(None), new.value)
    elif isinstance(new, ast.IfExp):
        new.body, new.orelse = new.orelse, new.body
    else:
        return None
    return new


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, but annotations, defaults' types, what a `raise` says, for no test should
    hold on to words, and `strict` of zip, which says what cannot happen.
    """
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.JoinedStr):
                yield child
                yield from parts(child)


def functions(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                yield statement
                yield from parts(statement)


def sites(tree: ast.Module) -> list[ast.AST]:
    """Every node inside a function that has a change, once each, in the order of the source."""
    found = {id(node): node for node in functions(tree) if hasattr(node, "lineno") and changed(node) is not None}
    return list(found.values())


def mutate(source: str, number: int) -> ast.Module:
    """The module with its `number`-th site changed."""
    tree = ast.parse(source)
    target = sites(tree)[number]
    replacement = ast.copy_location(changed(target), target)  # type: ignore[type-var]

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return replacement if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Swap().visit(tree))


def describe(source: str, number: int) -> tuple[int, str]:
    """Line, and before → after."""
    target = sites(ast.parse(source))[number]
    return target.lineno, f"{ast.unparse(target)}  →  {ast.unparse(changed(target))}"  # type: ignore[attr-defined,arg-type]


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module out of a changed tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return None

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


class Watch:
    """Tells coverage.py which test function runs, and keeps its seconds of CPU, all its cases
    together.

    coverage.py's own contexts go by a frame's name and module, which a test under Hypothesis hides:
    lines that only such tests run would count as not reached.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.began = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        import coverage

        running = coverage.Coverage.current()
        if running is not None:
            running.switch_context(nodeid.partition("[")[0])
        self.began = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid.partition("[")[0]] += time.process_time() - self.began


def reach(package: Path, tests: Sequence[str], folder: Path, budget: float) -> dict[str, dict[int, list[str]]]:
    """File → line → the tests that run it, quickest first, as many as take `budget` seconds."""
    settings = folder / "coverage.ini"
    settings.write_text(f"[run]\nsource = {package}\ndata_file = {folder / 'reached'}\n")
    times = folder / "times.json"
    inner = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", __file__, "--times", str(times), *tests]
    subprocess.run(inner, check=True)
    seconds = json.loads(times.read_text())
    import coverage

    data = coverage.CoverageData(str(folder / "reached"))
    data.read()
    return {
        file: {
            line: within({test: seconds[test] for test in contexts if test in seconds}, budget)
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


def within(seconds: dict[str, float], budget: float) -> list[str]:
    """The quickest tests, the first one in any case, whose seconds add up to no more than that."""
    chosen: list[str] = []
    for test in sorted(seconds, key=seconds.__getitem__):
        budget -= seconds[test]
        if chosen and budget < 0:
            break
        chosen.append(test)
    return chosen


def run_child(name: str, path: Path, number: int, tests: Sequence[str], seconds: int, log: Path) -> None:
    """In the forked process: the tests against the mutant; leaves with pytest's status."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    tree = mutate(path.read_text(encoding="utf-8"), number)
    sys.meta_path.insert(0, Mutated(name, path, tree))
    import pytest

    flags = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line", "-o", "addopts="]
    os._exit(int(pytest.main([*flags, *tests])))


def verdict(name: str, path: Path, number: int, tests: Sequence[str], seconds: int, folder: Path) -> str:
    """`seconds` of CPU is what the mutant may use; one that sleeps is ended after ten times as long."""
    if not tests:
        return "not reached"
    child = os.fork()
    if child == 0:
        try:
            run_child(name, path, number, tests, seconds, folder / "child.log")
        finally:
            os._exit(3)  # a mutant that stops the import is killed as well
    end = time.monotonic() + 10 * seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "survived" if code == 0 else "timeout" if code == -signal.SIGKILL else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def module_name(path: Path) -> str:
    parts = path.resolve().with_suffix("").parts
    return ".".join(parts[parts.index("src") + 1 :]).removesuffix(".__init__")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="folder under src whose functions are changed")
    parser.add_argument("tests", nargs="+", help="what pytest is given")
    parser.add_argument("--sample", type=int, default=150, help="mutants drawn (default 150)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of CPU for the tests of a mutant (default 15)")
    parser.add_argument("--least", type=float, default=90.0, help="per cent killed below which the exit code is 1")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this many")
    parser.add_argument("--out", type=Path, default=Path("mutation.json"), help="where the results go")
    return parser.parse_args()


def draw(package: Path, sample: int, seed: int) -> list[tuple[Path, int]]:
    every = [
        (path, number)
        for path in sorted(package.rglob("*.py"))
        for number in range(len(sites(ast.parse(path.read_text(encoding="utf-8")))))
    ]
    drawn = random.Random(seed).sample(every, min(sample, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants of {package}", flush=True)
    return drawn


def main() -> int:
    options = arguments()
    known = json.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        reached = reach(options.package, options.tests, Path(scratch), options.seconds)
        # What the tests import beside the package: once here, so that no child has to.
        import hypothesis  # noqa: F401
        import pytest  # noqa: F401
        import scipy.optimize  # noqa: F401
        import torch  # noqa: F401

        end = time.monotonic() + 60 * options.minutes
        limit = 30 + 3 * int(options.seconds)
        for path, number in draw(options.package, options.sample, options.seed):
            if time.monotonic() > end:
                print("out of time: the rest of the sample was not tried")
                break
            source = path.read_text(encoding="utf-8")
            line, change = describe(source, number)
            tests = reached.get(str(path.resolve()), {}).get(line, [])
            found = verdict(module_name(path), path, number, tests, limit, Path(scratch))
            place = f"{path.name}: {source.splitlines()[line - 1].strip()}: {change}"
            if found in ("survived", "not reached") and place in known:
                found = "equivalent"
            results.append({"file": str(path), "line": line, "change": change, "result": found})
            print(f"{found:11} {path.name}:{line}  {change}", flush=True)
    return summary(results, options.least, options.out)


def summary(results: Sequence[dict[str, object]], least: float, out: Path) -> int:
    counted = [r for r in results if r["result"] != "equivalent"]
    killed = [r for r in counted if r["result"] in ("killed", "timeout")]
    share = 100 * len(killed) / max(len(counted), 1)
    out.write_text(json.dumps({"killed": len(killed), "counted": len(counted), "mutants": results}, indent=1) + "\n")
    print(f"\n{len(killed)} of {len(counted)} killed ({share:.1f} %), {len(results) - len(counted)} equivalent; {out}")
    return 0 if share >= least else 1


if __name__ == "__main__":
    if "--times" in sys.argv:
        import pytest

        watch = Watch()
        status = pytest.main([*sys.argv[3:], "-q", "-p", "no:cacheprovider"], plugins=[watch])
        Path(sys.argv[2]).write_text(json.dumps(watch.seconds))
        sys.exit(int(status))
    sys.exit(main())
