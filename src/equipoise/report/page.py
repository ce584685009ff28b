"""One self-contained HTML page: data as JSON, a style sheet and a script; no network.

Whatever a response says stays text: the JSON is ASCII with every "<" escaped, the script sets text
only by textContent, and the page's own content security policy lets nothing run but that script, by
its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.files import whole
from equipoise.report import runs as run_folders
from equipoise.report import samples
from equipoise.report.over_seeds import over_seeds
from equipoise.report.panels import Panel, panels, points
from equipoise.report.runs import MOST_APART, ReportError, Run, TooManyRuns
from equipoise.report.series import buckets
from equipoise.report.variants import VariantRuns, aligned, variants
from equipoise.toml import toml

PARTS = Path(__file__).parent / "page"
SCRIPTS = (
    "text.js",
    "look.js",
    "lines.js",
    "peaks.js",
    "figure.js",
    "samples.js",
    "settings.js",
    "page.js",
)


def write(runs: Sequence[str | Path], out: str | Path) -> Path:
    """The report on these run directories (or folders of them) as one file; whole or not at all."""
    paths, out = run_folders.find(runs), Path(out)
    content = data(paths)
    text = render(embed(content), content["title"], live=False)
    if out.is_dir():
        raise ReportError(f"{out}: is a folder; name a file, as {out / 'report.html'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{out}: the report cannot be written: {error.strerror}") from error
    return out


def data(paths: Sequence[Path]) -> dict[str, Any]:
    """Everything the page shows, as plain JSON."""
    runs = [
        run_folders.read(path, name)
        for path, name in zip(paths, run_folders.names(paths), strict=True)
    ]
    found = variants(runs)
    apart = len(found) or len(runs)
    if apart > MOST_APART:
        what = "variants" if found else "runs"
        raise TooManyRuns(
            f"{apart} {what}: a page can tell at most {MOST_APART} apart; give fewer, or several pages"
        )
    n = points(runs)
    looks = _looks(len(runs), found)
    made = list(panels(runs))
    content = {
        "title": _title(runs, found),
        "about": " on ".join(filter(None, (_all(runs, "model.name"), _all(runs, "task.name")))),
        "runs": [
            _run(run, n, samples.BYTES // len(runs), look)
            for run, look in zip(runs, looks, strict=True)
        ],
        "panels": made,
    }
    return {**content, "variants": _variants(runs, found, made)} if found else content


def _title(runs: Sequence[Run], found: Sequence[VariantRuns]) -> str:
    if found:
        if len(found) == 1:
            return f"{len(runs)} seeds of {found[0].name}"
        return f"{len(found)} variants, {len(runs)} runs"
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"


def _looks(runs: int, found: Sequence[VariantRuns]) -> list[int]:
    """The looks of single runs: seeds of a variant share its colour (the number modulo 8)."""
    looks = list(range(runs))
    if len(found) <= 8:
        for i, variant in enumerate(found):
            for k, run in enumerate(variant.runs):
                looks[run] = i + 8 * k
    return looks


def _variants(
    runs: Sequence[Run], found: Sequence[VariantRuns], made: list[Panel]
) -> dict[str, Any]:
    """The same panels over variants; `made` serves where no run has to be cut."""
    shared = aligned(runs, found)
    same = all(a is b for a, b in zip(runs, shared, strict=True))
    n = points(shared)
    shown = []
    for variant in found:
        longest = max((shared[i].steps for i in variant.runs), key=len)
        shown.append(
            {"name": variant.name, "steps": [longest[b[-1]] for b in buckets(len(longest), n)]}
        )
    folded = over_seeds(made if same else list(panels(shared)), shared, found)
    return {"runs": shown, "panels": list(folded)}


def _all(runs: Sequence[Run], option: str) -> str:
    return ", ".join(dict.fromkeys(str(v) for run in runs if (v := run.option(option))))


def _run(run: Run, n: int, budget: int, look: int) -> dict[str, Any]:
    groups, left_out = samples.sample(run, budget)
    ends = [b[-1] for b in buckets(len(run.steps), n)]
    return {
        "name": run.name,
        "path": str(run.path),
        "look": look,
        "steps": [run.steps[i] for i in ends],
        "settings": {
            f"{s}.{k}": toml(v) for s, values in run.config.items() for k, v in values.items()
        },
        "toml": run.toml,
        "command": command(run.path) if run.toml else "",
        "groups": groups,
        "left_out": left_out,
        "notes": run.notes,
    }


def command(path: Path) -> str:
    """What trains the run again, into a new directory: config.toml holds every option."""
    named = path if path.name else path.resolve()  # the name of "." is empty
    again = named.with_name(f"{path.resolve().name}-again")
    return f"equipoise train {shlex.quote(str(path / 'config.toml'))} --train.out {shlex.quote(str(again))}"


def render(embedded: str, title: str, live: bool) -> str:
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    script = "\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";(()=>{{\n{script}\n}})();'
    filled = {
        "title": html.escape(f"{title} · equipoise").encode("utf-8", "replace").decode(),
        "policy": policy(style, script, live),
        "style": style,
        "data": embedded,
        "live": "live" if live else "still",
        "script": script,
    }
    template = (PARTS / "page.html").read_text(encoding="utf-8")
    # in one pass: the data may hold {{script}} too
    return re.sub(r"\{\{(\w+)\}\}", lambda m: filled[m[1]], template)


def embed(content: dict[str, Any]) -> str:
    """JSON that stays data inside a script element: ASCII, and no tag can open in it."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def policy(style: str, script: str, live: bool) -> str:
    def sha(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {sha(script)}; style-src {sha(style)}; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
