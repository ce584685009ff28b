"""The plug-in's tests on every TRL it accepts: `python scripts/trl_versions.py [VERSION ...]`.

Without arguments: every release that pip finds from the oldest in pyproject.toml's extra `trl` to the newest. Each lies
alone (without its dependencies) in a folder beside the environment's packages and comes first on the path, so the other
packages are the same for all. Exit code 1 where one fails. The default tests run, not the slow ones.

Not covered: other versions of transformers, accelerate and torch than those installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
TESTS = [f"tests/integrations/trl/test_{name}.py" for name in ("contract", "plugin", "export", "vllm_server")]
# Earlier ones have log-probabilities from Triton kernels alone; without a GPU these run in Triton's interpreter.
WITHOUT_TRITON = Version("1.16")


def accepted() -> SpecifierSet:
    """What pyproject.toml says of trl."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (line,) = project["optional-dependencies"]["trl"]
    return SpecifierSet(line.removeprefix("trl"))


def releases(listing: str) -> list[str]:
    """The versions in the output of `pip index versions`, oldest first, that the plug-in accepts."""
    line = re.search(r"^Available versions: (.*)$", listing, re.MULTILINE)
    if line is None:
        raise SystemExit(f"pip lists no versions of trl:\n{listing}")
    return sorted(accepted().filter(line[1].split(", ")), key=Version)


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def environment(version: str, packages: Path, interpreter: Path) -> dict[str, str]:
    """The process's environment with this TRL, and Triton's interpreter where TRL needs Triton."""
    path = [str(packages / version), str(ROOT / "src")]
    more = {"OMP_NUM_THREADS": "1"}
    if Version(version) < WITHOUT_TRITON:
        if not (interpreter / "triton").is_dir():
            raise SystemExit(f"trl {version} needs Triton, and {interpreter} has none: make test-trl-versions gets it")
        path.insert(0, str(interpreter))
        more["TRITON_INTERPRET"] = "1"
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(path)}


def tried(version: str, packages: Path, interpreter: Path) -> bool:
    if not (packages / version / "trl").is_dir():
        pip("install", "--quiet", "--no-deps", "--target", str(packages / version), f"trl=={version}")
    env = environment(version, packages, interpreter)
    ask = [sys.executable, "-c", "from importlib.metadata import version; print(version('trl'))"]
    found = subprocess.run(ask, check=True, capture_output=True, text=True, env=env).stdout.strip()
    # An environment whose own trl comes first would pass every version by testing one.
    if found != version:
        raise SystemExit(f"trl {found} comes before {version} on the path")
    print(f"trl {version}", flush=True)
    return (
        subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, env=env, check=False).returncode == 0
    )


def main() -> None:
    beside = Path(sys.prefix)
    packages = Path(os.environ.get("TRL_VERSIONS", beside / "trl-versions"))
    interpreter = Path(os.environ.get("TRITON_INTERPRETER", beside / "interpreter"))
    versions = sys.argv[1:] or releases(pip("index", "versions", "trl"))
    results = {version: tried(version, packages, interpreter) for version in versions}
    for version, passed in results.items():
        print(f"trl {version}: {'passed' if passed else 'FAILED'}")
    raise SystemExit(0 if all(results.values()) else 1)


if __name__ == "__main__":
    main()
