"""What the terminal shows: a live line per run where there is a terminal, a plain line per step where there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Terminal:
    def __init__(self, name: str, steps: int, done: int, shown: bool) -> None:
        self.console = Console(quiet=not shown, highlight=False, markup=False)
        self.steps, self.begin, self.first = steps, time.monotonic(), done
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
        line = (
            f"reward {metrics['reward/mean']:.3f}  length {metrics['completions/mean_length']:.1f}  "
            f"loss {metrics['policy_loss']:+.4f}  {metrics['tokens_per_s']:,.0f} tokens/s"
        )
        if self.live is not None:
            self.live.update(self.task, completed=step, line=line)
        else:
            left = (time.monotonic() - self.begin) / (step - self.first) * (self.steps - step)
            self.console.print(f"step {step:4d}/{self.steps}  {line}  {left:.0f} s left", soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, style="bold red")

    def once(self, subject: str, text: str) -> None:
        """A notice, the first time its subject comes up."""
        if subject not in self.said:
            self.said.add(subject)
            self.say(text)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
