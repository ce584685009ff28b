"""The drawings of docs/figures: a dark page gets dark ones, and none leans on the page's paper."""

from pathlib import Path

import pytest

FIGURES = sorted((Path(__file__).parents[2] / "docs" / "figures").glob("*.svg"))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.stem)
def test_a_drawing_follows_the_colour_scheme_and_paints_its_own_paper(figure):
    text = figure.read_text(encoding="utf-8")
    style, drawing = text.split("</style>")
    assert "@media(prefers-color-scheme:dark){.paper{fill:" in style
    assert drawing.lstrip().startswith('<rect class="paper" width="100%" height="100%"/>')
    assert 'fill="#' not in drawing
    assert 'stroke="#' not in drawing
