"""The verifier under attack, called in worker processes that a hang cannot outlive.

`--path DIR` puts a folder first on its import path (another checkout), `--python FILE` runs it in
another environment. Both make a child of the worker (elsewhere.py), which is killed with it.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from equipoise.config import ConfigError
from equipoise.study.redteam import elsewhere, graders
from equipoise.verifiers import Verdict
from equipoise.verifiers.workers import functions

ACCEPTED = 0.5  # a score from here on is a pass
SECONDS = 10.0  # deadline of one call
Outcome = Verdict | float


@dataclass(frozen=True)
class Target:
    """`name` as in graders.GRADERS or module:function; `python`, `path`: empty for this process."""

    name: str
    python: str = ""
    path: str = ""
    workers: int = 0

    @property
    def mark(self) -> str:
        """Where prompts for this verifier ask for the answer."""
        return graders.GRADERS[self.name].mark if self.name in graders.GRADERS else "\\boxed"

    @property
    def is_elsewhere(self) -> bool:
        return bool(self.python or self.path)

    @functools.cached_property
    def takes_groups(self) -> bool:
        """Whether it is a user's function of TRL's form; refused where it has neither form."""
        if self.is_elsewhere or self.name in graders.GRADERS:
            return False
        try:
            return functions.check(self.name, self.workers)
        except functions.FunctionError as error:
            raise ConfigError(str(error)) from error

    def submit(
        self, prompt: str, response: str, row: dict[str, Any], seconds: float = SECONDS
    ) -> Future[Any]:
        """What `settled` reads."""
        if self.takes_groups:
            columns = {name: [value] for name, value in row.items()}
            return functions.submit_group(
                self.name, [prompt], [response], columns, seconds=seconds, workers=self.workers
            )
        function = graders.path_of(self.name)
        if self.is_elsewhere:
            function = f"{elsewhere.__name__}:ask"
            row = {"row": row, "target": [self.name, self.python, self.path], "seconds": seconds}
            seconds += functions.IMPORT_SECONDS
        return functions.submit(
            function, prompt, response, row, seconds=seconds, workers=self.workers
        )

    def version(self) -> str:
        """Starts the verifier; a sentence for the user where that fails."""
        if ":" not in self.name and self.name not in graders.GRADERS:
            raise ConfigError(
                f'--verifier "{self.name}" is not known: {", ".join(graders.GRADERS)}, or your own module:function'
            )
        _ = self.takes_groups
        function = (
            f"{elsewhere.__name__}:version" if self.is_elsewhere else f"{graders.__name__}:describe"
        )
        row = {"verifier": self.name, "target": [self.name, self.python, self.path]}
        started = functions.submit(
            function, "", "", row, seconds=functions.IMPORT_SECONDS, workers=self.workers
        )
        outcome = started.result()
        if not isinstance(outcome, Verdict) or outcome.kind != "correct":
            if isinstance(outcome, Verdict):
                why = outcome.reason.strip().splitlines()[-1]
            else:
                why = f"it gave {outcome}"
            raise ConfigError(f"--verifier {self.name} cannot be used: {why}")
        return outcome.reason


def settled(call: Future[Any]) -> Outcome:
    """The outcome of a call of either form."""
    reply = call.result()
    return reply[0] if isinstance(reply, list) else reply  # type: ignore[no-any-return]


def accepted(outcome: Outcome) -> bool:
    if not isinstance(outcome, Verdict):
        return outcome >= ACCEPTED
    return outcome.kind == "correct" and (outcome.value is None or outcome.value >= ACCEPTED)
