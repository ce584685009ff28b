"""A self-contained HTML page without a script, for commands that have no curves to show.

Its Content-Security-Policy allows the page's own style and nothing else, so a response of a model
that is shown in it can neither run nor load anything. Not here: the report of runs (`page.py`),
which is drawn by its own script.
"""

from __future__ import annotations

import html

from equipoise.report.page import policy

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · equipoise</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def static_page(title: str, style: str, body: str) -> str:
    """`body` is HTML already, `title` is text."""
    return PAGE.format(
        policy=policy(style, "", live=False), title=html.escape(title), style=style, body=body
    )
