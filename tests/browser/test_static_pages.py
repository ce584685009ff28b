"""The pages without a script, in a browser: the red team's and the bias page."""

import numpy as np
import pytest

from equipoise.study import bias_page
from tests.study.redteam.test_page import exploit, render
from tests.study.test_bias import measure, outcomes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("static")
    result = measure(outcomes(np.linspace(0.02, 0.98, 60)))
    made = {"redteam": render([exploit(), exploit("x" * 400)]), "bias": bias_page.page(result, "bias")}
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["redteam", "bias"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen_and_axe_finds_nothing(pages, open_page, name, width, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = open_page((pages / f"{name}.html").as_uri(), theme, width, drawn=False).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [1440, 390])
def test_an_exploit_is_read_without_scrolling_sideways(pages, open_page, width):
    page = open_page((pages / "redteam.html").as_uri(), width=width, drawn=False).page
    for box in page.locator(".scroll").all():
        assert box.evaluate("b => b.scrollWidth <= b.clientWidth")


@pytest.mark.parametrize("width", [1440, 390])
def test_no_two_texts_of_a_drawing_overlap_and_all_can_be_read(pages, open_page, width):
    page = open_page((pages / "bias.html").as_uri(), width=width, drawn=False).page
    overlaps, smallest = page.evaluate(
        """() => {
            const found = [];
            let smallest = Infinity;
            for (const drawing of document.querySelectorAll('svg')) {
                const texts = [...drawing.querySelectorAll('text')];
                const boxes = texts.map((t) => t.getBoundingClientRect());
                const scale = drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width;
                texts.forEach((t) => (smallest = Math.min(smallest, scale * parseFloat(getComputedStyle(t).fontSize))));
                boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, k) => {
                    const beside = a.right <= b.left || b.right <= a.left;
                    const apart = beside || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
                    if (!apart) found.push([texts[i].textContent, texts[i + 1 + k].textContent]);
                }));
            }
            return [found, smallest];
        }"""
    )
    assert overlaps == []
    assert smallest >= 9.5


def test_a_table_that_goes_on_over_the_page_has_its_head_again_and_none_is_cut(pages, open_page):
    page = open_page((pages / "bias.html").as_uri(), width=700, drawn=False).page
    page.emulate_media(media="print")
    tables = page.locator("table")
    assert tables.count() > 1
    for table in tables.all():
        assert table.locator("thead th[scope=col]").count() > 1
        assert table.evaluate("t => t.getBoundingClientRect().right") <= 701


def test_no_break_of_the_paper_is_in_a_heading_or_a_paragraph(pages, open_page):
    page = open_page((pages / "bias.html").as_uri(), drawn=False).page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('main')).display") == "block"
    for name in ("h2", "section > p"):
        assert page.evaluate(f"getComputedStyle(document.querySelector('{name}')).breakInside") == "avoid"
