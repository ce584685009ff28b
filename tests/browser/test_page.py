"""The report page in a real browser: from disk, by keyboard, in both themes, on a phone, with hostile text."""

import json
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise import report
from equipoise.report.watch import HOST, server
from tests.browser.conftest import until
from tests.report.folders import make_run
from tests.report.test_over_seeds import make_seeds
from tests.report.test_page import HOSTILE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def page_file(runs, tmp_path_factory):
    return report.write([runs], tmp_path_factory.mktemp("page") / "report.html").as_uri()


def scroll_through(page, unfold=True):
    """Past everything, so that every figure is drawn."""
    page.evaluate(
        """async (unfold) => {
            for (const details of document.querySelectorAll('section > details')) details.open = unfold;
            for (let y = 0; y < document.documentElement.scrollHeight; y += 400) {
                scrollTo({ top: y, behavior: 'instant' });
                await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
            }
            scrollTo({ top: 0, behavior: 'instant' });
        }""",
        unfold,
    )


def text(page, selector):
    return page.locator(selector).inner_text()


def content(page):
    return json.loads(page.locator("#data").text_content())


@pytest.mark.parametrize("spread", [0.0, 1e-13, 1e-4, 1.1e-3])
def test_a_curve_that_hardly_moves_has_ticks_that_differ(tmp_path, open_page, spread):
    """A constant one has an axis around it: 10 to 30 for 20, and not 19.99, 20, 20, 20, 20.01."""
    run = make_run(tmp_path / "run", steps=1)
    levels = {"reward/mean": 0.25, "completions/mean_length": 20.0, "tokens_per_s": 52345.0, "timing_s/step": 4e-4}
    with open(run / "metrics.jsonl", "w") as log:
        for step in range(1, 21):
            curves = {name: level * (1 + spread * step / 20) for name, level in levels.items()}
            log.write(json.dumps({"step": step, **curves}) + "\n")
    page = open_page(report.write([run], tmp_path / "report.html").as_uri()).page
    scroll_through(page)
    rows = {
        name: page.locator(f"figure:has-text('{name}') text.tick[text-anchor=end]").all_text_contents()
        for name in levels
    }
    for name, ticks in rows.items():
        assert 2 <= len(ticks) == len(set(ticks)), (name, ticks)
    if spread < 1e-9:
        assert rows["completions/mean_length"] == ["10", "15", "20", "25", "30"]
        assert rows["timing_s/step"] == ["2e−4", "3e−4", "4e−4", "5e−4", "6e−4"]


def test_it_opens_from_disk_and_asks_nothing_of_any_network(page_file, open_page):
    opened = open_page(page_file)
    scroll_through(opened.page)
    assert opened.requests == [page_file]
    assert opened.complaints == []
    assert opened.page.evaluate("performance.getEntriesByType('resource').length") == 0
    figures = [f for p in content(opened.page)["panels"] for f in p.get("figures", [])]
    assert len(figures) > 20
    assert opened.page.locator("figure").count() == len(figures)
    words = opened.page.locator("body").inner_text()
    assert not [w for w in ("null", "undefined", "NaN", "[object", "Infinity") if w in words]
    drawn = opened.page.locator("figure:has(path.line), figure:has(.tile path.mark)")
    assert drawn.count() == len(figures)


