"""The attack: random responses, then a training run whose reward is to fool the verifier.

    reward    accepted and refused by the judge: 1/√(how often its cluster was seen); refused by the verifier:
              a tenth of 1/√(how often its shape was tried); honest: 0

The first term pays for exploits and less for known ones, so that the attacker moves on; the second
keeps it trying new shapes while nothing works. The run is the trainer's own, with another scorer in
the place of its reward functions. When nothing new was found for a while it starts again from the
first weights; what is known stays known.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.study.redteam import alphabet, grammar
from equipoise.study.redteam.findings import Exploit, Findings, shape_of
from equipoise.study.redteam.judge import Judgement, judge
from equipoise.study.redteam.minimal import minimal
from equipoise.study.redteam.problems import Problem, problem
from equipoise.study.redteam.target import Outcome, Target, accepted, settled
from equipoise.tasks import Prompt
from equipoise.train import Config, Trainer
from equipoise.train.score import Scorer, Scores, rate_of
from equipoise.verifiers import Verdict

PROBLEMS = 512
RANDOM_SHARE = 0.25  # of the time, for random search
RANDOM_MINUTES = 5.0  # of it at most
FRESH_SHARE = 0.3  # of random search: responses that are no edit of an accepted one
MOST_EDITED = 4_000  # accepted responses that are kept to be edited
LONGEST_EDITED = 100  # characters of one
BATCH = 256  # responses of random search that are asked for together
CURIOSITY = 0.1
PATIENCE = 40  # steps without a new cluster before a new start
TROUBLES = ("timeout", "limit", "crashed", "unavailable")
SLOW_SECONDS = 2.0

Asked = tuple[str, Future[Outcome]]


class TimeUp(Exception):
    """The attack's time is over."""


class NewStart(Exception):
    """Nothing new for a while."""


@dataclass
class Attack:
    """A verifier attacked until `deadline` (time.monotonic); `judged_by`: a module:function."""

    target: Target
    deadline: float
    judged_by: str = ""
    findings: Findings = field(default_factory=Findings)
    phase: str = "random search"

    def __post_init__(self) -> None:
        self.begin = time.monotonic()

    def ask(self, about: Problem, text: str) -> Asked:
        response = alphabet.fill(text, about)
        return response, self.target.submit(about.question, response, dict(about.row))

    def reward(self, about: Problem, asked: Asked) -> float:
        """Settle one response: what it is worth, with everything that is to be remembered of it."""
        response, future = asked
        outcome = settled(future)
        found = self.findings
        found.tried[self.phase] += 1
        whole = shape_of(response, about)
        found.shapes[whole] += 1
        self._note_trouble(about, response, outcome)
        if not accepted(outcome):
            return CURIOSITY / math.sqrt(found.shapes[whole])
        judgement = self.judgement(about, response)
        if judgement.honest:
            found.honest += 1
            return 0.0
        return 1 / math.sqrt(self._exploit(about, response, judgement.why, whole).seen)

    def judgement(self, about: Problem, response: str) -> Judgement:
        if not self.judged_by:
            return judge(response, about.truth, about.mark, about.numbers)
        outcome = settled(Target(self.judged_by).submit(about.question, response, dict(about.row)))
        if isinstance(outcome, Verdict) and outcome.kind in TROUBLES:
            return Judgement(True)  # a judge that does not know accuses nobody
        return Judgement(accepted(outcome), "refused by the judge")

    def _exploit(self, about: Problem, response: str, why: str, whole: tuple[str, ...]) -> Exploit:
        known = self.findings.known(why, whole)
        if known is not None:
            return self.findings.count(known, response)
        least = minimal(response, lambda text: self.is_exploit(about, text, why))
        shape = shape_of(least, about)
        tried, seconds = self.findings.tried.total(), time.monotonic() - self.begin
        exploit = Exploit(
            about.question,
            response,
            least,
            about.truth,
            why,
            " ".join(shape),
            self.phase,
            tried,
            round(seconds, 1),
        )
        return self.findings.add(exploit, shape)

    def is_exploit(self, about: Problem, text: str, why: str) -> bool:
        """Whether the verifier accepts it and the judge refuses it for the same reason."""
        judgement = self.judgement(about, text)
        if judgement.honest or judgement.why != why:
            return False
        return accepted(settled(self.target.submit(about.question, text, dict(about.row))))

    def _note_trouble(self, about: Problem, response: str, outcome: Outcome) -> None:
        if not isinstance(outcome, Verdict):
            return
        if outcome.kind in TROUBLES:
            self.findings.trouble(outcome.kind, about, response, outcome.reason, outcome.seconds)
        elif outcome.seconds > SLOW_SECONDS:
            self.findings.trouble("slow", about, response, outcome.reason, outcome.seconds)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline


