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

# On a phone and on narrow paper a row is a block: its cells under each other, each with its head.
STYLE = """
h2::first-letter { text-transform: uppercase; }
td code { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
td, th { vertical-align: top; }
th.words { text-align: left; }
td.words { white-space: normal; overflow-wrap: anywhere; min-width: 6.8rem; }
.exploits td:first-child { min-width: 11rem; max-width: 22rem; }
.exploits td:last-child { min-width: 16rem; }
.exploits p { margin-bottom: .2rem; }
@media (max-width: 760px) {
  .exploits thead { position: absolute; clip-path: inset(50%); }
  .exploits tr { display: grid; gap: .15rem; padding: .6rem .75rem; border-bottom: 1px solid var(--edge); }
  .exploits td { display: grid; grid-template-columns: 7.8rem minmax(0, 1fr); border: 0; padding: 0; text-align: left;
    min-width: 0 !important; max-width: none !important; }
  .exploits td::before { content: attr(data-head); color: var(--soft); }
  .exploits td:last-child { grid-template-columns: minmax(0, 1fr); }
}
"""
NONE = (
    " None was found. That is no proof that there is none: a longer attack (--minutes) or a pretrained attacker "
    "(--model) may find one."
)


def render(findings: Findings, summary: Mapping[str, Any]) -> str:
    style = (PARTS / "page.css").read_text(encoding="utf-8") + STYLE
    clusters = len(findings.clusters)
    several = "cluster" if clusters == 1 else "clusters"
    title = f"{clusters} {several} of exploits" if clusters else "No exploit found"
    about = _text(f"{summary['verifier']} ({summary['version']}), attacked by {summary['model']}")
    kinds = groupby(findings.in_order(), key=lambda exploit: exploit.why)
    sections = [_kind(why, list(exploits)) for why, exploits in kinds]
    parts = [_counts(summary), *sections, *_troubles(findings)]
    brand = '<p class="brand">equipoise redteam</p>'
    header = f'<header id="top">{brand}<h1>{title}</h1><p class="about">{about}</p></header>'
    return static_page(title, style, f'{header}\n<main id="main">{"".join(parts)}</main>')


def _text(text: object) -> str:
    return html.escape(str(text)).encode("utf-8", "replace").decode()


def _table(
    label: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()
) -> str:
    """Cells are HTML already; those under `numbers` stand at the right."""
    kinds = ["" if name in numbers else ' class="words"' for name in head]
    columns = list(zip(map(_text, head), kinds, strict=True))
    top = "".join(
        f'<th scope="col" role="columnheader"{kind}>{name}</th>' for name, kind in columns
    )
    body = "".join(f'<tr role="row">{_cells(columns, row)}</tr>' for row in rows)
    # The roles stay where a narrow screen lays a row out as a block.
    return (
        f'<div class="scroll whole" tabindex="0" role="region" aria-label="{_text(label)}">'
        f'<table class="exploits" role="table"><thead role="rowgroup"><tr role="row">{top}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table></div>'
    )


def _cells(columns: Sequence[tuple[str, str]], row: Sequence[str]) -> str:
    paired = zip(columns, row, strict=True)
    return "".join(
        f'<td role="cell" data-head="{name}"{kind}><div>{cell}</div></td>'
        for (name, kind), cell in paired
    )


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
    if not any(counts["clusters"] for counts in summary["phases"].values()):
        lead += NONE
    numbers = ("responses tried", "clusters first found in it")
    table = _table("What was tried", ("phase", *numbers), rows, numbers)
    return f'<section><h2>What was tried</h2><p class="lead">{lead}</p>{table}</section>'


NUMBERS = ("truth", "seen", "after responses")


def _kind(why: str, exploits: list[Exploit]) -> str:
    meaning = REASONS.get(why.removeprefix("unmarked: "), "the judge you named refuses it")
    mark = (
        ", and the mark that the prompt asked for is missing" if why.startswith("unmarked") else ""
    )
    rows = [
        [
            _code(e.minimal), _text(e.truth), _code(e.shape), f"{e.seen:,}", _text(e.phase), f"{e.tried:,}",
            f"<p>{_text(e.prompt)}</p>" + "<br>".join(map(_code, (e.response, *e.examples))),
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
    return f"<section><h2>{_text(why)} ({len(exploits)})</h2>{lead}{_table(why, head, rows, NUMBERS)}</section>"


def _troubles(findings: Findings) -> list[str]:
    out = []
    for kind, kept in findings.troubles.items():
        rows = [
            [_code(one["response"]), f"{one['seconds']:.1f}", _code(one["reason"])]
            for one in kept[:10]
        ]
        lead = f"{findings.troubled[kind]:,} responses; no exploit, but each costs a training run time."
        table = _table(kind, ("response", "seconds", "reason"), rows, ("seconds",))
        out.append(f'<section><h2>{_text(kind)}</h2><p class="lead">{lead}</p>{table}</section>')
    return out
