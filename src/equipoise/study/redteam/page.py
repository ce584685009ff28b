"""One self-contained HTML page about an attack: no script; what a policy wrote stays text."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from equipoise.report.page import PARTS
from equipoise.report.static import static_page
from equipoise.study.redteam.findings import Exploit, Findings
from equipoise.study.redteam.judge import REASONS

STYLE = """
td code { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem; border-top: 1px solid var(--edge); }
"""


def render(findings: Findings, summary: Mapping[str, Any]) -> str:
    style = (PARTS / "page.css").read_text(encoding="utf-8") + STYLE
    clusters = len(findings.clusters)
    title = f"{clusters} clusters of exploits" if clusters else "No exploit found"
    about = _text(f"{summary['verifier']} ({summary['version']}), attacked by {summary['model']}")
    kinds = groupby(findings.in_order(), key=lambda exploit: exploit.why)
    sections = [_kind(why, list(exploits)) for why, exploits in kinds]
    parts = [_counts(summary), *sections, *_troubles(findings)]
    brand = '<p class="brand">equipoise redteam</p>'
    header = f'<header id="top">{brand}<h1>{title}</h1><p class="about">{about}</p></header>'
    return static_page(title, style, f'{header}\n<main id="main">{"".join(parts)}</main>')


def _text(text: object) -> str:
    return html.escape(str(text)).encode("utf-8", "replace").decode()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    top = "".join(f"<th>{_text(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _counts(summary: Mapping[str, Any]) -> str:
    rows = [
        [_text(phase), f"{counts['tried']:,}", f"{counts['clusters']:,}"]
        for phase, counts in summary["phases"].items()
    ]
    lead = (
        f"{summary['tried']:,} responses of {summary['shapes']:,} shapes in {summary['seconds'] / 60:.1f} minutes, "
        f"{summary['honest']:,} of them honest and right. An exploit is a response that the verifier accepts and an "
        "independent judge, who knows the integer that is the truth, refuses."
    )
    table = _table(("phase", "responses tried", "clusters first found in it"), rows)
    return f'<section><h2>What was tried</h2><p class="lead">{lead}</p>{table}</section>'


def _kind(why: str, exploits: list[Exploit]) -> str:
    meaning = REASONS.get(why.removeprefix("unmarked: "), "the judge you named refuses it")
    mark = (
        ", and the mark that the prompt asked for is missing" if why.startswith("unmarked") else ""
    )
    rows = [
        [
            _code(e.minimal), _text(e.truth), _code(e.shape), f"{e.seen:,}", _text(e.phase), f"{e.tried:,}",
            _text(e.prompt) + "<br>" + "<br>".join(map(_code, (e.response, *e.examples))),
        ]
        for e in exploits
    ]  # fmt: skip
    head = (
        "minimal form",
        "truth",
        "shape",
        "seen",
        "found by",
        "after responses",
        "prompt, and responses as they came",
    )
    lead = f'<p class="lead">Accepted: {_text(meaning)}{mark}.</p>'
    return f"<section><h2>{_text(why)} ({len(exploits)})</h2>{lead}{_table(head, rows)}</section>"


def _troubles(findings: Findings) -> list[str]:
    out = []
    for kind, kept in findings.troubles.items():
        rows = [
            [_code(one["response"]), f"{one['seconds']:.1f}", _code(one["reason"])]
            for one in kept[:10]
        ]
        lead = f"{findings.troubled[kind]:,} responses; no exploit, but each costs a training run time."
        table = _table(("response", "seconds", "reason"), rows)
        out.append(f'<section><h2>{_text(kind)}</h2><p class="lead">{lead}</p>{table}</section>')
    return out
