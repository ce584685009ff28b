"""The files around the code agree with each other and with the code: versions, dependencies, workflows, changelog."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import yaml

import equipoise

from .test_imports import parsed

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "equipoise"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Modules that are imported by another name than their distribution's, where that may not be installed to be asked.
MODULES = {"reasoning-gym": "reasoning_gym", "math-verify": "math_verify"}
# By torch, where there is CUDA, and by verl: used only beside them. And engines that load a plug-in: whoever has the
# engine adds equipoise to it, not the other way round.
BROUGHT = {"triton", "omegaconf", "prime_rl", "ray", "skyrl", "tinker"}


def requirement(line):
    """`name>=1; marker` → the name, in the spelling that pip compares by."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line).group()).lower()


DECLARED = {requirement(line) for line in PROJECT["dependencies"]}
EXTRAS = {requirement(line) for lines in PROJECT["optional-dependencies"].values() for line in lines}


@cache
def imported():
    """The top-level modules that src imports, anywhere in a file."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        for node in parsed(file):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"equipoise"}


@cache
def module_of(distribution):
    """Its top-level modules, where it is installed, and the name it would have."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return {MODULES.get(distribution, distribution)}
    named = (found.read_text("top_level.txt") or "").split()
    files = [] if named else [file for file in found.files or () if file.suffix == ".py"]
    modules = {*named, *(file.parts[0].removesuffix(".py") for file in files)}
    return {MODULES.get(distribution, distribution), *(module for module in modules if not module.startswith("_"))}


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "equipoise.__version__"}
    # setuptools reads a literal without importing the package, which would need torch where a wheel is built.
    assigned = [
        node.value
        for node in ast.parse((SOURCE / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__version__"
    ]
    assert [ast.literal_eval(value) for value in assigned] == [equipoise.__version__]


def test_the_citation_is_of_this_version_and_names_the_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == equipoise.__version__
    assert str(citation["date-released"]) == releases()[equipoise.__version__]
    entry = re.search(r"@software\{.*?^\}", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S).group()
    assert f"version = {{{citation['version']}}}" in entry
    assert f"title   = {{{citation['title']}}}" in entry
    papers = {identifier["value"] for paper in citation["references"] for identifier in paper["identifiers"]}
    assert papers == {"arXiv:2605.04077", "arXiv:2601.08521", "arXiv:2604.13088"}
    assert all(paper["authors"] and paper["title"] for paper in citation["references"])


def releases():
    """Version → date, of the changelog."""
    return dict(re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M))


def test_this_version_is_the_newest_of_the_changelog():
    assert next(iter(releases())) == equipoise.__version__


KINDS_OF_CHANGE = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")  # keepachangelog.com


def test_the_changelog_is_dated_newest_first():
    heads = re.findall(r"^##+ (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[0] == "[Unreleased]"
    dates = [head for head in heads[1:] if head not in KINDS_OF_CHANGE]
    dates = [re.fullmatch(r"(?:\[\d+\.\d+\.\d+\] - )?(\d{4}-\d\d-\d\d)", head)[1] for head in dates]
    assert len(dates) >= 2
    assert dates == sorted(dates, reverse=True)


def test_every_dependency_is_imported():
    modules = imported()
    unused = [name for name in sorted(DECLARED) if not modules & set(module_of(name))]
    assert unused == []


def test_every_import_is_declared():
    known = {module for name in DECLARED | EXTRAS for module in module_of(name)}
    undeclared = sorted(imported() - known - BROUGHT)
    assert undeclared == []


def test_the_wheel_carries_every_file_that_is_not_python():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["equipoise"]
    files = [f.relative_to(SOURCE) for f in SOURCE.rglob("*") if f.is_file() and f.suffix not in (".py", ".pyc")]
    assert files
    left_out = [str(f) for f in files if not any(fnmatch(str(f), pattern.replace("**/", "")) for pattern in patterns)]
    assert left_out == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_run_what_make_does_without_secrets(file):
    text = file.read_text()
    assert "secrets." not in text
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    made = [target for step in steps for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert made
    assert set(made) <= targets
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)


def test_the_wheel_is_tried_on_every_python_it_names():
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())["jobs"]
    assert jobs["fresh"]["strategy"]["matrix"]["python-version"] == [name for name in named if "." in name]
    assert PROJECT["requires-python"] == f">={named[1]}"


def test_the_container_copies_what_is_there_and_let_in():
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    files = {file for line in copied for file in line.split()}
    assert {"pyproject.toml", "constraints.txt", "src"} <= files
    assert all((ROOT / file).exists() for file in files)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == files
    needed = {PROJECT["readme"], *PROJECT["license-files"], "constraints.txt"}
    assert needed <= files


def test_the_container_has_a_python_that_is_supported():
    (version,) = re.findall(r"^FROM python:([\d.]+)-slim$", (ROOT / "Dockerfile").read_text(), re.M)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_pre_commit_formats_as_the_tests_do():
    constraints = dict(re.findall(r"^([\w-]+)==(.*)$", (ROOT / "constraints.txt").read_text(), re.M))
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    revisions = {hook["id"]: repository.get("rev") for repository in repositories for hook in repository["hooks"]}
    assert revisions["ruff-check"] == revisions["ruff-format"] == f"v{constraints['ruff']}"
    assert "mypy" in revisions


@pytest.mark.parametrize("name", ["bug", "objective"])
def test_issue_templates_have_fields_of_different_names(name):
    template = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    fields = [field["id"] for field in template["body"]]
    assert len(fields) == len(set(fields)) >= 4
    assert all(field["attributes"]["label"] for field in template["body"])
