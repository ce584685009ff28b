"""The docs site in a browser: what its own script adds."""

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason=f"{package} is not installed (pip install 'equipoise[docs]')")
    from scripts.docs.build import build

    out = tmp_path_factory.mktemp("site") / "html"
    build(out)
    return (out / "index.html").as_uri()


def test_an_example_is_copied_or_selected(index, open_page):
    opened = open_page(index, drawn=False)
    example = opened.page.locator("div.highlight").first
    example.hover()
    box = example.locator("button").bounding_box()
    assert box["width"] > box["height"]  # its word is not broken: the theme has rules for buttons of another kind
    example.locator("button").click()
    opened.page.get_by_text("Selected").or_(opened.page.get_by_text("Copied")).wait_for()
    assert opened.complaints == []
    assert "Copy" not in example.locator("pre").text_content()
