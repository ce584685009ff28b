"""The built site: no page asks another host for anything, and every link and anchor in it leads somewhere.

It needs Sphinx, and skips without.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.slow
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """What a page loads, links to, and can be linked at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag in LOADED and found.get(LOADED[tag]):
            self.loads.append(found[LOADED[tag]])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason=f"{package} is not installed (pip install 'equipoise[docs]')")
    from scripts.docs.build import build

    out = tmp_path_factory.mktemp("site") / "html"
    build(out)
    return out, {path: Page(path) for path in sorted(out.rglob("*.html"))}


def test_nothing_is_loaded_from_another_host(site):
    out, pages = site
    assert len(pages) > 40
    outside = {load for page in pages.values() for load in page.loads if re.match(r"(\w+:)?//", load)}
    assert outside == set()
    for sheet in out.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_what_scrolls_is_reached_by_keys_and_headings_and_sides_are_told_apart(site):
    """The theme's elements are found by their text: a theme that writes them otherwise shows here."""
    out, _ = site
    text = (out / "study.html").read_text(encoding="utf-8")
    assert '<pre tabindex="0">' in text
    assert re.findall(r"<pre(?! tabindex)[^>]*>", text) == []
    assert '<div tabindex="0" class="table-wrapper' in text
    assert '<div class="table-wrapper' not in text
    assert re.findall(r'<p [^>]*role="heading"(?! aria-level)[^>]*>', text) == []
    sides = re.findall(r"<aside [^>]*>", text)
    assert len(sides) == 2
    assert all("aria-label=" in side for side in sides)


def test_every_link_and_anchor_leads_somewhere(site):
    out, pages = site
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            found = (path.parent / target.partition("?")[0]).resolve() if target else path
            if not found.exists() or (anchor and found in pages and anchor not in pages[found].ids):
                broken.append((str(path.relative_to(out)), link))
    assert broken == []
