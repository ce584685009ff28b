"""Every link between the project's pages leads to a file, a heading or a generated page. No network is asked."""

import re
from pathlib import Path

import pytest

from scripts.docs import build

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("recipes/**/*.md")),
    *sorted(ROOT.glob("studies/*.md")),
]  # fmt: skip
# Made when the site is built; tests/docs/test_reference.py says that they are.
PACKAGES = (
    "objective", "theory", "verifiers", "tasks", "audit", "report",
    "config", "evaluate", "integrations", "kernels", "policy", "rollout", "train",
)  # fmt: skip
GENERATED = {
    ROOT / "docs" / "reference" / f"{name}.md"
    for name in ("configuration", "commands", "metrics", "equipoise", *(f"equipoise.{package}" for package in PACKAGES))
}


def without_code(text):
    """Fenced and indented blocks, and code inside a line, hold no links."""
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", text, flags=re.M | re.S)
    text = re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def links(text):
    return re.findall(r"\]\(([^)\s]+)\)", without_code(text))


def slug(heading):
    """The anchor that forges and MyST give to a heading: lower case, without punctuation, blanks as hyphens."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(path):
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    broken = []
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if path in GENERATED:
            continue
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


def test_outside_links_are_encrypted_and_the_only_ones_that_leave():
    leaving = [link for page in PAGES for link in links(page.read_text(encoding="utf-8")) if re.match(r"\w+:", link)]
    assert leaving
    assert [link for link in leaving if not link.startswith("https://")] == []


def test_the_site_lists_every_page():
    """Those that the first page does not name get a table of contents of their own."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in ROOT.glob("docs/**/*.md")}
    generated = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in GENERATED}
    assert build.listed(build.complete(index)) >= (pages - {"index"}) | generated
    without = index.replace("\ntutorial\n", "\n")
    assert "tutorial" not in build.listed(without)
    assert "tutorial" in build.listed(build.complete(without))


def test_a_broken_link_is_found(tmp_path):
    text = "[a](#here) `[b](none.md)`\n\n    [c](none.md)\n\n```\n[d](none.md)\n```\n[e](none.md#x)\n"
    assert links(text) == ["#here", "none.md#x"]
    (tmp_path / "page.md").write_text("# Both *balances* at once (`objective.projection`)\n```\n# no heading\n```\n")
    assert anchors(tmp_path / "page.md") == {"both-balances-at-once-objectiveprojection"}
