"""The package: what importing it loads, what the archives hold, and what its dependencies are licensed under."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import equipoise
from scripts import licences

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED = "import sys; before = set(sys.modules); import equipoise; print(*set(sys.modules) - before)"
HELP = "import sys; from equipoise.cli import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
LISTED = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
HEAVY = {"torch", "numpy", "scipy", "transformers", "pydantic", "sympy", "pyarrow", "rich"}


def modules(code):
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_next_to_nothing():
    """What keeps `import equipoise` in milliseconds; a clock would measure the machine."""
    loaded = modules(IMPORTED)
    assert {name.partition(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "equipoise"}
    assert len(loaded) < 50


def test_help_answers_without_torch():
    assert modules(HELP) & HEAVY == set()


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The wheel and the source archive, built of what git has, without a network."""
    pytest.importorskip("build")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(LISTED, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: what belongs to the project is not known")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return zipfile.ZipFile(wheel).namelist(), [name.partition("/")[2] for name in tarfile.open(source).getnames()]


@pytest.mark.long
def test_the_wheel_has_the_package_and_nothing_else(archives):
    names, _ = archives
    tops = {name.split("/")[0] for name in names}
    assert tops == {"equipoise", f"equipoise-{equipoise.__version__}.dist-info"}
    package = ROOT / "src" / "equipoise"
    found = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {f"equipoise/{path.relative_to(package)}" for path in found}
    assert {name for name in names if name.startswith("equipoise/")} == files
    assert "equipoise/assets/abacus/model.safetensors" in names


@pytest.mark.long
def test_the_source_archive_builds_and_reads_and_holds_nothing_stray(archives):
    _, names = archives
    tops = {name.split("/")[0] for name in names if name}
    assert tops == {
        "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md",
        "SECURITY.md", "constraints.txt", "examples", "pyproject.toml", "setup.cfg", "src",
    }  # fmt: skip
    assert any(name.startswith("src/equipoise/report/page/") for name in names)


def test_addresses_are_known_ones():
    """The papers; an address of the project itself is not known yet."""
    assert PROJECT["urls"]
    assert all(re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", url) for url in PROJECT["urls"].values())


def test_every_runtime_dependency_has_a_permissive_licence():
    found = licences.licences("equipoise")
    assert {"torch", "numpy", "transformers"} <= set(found)
    assert licences.refused(found) == []


def test_what_torch_brings_for_cuda_is_nvidias_and_nothing_else_may_be_proprietary():
    found = {"nvidia-cublas": "Other/Proprietary License", "cuda-toolkit": "", "torch": "BSD-3-Clause"}
    assert licences.refused(found) == []
    assert licences.refused({**found, "closed": "Other/Proprietary License"}) == ["closed"]


@pytest.mark.parametrize(
    ("words", "permissive"),
    [("MIT", True), ("BSD-3-Clause AND MIT", True), ("Apache Software License", True), ("MPL-2.0 AND MIT", True),
     ("GPL-3.0-or-later", False), ("GNU General Public License v3 (GPLv3)", False), ("LGPL-2.1", False), ("", False),
     ("MIT OR GPL-2.0", True), ("MIT AND GPL-2.0", False), ("MIT AND Other", False)],
)  # fmt: skip
def test_which_licences_are_permissive(words, permissive):
    assert licences.is_permissive(words) == permissive


def test_constraints_pin_everything_the_tests_run_with():
    """Every package that this environment reaches from the project and its extras, at the version that is installed."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    pinned = {licences.normal(name): version for name, version in pinned.items()}
    reached = licences.reached("equipoise", extras=set(PROJECT["optional-dependencies"]) - {"verl", "vllm"})
    installed = {name: metadata.version(name).partition("+")[0] for name in reached}
    loose = {"equipoise", "pip", "setuptools", "triton", *(n for n in installed if n.startswith(("nvidia-", "cuda-")))}
    wrong = {name: version for name, version in installed.items() if name not in loose and pinned.get(name) != version}
    assert wrong == {}


def test_the_page_on_installing_names_what_there_is():
    page = (ROOT / "docs" / "install.md").read_text()
    (torch,) = re.findall(r"torch==\S+", page)
    assert torch in (ROOT / "constraints.txt").read_text().split()
    table = re.findall(r"^\| (`.*?`) \|", page, re.M)
    assert set(re.findall(r"`([\w-]+)`", " ".join(table))) == set(PROJECT["optional-dependencies"])
    assert all((ROOT / name).exists() for name in re.findall(r"constraints[\w-]*\.txt", page))
