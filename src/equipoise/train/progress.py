"""What the terminal shows: a live line per run, or a plain line per step without a terminal."""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class _Output(Console):
    """Keeps quiet once its reader has gone (`… | head`), where rich would end the process."""

    reader_gone = False

    def on_broken_pipe(self) -> None:
        self.quiet = self.reader_gone = True
        discard_output()


def reader_gone() -> bool:
    """Whether nobody reads our output any more, as after `| head`."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file, or closed
        return False
    asked = select.poll()
    asked.register(output, 0)  # errors and hang-ups are always reported
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))


def discard_output() -> None:
    """Have what is still written to a closed pipe go nowhere, at Python's end as well."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class Terminal:
    def __init__(self, name: str, steps: int, done: int, shown: bool) -> None:
        self.console = _Output(quiet=not shown, highlight=False, markup=False)
        self.steps = steps
        self.begin = time.monotonic()
        self.first = done
        self.said: set[str] = set()
        self.live: Progress | None = None
        if shown and self.console.is_terminal:
            columns = (
                TextColumn(name),
                BarColumn(24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[line]}"),
                TimeRemainingColumn(),
            )
            self.live = Progress(*columns, console=self.console)
            self.task = self.live.add_task(name, total=steps, completed=done, line="")
            self.live.start()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        line = summary(metrics)
        if self.live is not None:
            self.live.update(self.task, completed=step, line=line)
        else:
            a_step = (time.monotonic() - self.begin) / (step - self.first)
            left = duration(a_step * (self.steps - step))
            self.console.print(f"step {step:4d}/{self.steps}  {line}  {left} left", soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, style="bold red")

    def once(self, subject: str, text: str) -> None:
        """A notice, the first time its subject comes up."""
        if subject not in self.said:
            self.said.add(subject)
            self.say(text)

    @property
    def reader_gone(self) -> bool:
        return self.console.reader_gone

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


def summary(metrics: Mapping[str, float]) -> str:
    """A step in one line, without the policy loss, which on-policy is 0 but for rounding.

    Groups are those that can teach something (some responses are better than others),
    and those all right or all wrong.
    """
    drawn, kept = metrics["groups/drawn"], metrics["groups/kept"]
    informative = round(metrics.get("groups/informative", 0.0) * kept)
    easy = round(metrics["groups/too_easy"] * drawn)
    hard = round(metrics["groups/too_hard"] * drawn)
    parts = [
        f"reward {metrics['reward/mean']:.3f}",
        f"accuracy {metrics.get('accuracy/mean', math.nan):.3f}",
        f"length {metrics['completions/mean_length']:.1f}",
        f"entropy {metrics.get('entropy', math.nan):.2f}",
        f"gradient {metrics.get('grad_norm', math.nan):.2g}",
        f"groups {informative} informative, {easy} too easy, {hard} too hard",
        f"{metrics['tokens_per_s']:,.0f} tokens/s",
    ]
    return "  ".join(part for part in parts if " nan" not in part)


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 05 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
