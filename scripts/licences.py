"""Print the licence of every package that equipoise needs at run time: `python scripts/licences.py`.

Read from the metadata of what is installed here, dependencies of dependencies included. The exit code is 1 where one is
not permissive. The libraries that torch's build for CUDA brings are NVIDIA's, under its own licence, and are told but
not counted. Not covered: what a wheel carries besides its own code (torch's own NOTICE files list that).
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

from packaging.markers import default_environment
from packaging.requirements import Requirement

# Words of licences that let the code be used, changed and passed on without opening what it is used in. MPL-2.0 asks
# for changes to its own files alone.
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|PSFL|Unlicense|CC0|Zlib|HPND|0BSD|BSL-1.0|MPL[- ]2\.0|"
    r"Mozilla Public License 2\.0|MPL 2\.0|CNRI-Python|Historical Permission Notice)", re.IGNORECASE,
)  # fmt: skip
CUDA = re.compile(r"nvidia-|cuda-")  # names of what torch's build for CUDA brings
COPYLEFT = re.compile(r"GPL|General Public License", re.IGNORECASE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def reached(name: str, extras: set[str] | None = None) -> set[str]:
    """The distributions installed here that `name`, with some of its extras, brings along."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras or set()))]
    seen = set(waiting)
    while waiting:
        name, wanted = waiting.pop()
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(normal(name))
        for line in lines:
            needed = Requirement(line)
            entry = (needed.name, frozenset(needed.extras))
            if entry not in seen and _applies(needed, wanted):
                seen.add(entry)
                waiting.append(entry)
    return found


def _applies(needed: Requirement, extras: frozenset[str]) -> bool:
    if needed.marker is None:
        return True
    here = default_environment()
    return any(needed.marker.evaluate({**here, "extra": extra}) for extra in (extras or {""}))


def licences(name: str) -> dict[str, str]:
    """What the metadata of each package that `name` needs says of its licence."""
    return {found: _words(found) for found in sorted(reached(name) - {normal(name)})}


def _words(name: str) -> str:
    about = metadata.metadata(name)
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    text = (about.get("License") or "").strip()
    return about.get("License-Expression") or " AND ".join(classifiers) or text[:80]


def is_permissive(words: str) -> bool:
    """One side of an OR must be permissive in all of its parts."""

    def part_is(part: str) -> bool:
        return bool(PERMISSIVE.search(part)) and not COPYLEFT.search(part)

    return any(all(part_is(part) for part in side.split(" AND ")) for side in words.split(" OR "))


def refused(found: dict[str, str]) -> list[str]:
    return [name for name, words in found.items() if not (CUDA.match(name) or is_permissive(words))]


def main() -> int:
    found = licences("equipoise")
    wrong = refused(found)
    for name, words in found.items():
        print(f"{name:24} {'' if name not in wrong else 'NOT PERMISSIVE: '}{words or 'no licence given'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
