"""A real headless Chromium, driven by playwright; tests skip with a sentence where either is missing."""

import shutil
import time

import pytest

from tests.report.folders import make_run


@pytest.fixture(scope="session")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        pytest.skip("there is no chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield browser
        browser.close()


def until(page, expression, seconds=300):
    """Wait for an expression to hold, asked from outside: the page's policy forbids the driver's own waiting."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never became true: {expression}"
        page.wait_for_timeout(50)


class Opened:
    """A page, with what it asked of the network and what it complained about."""

    def __init__(self, context, address, drawn=True):
        self.page = context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.goto(address)
        if drawn:
            until(self.page, "performance.getEntriesByName('first-chart').length > 0")


@pytest.fixture
def open_page(chromium):
    contexts = []

    def open_(address, theme="light", width=1280, height=900, drawn=True):
        context = chromium.new_context(color_scheme=theme, viewport={"width": width, "height": height})
        context.set_default_timeout(300_000)  # a loaded machine is no reason to fail
        contexts.append(context)
        return Opened(context, address, drawn)

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    long = "The first words. " + "digits 0123456789 " * 400 + "The last words."
    kinds = {"token": ("token", None), "balanced": ("balanced", None), "hadw": ("balanced", "hadw")}
    for i, (name, (rule, difficulty)) in enumerate(kinds.items()):
        make_run(folder / name, steps=30, seed=i, aggregation=rule, difficulty=difficulty, texts=["short", long])
    return folder
