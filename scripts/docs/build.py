"""Build the documentation's site: `python scripts/docs/build.py [OUT]` (`make docs`). It needs no network.

The pages of docs/, the files of the project that they link to, and the reference, which is made of the code, are laid
out in a folder of their own, and Sphinx makes the site of it. A link that leads nowhere ends the build with an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from scripts.docs.reference import pages  # noqa: E402 (found from the root alone)

ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")  # besides docs/ and what its pages link to
PROJECT = "project"  # where files from outside of docs/ stand in the site
# What the theme leaves out of its elements, for readers without a screen and without a pointer.
HELPED = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    "<pre>": '<pre tabindex="0">',  # it scrolls where it is wide, as a table does
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
}
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")


def build(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        lay_out(stage)
        options = ["--quiet", "--fail-on-warning", "--keep-going", "--fresh-env", "--builder", "html"]
        command = [sys.executable, "-m", "sphinx", *options, "--conf-dir", str(Path(__file__).parent)]
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([*command, str(stage), str(out)], check=True)
    for page in out.rglob("*.html"):
        help_readers(page)
    for left_over in (".doctrees", ".buildinfo"):
        path = out / left_over
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def help_readers(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for element, helped in HELPED.items():
        text = text.replace(element, helped)
    page.write_text(text, encoding="utf-8")


def lay_out(stage: Path) -> None:
    """The sources of the site: pages with their links turned to where things stand in it."""
    waiting = [ROOT / name for name in ALWAYS]
    waiting += [path for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()]
    done: set[Path] = set()
    reference = {f"reference/{name}": text for name, text in pages().items()}
    for name, text in reference.items():
        _write(stage / name, text)
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        target = stage / place(source)
        if source.suffix != ".md":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            continue
        text = source.read_text(encoding="utf-8")
        if place(source) == Path("index.md"):
            text = complete(text)
        waiting += [path for path in linked(source, text) if path not in done]
        _write(target, moved(source, text))


def listed(index: str) -> set[str]:
    """The pages that the tables of contents of a page name, without their ending."""
    trees = "\n".join(re.findall(r"```{toctree}(.*?)```", index, re.S))
    return set(re.findall(r"^(?:[^\n<`]+<)?([\w/.-]+)>?$", trees, re.M))


def complete(index: str) -> str:
    """The first page with a table of contents more, of the pages of docs/ that it does not name."""
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in ROOT.glob("docs/**/*.md")}
    further = sorted(pages - listed(index) - {"index"})
    if not further:
        return index
    return "\n".join([index, "```{toctree}", ":hidden:", ":caption: Further", "", *further, "```", ""])


def place(source: Path) -> Path:
    """Where a file of the project stands in the site: docs/ at the top, the rest under `project/`."""
    path = source.relative_to(ROOT)
    if path.parts[0] == "docs":
        return Path(*path.parts[1:])
    return Path(PROJECT) / path


def linked(source: Path, text: str) -> list[Path]:
    """Files of the project that a page links to; a folder stands for its README."""
    found = [(source.parent / link[2]).resolve() for link in LINK.finditer(text)]
    folders = [path / "README.md" if path.is_dir() else path for path in found]
    return [path for path in folders if path.is_file() and path.is_relative_to(ROOT)]


def moved(source: Path, text: str) -> str:
    """The page with its links to files as they are in the site. Links that lead nowhere stay, for Sphinx to find."""
    here = place(source).parent

    def turned(link: re.Match[str]) -> str:
        path = (source.parent / link[2]).resolve()
        path = path / "README.md" if path.is_dir() else path
        if not path.is_file() or not path.is_relative_to(ROOT):
            return link[0]
        depth = len(here.parts)
        return f"{link[1]}{'../' * depth}{place(path).as_posix()}{link[3] or ''}{link[4]}"

    return LINK.sub(turned, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")
    build(site)
    print(f"the site is in {site}: open {site / 'index.html'}")
