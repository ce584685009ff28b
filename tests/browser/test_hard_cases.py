"""What is hard to draw: long names, many variants, long runs, one step, holes, paper."""

import json

import numpy as np
import pytest

from equipoise import report
from tests.browser.test_page import scroll_through, text
from tests.report.folders import make_run

pytestmark = pytest.mark.slow

LONG = "objective.aggregation=balanced,objective.difficulty=hadw(kalman),optim.lr=0.0003,model=Qwen2.5-Math-1.5B"


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    for i, name in enumerate((LONG, "x" * 120, "Lauf_mit_Umlauten_äöü_и_кириллицей")):
        make_run(folder / name, steps=10, seed=i, aggregation=("token", "balanced", "sequence")[i])
    return report.write([folder], folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def twelve_variants(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twelve")
    for variant in range(12):
        for seed in range(2):
            run = make_run(folder / f"v{variant:02d}" / f"seed-{seed}", steps=12, seed=seed)
            with open(run / "config.toml", "a") as config:
                config.write(f"\n[optim]\nlr = {1e-4 * (variant + 1)}\n")
    return report.write([folder], folder / "report.html").as_uri()


@pytest.mark.parametrize("width", [1440, 390])
def test_long_names_keep_the_bar_low_and_the_page_narrow(long_names, open_page, width):
    page = open_page(long_names, width=width, drawn=False).page
    scroll_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#bar").bounding_box()["height"] < 70
    assert page.locator(".chip").evaluate_all("chips => chips.map(c => c.title)") == sorted(
        page.locator(".chip").all_text_contents()
    )


def test_every_chip_of_twelve_is_on_a_wide_screen(twelve_variants, open_page):
    page = open_page(twelve_variants, width=1440, drawn=False).page
    bar = page.locator("#bar").bounding_box()
    boxes = [chip.bounding_box() for chip in page.locator(".chip").all()]
    assert len(boxes) == 12
    assert max(b["x"] + b["width"] for b in boxes) <= 1440
    assert max(b["y"] + b["height"] for b in boxes) <= bar["y"] + bar["height"]
    assert bar["height"] < 140


def test_more_than_four_variants_have_bars_and_four_have_bands(twelve_variants, open_page):
    page = open_page(twelve_variants, drawn=False).page
    scroll_through(page)
    reward = page.locator("figure", has=page.get_by_role("heading", name="Mean reward", exact=True))
    assert reward.locator("path.band").count() == 0
    assert reward.locator("path.whisker").count() >= 12
    places = {
        d.split(" ")[0] for d in reward.locator("path.whisker").evaluate_all("p => p.map(b => b.getAttribute('d'))")
    }
    inside = reward.locator("clipPath rect").evaluate("r => r.x.baseVal.value + r.width.baseVal.value")
    assert len(places) >= 12  # none on top of another, none cut off
    assert max(float(place[1:]) for place in places) < inside
    for chip in page.locator(".chip").all()[4:]:
        chip.click()
    assert reward.locator("path.band").count() == 4
    assert reward.locator("path.whisker").count() == 0


def test_66_pairs_scroll_in_their_own_box(twelve_variants, open_page):
    page = open_page(twelve_variants, drawn=False).page
    assert page.locator("#differences tbody tr").count() == 66
    assert page.locator("#differences .scroll").bounding_box()["height"] < 500


def test_no_tick_of_a_long_run_is_cut_and_an_axis_has_one_notation(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=1)
    rng = np.random.default_rng(0)
    with open(run / "metrics.jsonl", "w") as log:
        for step in range(1, 12001, 4):
            log.write(json.dumps({"step": step, "policy_loss": rng.normal() * 3e-3, "reward/mean": 0.5}) + "\n")
        log.write(json.dumps({"step": 12000, "policy_loss": 0.0, "reward/mean": 0.5}) + "\n")
    page = open_page(report.write([run], tmp_path / "report.html").as_uri()).page
    scroll_through(page)
    outside = page.evaluate(
        """() => [...document.querySelectorAll('.plot text')].filter((t) => {
            const inner = t.getBoundingClientRect(), outer = t.ownerSVGElement.getBoundingClientRect();
            return inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5;
        }).map((t) => t.textContent)"""
    )
    assert outside == []
    for ticks in page.locator(".plot svg").evaluate_all(
        "plots => plots.map(p => [...p.querySelectorAll('.tick[text-anchor=end]')].map(t => t.textContent))"
    ):
        numbers = [tick for tick in ticks if tick != "0"]
        assert len({"e" in tick for tick in numbers}) <= 1, ticks


def test_the_interval_of_a_single_evaluation_is_drawn(tmp_path, open_page):
    page = open_page(report.write([make_run(tmp_path / "run", steps=1)], tmp_path / "report.html").as_uri()).page
    scroll_through(page)
    accuracy = page.locator("figure", has=page.get_by_role("heading", name="acc@8", exact=True))
    assert accuracy.locator("path.whisker").count() == 1
    assert "Show 1 more figure" in text(page, "#others")
    assert "figures" not in text(page, "#others")


def test_a_point_between_two_holes_is_seen(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=1)
    rows = [{"step": s, **({"reward/mean": 0.3} if s in (1, 30) else {})} for s in range(1, 61)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = open_page(report.write([run], tmp_path / "report.html").as_uri()).page
    scroll_through(page)
    faint = page.locator("figure:has-text('reward/mean') path.faint").get_attribute("d")
    assert faint.count("h0") == 2  # a length of nothing with a round cap is a dot


def test_paper_has_a_legend_at_every_section_and_no_table_is_cut(twelve_variants, open_page):
    page = open_page(twelve_variants, width=1440, drawn=False).page
    assert page.locator(".legend:visible").count() == 0
    page.locator(".chip").first.click()
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})
    sections = page.locator("section:has(> .grid-of-figures)").count()
    assert sections > 3
    assert page.locator(".legend:visible").count() >= sections
    assert page.locator(".legend:visible").first.locator("bdi").all_inner_texts() == [f"v{i:02d}" for i in range(1, 12)]
    assert page.locator("#summary .scroll").evaluate("box => box.scrollWidth") <= 718


def test_a_long_response_takes_the_width_and_scrolls(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=5, texts=["word " * 16000, "  \n\n "])
    page = open_page(report.write([run], tmp_path / "report.html").as_uri(), width=1440).page
    card = page.locator(".response").first
    card.get_by_role("button", name="Show all").click()
    assert card.bounding_box()["width"] > 1000
    assert card.bounding_box()["height"] < 1100
    assert page.locator(".response").nth(1).locator(".text").inner_text() == "(white space, 5 characters)"


def test_a_run_without_a_step_says_so(tmp_path, open_page):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("[train]\nsteps = 10\n")
    (run / "metrics.jsonl").write_text("")
    page = open_page(report.write([run], tmp_path / "report.html").as_uri(), drawn=False).page
    assert "No step has been logged yet" in text(page, "#summary")
    assert "whole groups" not in text(page, "#samples")
    assert "Its only option" in text(page, "#settings")


def test_a_share_that_is_0_throughout_has_no_axis_below_0(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=20)  # no response of it is masked out
    opened = open_page(report.write([run], tmp_path / "r.html").as_uri())
    figure = opened.page.locator("#figure-bias\\/masked_mass")
    figure.scroll_into_view_if_needed()
    figure.locator("svg .tick").first.wait_for()
    names = figure.locator("svg .tick[text-anchor=end]").all_text_contents()
    assert names[0] == "0"
    assert not any("−" in name for name in names)


def test_the_pointer_reads_the_interval_too(tmp_path, open_page):
    opened = open_page(report.write([make_run(tmp_path / "run", steps=20)], tmp_path / "r.html").as_uri())
    chart = opened.page.locator("#figure-eval\\/acc\\@8 svg")
    chart.hover()
    assert opened.page.locator("#figure-eval\\/acc\\@8 .tip .value").text_content() == "55.0 % 50.0 to 60.0"