def test_the_policy_stops_any_other_script(page_file, open_page):
    opened = open_page(page_file)
    opened.page.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = 'window.__pwned = 1';
            document.body.append(script);
            const image = document.createElement('img');
            image.setAttribute('onerror', 'window.__pwned = 1');
            image.src = 'nowhere:';
            document.body.append(image);
        }"""
    )
    end = time.monotonic() + 300
    while not any("Content Security Policy" in c for c in opened.complaints):
        assert time.monotonic() < end
        opened.page.wait_for_timeout(50)
    assert opened.page.evaluate("window.__pwned") is None


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(page_file, open_page, theme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = open_page(page_file, theme, width).page
    scroll_through(page)
    page.locator("figure details summary").first.click()
    page.locator("figure svg").first.focus()
    page.keyboard.press("ArrowRight")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_the_button_changes_the_theme_and_the_system_decides_without_it(page_file, open_page):
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page(page_file, theme).page for theme in ("light", "dark"))
    before = light.evaluate(background)
    assert before != dark.evaluate(background)
    light.get_by_role("button", name="Dark theme").click()
    assert light.evaluate(background) == dark.evaluate(background)
    assert light.get_by_role("button", name="Light theme").count() == 1
    light.emulate_media(color_scheme="dark")
    light.get_by_role("button", name="Light theme").click()
    assert light.evaluate(background) == before


@pytest.mark.parametrize("width", [1280, 390])
def test_a_link_leads_where_it_says_and_nothing_moves_when_figures_are_drawn(page_file, open_page, width):
    page = open_page(page_file + "#samples", width=width).page
    top = "Math.round(document.getElementById('samples').getBoundingClientRect().top)"
    assert 0 <= page.evaluate(top) < 120
    height = page.evaluate("document.documentElement.scrollHeight")
    scroll_through(page, unfold=False)
    assert page.evaluate("document.documentElement.scrollHeight") == height
    page.get_by_role("link", name="Biases").click()
    assert 0 <= page.evaluate(top.replace("samples", "bias")) < 120


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_never_scrolls_sideways(page_file, open_page, width):
    page = open_page(page_file, width=width, height=844).page
    scroll_through(page)
    for details in page.locator("details").all():
        details.evaluate("d => (d.open = true)")
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_run_can_be_hidden_in_every_figure(page_file, open_page):
    page = open_page(page_file).page
    scroll_through(page)
    hadw = page.locator("figure path.line.run-1, figure path.mark.run-1, figure path.faint.run-1")
    others = page.locator("figure path.line.run-0")
    before, beside = hadw.count(), others.count()
    assert before > 100
    page.locator(".chip", has_text="hadw").click()
    assert (hadw.count(), others.count()) == (0, beside)
    page.locator(".chip", has_text="hadw").click()
    assert (hadw.count(), others.count()) == (before, beside)


def test_filters_show_what_they_say(page_file, open_page, runs):
    page = open_page(page_file).page
    data = content(page)
    every = [(i, g, r) for i, run in enumerate(data["runs"]) for g in run["groups"] for r in g["responses"]]
    assert f"{len(every)} responses." in text(page, ".count")

    def assert_said(expected):
        assert f"{expected} of {len(every)} responses match" in text(page, ".count")

    page.get_by_label("Verdict").select_option("wrong")
    assert_said(sum(r["verdict"] == "wrong" for _, _, r in every))
    assert set(page.locator(".response .verdict").all_inner_texts()) == {"✗ wrong"}
    page.get_by_label("Step", exact=True).select_option("10")
    assert_said(sum(r["verdict"] == "wrong" and g["step"] == 10 for _, g, r in every))
    page.get_by_label("Run", exact=True).select_option(label="token")
    token = [r["name"] for r in data["runs"]].index("token")
    assert_said(sum(r["verdict"] == "wrong" and g["step"] == 10 and i == token for i, g, r in every))
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Least length").fill("20")
    page.get_by_label("Most length").fill("30")
    assert_said(sum(20 <= r["length"] <= 30 for _, _, r in every))
    page.get_by_label("Least reward").fill("0.5")
    assert_said(sum(20 <= r["length"] <= 30 and r["reward"] >= 0.5 for _, _, r in every))
    page.get_by_label("Least length").fill("1000000")
    assert text(page, ".count") == f"None of {len(every)} responses match."
    assert page.locator(".response").count() == 0
    page.get_by_role("button", name="Clear filters").click()
    assert f"{len(every)} responses." in text(page, ".count")


def test_a_word_that_spread_is_found_in_the_samples(tmp_path, open_page):
    """From the table of words to the responses that say it."""
    run = make_run(tmp_path / "run", steps=4, every=4)
    for step, said in ((1, "it is 7"), (4, "Qwen says 7")):
        file = run / f"rollouts/step-{step}.parquet"
        table = pq.read_table(file)
        column = table.schema.get_field_index("response")
        pq.write_table(table.set_column(column, "response", pa.array([said] * len(table))), file)
    page = open_page(report.write([run], tmp_path / "report.html").as_uri()).page
    assert page.locator("#words tbody tr", has_text="qwen").inner_text().split("\t")[-1] == "0 → 100 %"
    page.get_by_label("Says").fill("qwen")
    assert set(page.locator(".response .text").all_inner_texts()) == {"Qwen says 7"}
    page.get_by_role("button", name="Clear filters").click()
    assert page.get_by_label("Says").input_value() == ""


def test_a_card_shows_its_numbers(page_file, open_page):
    page = open_page(page_file).page
    data = content(page)
    hadw = next(r for r in data["runs"] if r["name"] == "hadw")
    page.get_by_label("Run", exact=True).select_option(label="hadw")
    first = hadw["groups"][0]["responses"][0]
    card = page.locator(".response").first
    numbers = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert list(numbers) == ["advantage A", "Φ, part of A", "weight w", "coefficient c"]
    shown = [float(v.replace("−", "-")) for v in numbers.values()]
    assert shown == pytest.approx([first[k] for k in ("advantage", "phi", "weight", "coefficient")], rel=6e-3)


def test_the_same_prompt_can_be_followed_through_the_runs(page_file, open_page):
    page = open_page(page_file).page
    prompt = text(page, ".prompt")
    assert text(page, ".where b") == "balanced"
    page.locator(".elsewhere button", has_text="token").click()
    assert (text(page, ".where b"), text(page, ".prompt")) == ("token", prompt)


def test_the_samples_can_be_walked_with_the_arrow_keys(page_file, open_page):
    page = open_page(page_file).page
    label = "document.activeElement.getAttribute('aria-label') || ''"
    page.locator(".response").first.focus()
    assert page.evaluate(label).startswith("Response 1 of 4")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(label).startswith("Response 3 of 4")
    assert "Group 1 of" in text(page, ".count")
    page.keyboard.press("ArrowDown")
    assert "Group 2 of" in text(page, ".count")
    assert page.evaluate(label).startswith("Response 3 of 4")
    page.keyboard.press("End")
    assert page.evaluate(label).startswith("Response 4 of 4")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(label).startswith("Response 4 of 4")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    assert "Group 1 of" in text(page, ".count")
    assert page.locator(".response[tabindex='0']").count() == 1


def test_every_control_is_reached_by_tab_and_shows_it(page_file, open_page):
    page = open_page(page_file).page
    scroll_through(page)
    seen, hidden = [], []
    for _ in range(400):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """() => {
                const e = document.activeElement, s = getComputedStyle(e);
                const seen = s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2;
                return e === document.body ? null : [e.tagName + ' ' + (e.className.baseVal ?? e.className), seen];
            }"""
        )
        if at is None:
            break
        seen.append(at[0])
        if not at[1]:
            hidden.append(at[0])
    assert hidden == []
    assert seen[0] == "A skip"
    kinds = {s.split(" ")[0] for s in seen}
    assert kinds >= {"A", "BUTTON", "svg", "SUMMARY", "SELECT", "INPUT", "ARTICLE", "PRE"}
    assert sum(s.startswith("svg") for s in seen) == page.locator(".plot svg").count()


def test_a_figure_is_read_with_arrow_keys_and_as_a_table(page_file, open_page):
    page = open_page(page_file).page
    data = content(page)
    figure = page.locator("figure", has=page.get_by_role("heading", name="acc@8", exact=True))
    figure.locator("svg").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "Step 5." in figure.locator("[aria-live]").text_content()
    assert figure.locator(".tip").is_visible()
    page.keyboard.press("Escape")
    assert not figure.locator(".tip").is_visible()
    figure.locator("summary").click()
    held_out = next(p for p in data["panels"] if p["id"] == "held-out")
    line = next(f for f in held_out["figures"] if f["id"] == "eval/acc@8")["lines"][0]
    rows = figure.locator("tbody tr")
    assert rows.count() == len(line["x"])
    assert rows.nth(2).locator("td").first.inner_text() == f"{100 * line['y'][2]:.1f} %"


def test_long_texts_are_clipped_until_asked_for(page_file, open_page):
    page = open_page(page_file).page
    card = page.locator(".response").nth(1)
    short = card.locator(".text").inner_text()
    assert len(short) < 1400
    assert short.startswith("The first words.")
    assert short.rstrip().endswith("The last words.")
    card.get_by_role("button", name="Show all").click()
    assert len(card.locator(".text").inner_text()) > 7000
    card.get_by_role("button", name="Show less").click()
    assert card.locator(".text").inner_text() == short


def test_hostile_text_is_inert_and_visible(tmp_path, open_page):
    run = make_run(tmp_path / "<img src=x onerror=window.__pwned=1>", steps=5, texts=[*HOSTILE, "x" * 10**6])
    with open(run / "metrics.jsonl", "a") as f:
        f.write('{"step": 6, "<script>window.__pwned=1</script>": 1, "\\ud800\\u202e": 2, "verdict/<b>": 1}\n')
    with open(run / "config.toml", "a") as f:
        f.write('[extra]\nnote = "</pre><script>window.__pwned=1</script>"\n')
    opened = open_page(report.write([run], tmp_path / "page.html").as_uri())
    page = opened.page
    scroll_through(page)
    codes, gaps = set(), []
    for _ in range(3):
        for button in page.locator(".response button", has_text="Show all").all():
            button.click()
        codes |= set(page.locator(".response .code-point").all_inner_texts())
        gaps += page.locator(".gap").all_inner_texts()
        page.get_by_role("button", name="Next group").click()
    assert page.evaluate("window.__pwned") is None
    assert opened.complaints == []
    assert page.locator("script").count() == 2
    assert page.locator("img, iframe, main b b, main i:not([class])").count() == 0
    assert {"U+202E", "U+2066", "U+200B", "U+0000", "U+001B"} <= codes
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "characters are not in this page" in " ".join(gaps)


def test_200_steps_of_4_runs_open_in_two_seconds(tmp_path, open_page):
    """At its best of a few, on a machine as fast as one on which a loop takes a tenth of a second; where the loop takes
    longer, so may the page.
    """
    for i in range(4):
        make_run(tmp_path / f"run{i}", steps=200, seed=i, every=10, groups=8, size=8, texts=["1 + 1 = 2 " * 60])
    address = report.write([tmp_path], tmp_path / "page.html").as_uri()
    for _ in range(5):
        page = open_page(address).page
        load, chart, loop = page.evaluate(
            """() => {
                const begun = performance.now();
                let sum = 0;
                for (let i = 0; i < 1e7; i++) sum += i % 7;
                return [performance.getEntriesByType('navigation')[0].loadEventEnd,
                        performance.getEntriesByName('first-chart')[0].startTime,
                        performance.now() - begun + (sum < 0)];
            }"""
        )
        print(f"load {load:.0f} ms, first chart {chart:.0f} ms, loop {loop:.0f} ms")
        if max(load, chart) < 2000 * max(1.0, loop / 100):
            break
    assert max(load, chart) < 2000 * max(1.0, loop / 100)


def test_a_watched_run_grows_before_the_eyes(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=6)
    serving = server(run)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        opened = open_page(f"http://{HOST}:{serving.server_address[1]}/")
        page = opened.page
        assert text(page, "#state") == "Live"
        page.get_by_label("Verdict").select_option("wrong")
        page.locator(".response").first.focus()
        before = page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.evaluate("scrollTo({ top: 700, behavior: 'instant' })")
        place = "Math.round(document.getElementById('drift').getBoundingClientRect().top)"
        stood = page.evaluate(place)
        with open(run / "metrics.jsonl", "a") as f:
            f.write('{"step": 7, "reward/mean": 0.5, "policy_loss": 0.1}\n{"step": 8, "rew')
        until(page, "document.querySelector('#summary td').textContent.startsWith('7')")
        assert page.get_by_label("Verdict").input_value() == "wrong"
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == before
        assert abs(page.evaluate(place) - stood) <= 3
        (run / "metrics.jsonl").write_text("")
        until(page, "document.querySelector('#summary td').textContent.startsWith('0')")
        assert opened.complaints == []
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()
    until(page, "document.getElementById('state').textContent.includes('No answer')")
    assert page.locator(".response").count() > 0


@pytest.fixture(scope="session")
def grouped_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    for rule in ("token", "balanced"):
        for seed in range(3):
            make_seeds(folder, rule, seed)
    return report.write([folder], folder / "report.html").as_uri()


def test_seeds_are_grouped_and_single_runs_one_click_away(grouped_file, open_page):
    opened = open_page(grouped_file)
    page = opened.page
    scroll_through(page)
    assert page.locator(".chip").all_inner_texts() == ["balanced", "token"]
    accuracy = page.locator("figure", has=page.get_by_role("heading", name="acc@8", exact=True))
    assert accuracy.locator("path.line").count() == accuracy.locator("path.band").count() == 2
    assert page.get_by_role("heading", name="Differences between variants").count() == 1
    page.get_by_role("button", name="Single runs").click()
    scroll_through(page)
    assert page.locator(".chip").count() == 6
    assert accuracy.locator("path.line").count() == 6
    assert accuracy.locator("path.line.run-0").count() == 3  # seeds keep the colour of their variant
    assert page.get_by_role("heading", name="Differences between variants").count() == 0
    page.get_by_role("button", name="Group by variant").click()
    scroll_through(page)
    assert accuracy.locator("path.line").count() == 2
    assert opened.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_in_grouped_runs(grouped_file, open_page, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = open_page(grouped_file, width=width).page
    scroll_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_print_draws_every_figure_and_leaves_the_controls_out(grouped_file, open_page):
    page = open_page(grouped_file, theme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    empty = page.locator("section > .grid-of-figures .plot:not(:has(svg))")
    assert empty.count() == 0
    assert not page.locator("#bar").is_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_charts_are_drawn_for_the_paper_and_for_the_screen_again(grouped_file, open_page):
    page = open_page(grouped_file, width=1440).page
    widths = "[...document.querySelectorAll('.plot svg')].map((s) => s.viewBox.baseVal.width)"
    scroll_through(page, unfold=False)
    before = set(page.evaluate(widths))
    assert 340 not in before
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert set(page.evaluate(widths)) == {340}
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert set(page.evaluate(widths)) == before


def test_nothing_of_the_paper_is_cut_and_what_is_folded_is_left_out(grouped_file, open_page):
    """Six runs: their settings have seven columns. What is wider than the paper would shrink the whole page."""
    page = open_page(grouped_file, width=1440).page
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#settings table:visible").count() == 1
    assert page.locator("#settings thead th").count() >= 7
    wide = "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > 701)"
    assert page.evaluate(f"{wide}.map((e) => e.outerHTML.slice(0, 80))") == []
    assert page.locator("summary:visible").count() == 0
    assert not page.get_by_role("heading", name="All other metrics").is_visible()


def test_a_figure_keeps_off_the_table_above_it(grouped_file, open_page):
    page = open_page(grouped_file, width=390).page
    scroll_through(page, unfold=False)
    gaps = page.evaluate(
        """[...document.querySelectorAll('section:has(> .scroll):has(> .grid-of-figures)')].map((section) =>
            section.querySelector('.grid-of-figures').getBoundingClientRect().top
            - section.querySelector('.scroll').getBoundingClientRect().bottom)"""
    )
    assert gaps
    assert min(gaps) >= 12