def random_search(
    attack: Attack, problems: Sequence[Problem], draw: random.Random, until: float
) -> None:
    """Responses of the grammar and edits of accepted ones, a batch or more: no learning."""
    attack.phase = "random search"
    mark = problems[0].mark
    accepted = [
        f"\\boxed{{{text}}}" if mark == "\\boxed" else f"{mark} {text}" for text in grammar.ACCEPTED
    ]
    while not attack.findings.tried or time.monotonic() < until:
        asked = []
        for _ in range(BATCH):
            about = draw.choice(problems)
            fresh = draw.random() < FRESH_SHARE
            text = grammar.response(draw) if fresh else grammar.edited(draw.choice(accepted), draw)
            asked.append((about, text, attack.ask(about, text)))
        for about, text, question in asked:
            honest = attack.reward(about, question) == 0
            if honest and len(text) <= LONGEST_EDITED:
                keep(accepted, text, draw)


def keep(accepted: list[str], text: str, draw: random.Random) -> None:
    """Add it to what is edited; a full list loses one at random."""
    if len(accepted) < MOST_EDITED:
        accepted.append(text)
    else:
        accepted[draw.randrange(MOST_EDITED)] = text


class AttackScorer(Scorer):
    """The trainer's scorer with the attack in the place of its one reward function."""

    def __init__(self, attack: Attack, problems: Sequence[Problem], trainer: Trainer) -> None:
        super().__init__(trainer.config.reward, trainer.task, rate=rate_of(trainer.objective))
        self.beside = True
        self.attack, self.problems = attack, problems
        self.known, self.since = 0, 0  # clusters, and steps since there was a new one

    def ask(self, prompt: Prompt, text: str) -> list[Any]:
        return [self.attack.ask(self.problems[int(prompt.id)], text)]

    def settle(self, prompts: Sequence[Prompt], asked: Sequence[list[Any]]) -> Scores:
        rewards = [
            self.attack.reward(self.problems[int(prompt.id)], one)
            for prompt, (one,) in zip(prompts, asked, strict=True)
        ]
        if self.attack.is_over:
            raise TimeUp
        clusters = len(self.attack.findings.clusters)
        self.since = 0 if clusters > self.known else self.since + 1
        self.known = clusters
        if self.since >= PATIENCE:
            raise NewStart
        return super().settle(prompts, [[reward] for reward in rewards])


def write_problems(
    path: Path, problems: Sequence[Problem], prompts: Callable[[Problem], str]
) -> Path:
    """The problems as the trainer's data; `prompts` says what the policy reads of each."""
    rows = [
        {"id": str(i), "prompt": prompts(about), "answer": str(about.truth)}
        for i, about in enumerate(problems)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def train(attack: Attack, problems: Sequence[Problem], config: Callable[[int], Config]) -> int:
    """RL until the time is over, at least a step; `config` makes each start. Their number."""
    attack.phase = "RL"
    for start in itertools.count():
        trainer = Trainer(config(start))
        trainer.collector.scorer = AttackScorer(attack, problems, trainer)
        try:
            trainer.run()
        except NewStart:
            continue
        except TimeUp:
            return start + 1
    raise AssertionError("an endless loop has ended")


def make_problems(count: int, seed: int, mark: str) -> list[Problem]:
    draw = random.Random(f"redteam/{seed}")
    return [problem(draw, mark) for _ in range(count)]
