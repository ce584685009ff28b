"""A page of plots that compares runs: one self-contained HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.train import RunFolder, read_lines

# Okabe and Ito's colours, which the colour-blind can tell apart; dashes tell the runs apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
WINDOW = 10


def write_plots(path: Path, runs: Mapping[str, RunFolder]) -> Path:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    titles = ("Held-out accuracy, acc@8 (band: 95 % interval)", "Held-out greedy accuracy",
              f"Policy-gradient loss, running mean of {WINDOW} (0: balanced)",
              "Length gap, wrong − right, running mean", "Response length", "Entropy per token")  # fmt: skip
    figure = make_subplots(rows=3, cols=2, subplot_titles=titles, vertical_spacing=0.09, horizontal_spacing=0.07)
    for k, (name, folder) in enumerate(runs.items()):
        line = {"color": COLOURS[k % len(COLOURS)], "dash": DASHES[k % len(DASHES)], "width": 2}
        evaluations, steps = read_lines(folder.eval), read_lines(folder.metrics)
        at, step = [e["step"] for e in evaluations], [s["step"] for s in steps]

        def draw(
            row: int, col: int, x: Sequence[float], y: Sequence[float | None], line=line, name=name, **more: object
        ) -> None:
            style = {
                "name": name,
                "legendgroup": name,
                "line": line,
                "mode": "lines",
                "showlegend": row == col == 1,
                **more,
            }
            figure.add_trace(go.Scatter(x=x, y=y, **style), row=row, col=col)

        low, high = ([e["interval"]["acc@8"][i] for e in evaluations] for i in (0, 1))
        band = go.Scatter(
            x=[*at, *at[::-1]], y=[*high, *low[::-1]], fill="toself", mode="none", opacity=0.12, hoverinfo="skip",
            fillcolor=line["color"], showlegend=False, legendgroup=name,
        )  # fmt: skip
        figure.add_trace(band, row=1, col=1)
        draw(1, 1, at, [e["acc@8"] for e in evaluations], mode="lines+markers")
        draw(1, 2, at, [e["greedy"] for e in evaluations], mode="lines+markers")
        draw(2, 1, step, running_mean([s["policy_loss"] for s in steps]))
        draw(2, 2, step, running_mean([s["bias/length_gap"] for s in steps]))
        draw(3, 1, step, [s["completions/mean_length"] for s in steps])
        draw(3, 2, step, [s.get("entropy") for s in steps])  # none where nothing pulled on a response
    figure.add_hline(y=0, line_width=1, line_color="#777", row=2, col=1)
    figure.update_xaxes(title_text="step")
    figure.update_layout(title="equipoise quickstart", template="plotly_white", height=1000, hovermode="x unified",
                         legend={"orientation": "h", "y": 1.06})  # fmt: skip
    figure.write_html(path, include_plotlyjs=True, full_html=True)
    return path


def running_mean(values: Sequence[float], window: int = WINDOW) -> list[float]:
    return [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]
