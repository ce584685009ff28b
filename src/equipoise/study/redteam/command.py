"""`equipoise redteam`: the attack from the command line, its terminal, its files and its exit code.

exploits.jsonl   one line for each cluster, to be replayed      troubles.jsonl   inputs it was slow or crashed on
report.html      the page                                       summary.json     counts     rl/   the training runs
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from equipoise.study.redteam import alphabet, grammar, page
from equipoise.study.redteam.attack import (
    PROBLEMS,
    RANDOM_MINUTES,
    RANDOM_SHARE,
    Attack,
    make_problems,
    random_search,
    train,
    write_problems,
)
from equipoise.study.redteam.findings import Exploit, Findings, write_list
from equipoise.study.redteam.problems import Problem
from equipoise.study.redteam.replay import replay
from equipoise.study.redteam.target import Target
from equipoise.train import Config, Interrupted
from equipoise.train.folder import RunError, replace

EMBEDDED = "embedded"


@dataclass(frozen=True)
class RedTeamRequest:
    """What the command line asks for."""

    verifier: str = "math"
    judge: str = ""
    model: str = EMBEDDED
    device: str = "auto"
    minutes: float = 5.0
    seed: int = 0
    out: Path = Path("runs/redteam")
    python: str = ""
    path: str = ""

    @property
    def target(self) -> Target:
        return Target(self.verifier, self.python, self.path)


def redteam(request: RedTeamRequest, console: Console | None = None) -> Findings:
    """Attack for `minutes`, tell of every new cluster, and write the files."""
    console = console or Console(highlight=False, markup=False, soft_wrap=True)
    _import_from_here()
    version = request.target.version()
    if request.judge:
        Target(request.judge).version()
    console.print(
        f"attacking {request.verifier} ({version}) for {request.minutes:g} min", markup=False
    )
    request.out.mkdir(parents=True, exist_ok=True)
    attack = Attack(request.target, time.monotonic() + 60 * request.minutes, request.judge)
    about = {"verifier": request.verifier, "version": version, "mark": request.target.mark}

    def say(exploit: Exploit) -> None:
        """At once, and into the list: the attack may be killed."""
        _tell(console, exploit)
        write_list(request.out / "exploits.jsonl", attack.findings, about)

    attack.findings.say = say
    problems = make_problems(PROBLEMS, request.seed, request.target.mark)
    starts = 0
    try:
        until = attack.begin + 60 * min(RANDOM_SHARE * request.minutes, RANDOM_MINUTES)
        random_search(attack, problems, random.Random(request.seed), until)
        starts = _train(request, attack, problems)
    except Interrupted:
        raise Interrupted(f"stopped before its time; what was found is in {request.out}") from None
    finally:
        summary = _summary(
            attack, {**about, "model": request.model, "seed": request.seed, "starts": starts}
        )
        _write(request.out, attack.findings, about, summary)
        _close(console, request.out, attack.findings, summary)
    crashed = attack.findings.troubled["crashed"]
    if 2 * crashed > summary["tried"]:
        raise RunError(
            f"{request.verifier} crashed on {crashed:,} of {summary['tried']:,} responses, so that finding nothing "
            f"means nothing: repair it, {request.out}/troubles.jsonl has the reasons"
        )
    return attack.findings


def _import_from_here() -> None:
    """A user's module lies where the command is given."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _train(request: RedTeamRequest, attack: Attack, problems: list[Problem]) -> int:
    folder = request.out / "rl"
    folder.mkdir(exist_ok=True)
    model = request.model
    if model == EMBEDDED:
        from equipoise.study.redteam.policy import write

        model = str(write(folder / "attacker", request.seed))
    draw = random.Random(f"hints/{request.seed}")
    prompts = _sign if request.model == EMBEDDED else lambda about: _hinted(about, draw)
    data = write_problems(folder / "problems.jsonl", problems, prompts)
    return train(
        attack, problems, lambda start: settings(request, model, data, _unused(folder), start)
    )


def _sign(about: Problem) -> str:
    """All that the embedded attacker reads: the names of its alphabet hide the numbers."""
    return about.expression.split()[1]


def _hinted(about: Problem, draw: random.Random) -> str:
    """Half of a pretrained model's prompts suggest a way to answer that it would not think of."""
    if draw.random() < 0.5:
        return about.question
    return f"{about.question} Answer in this manner: {alphabet.fill(grammar.response(draw), about)}"


def _unused(folder: Path) -> Path:
    taken = [int(path.name.removeprefix("start-")) for path in folder.glob("start-*")]
    return folder / f"start-{max(taken, default=-1) + 1}"


def settings(request: RedTeamRequest, model: str, data: Path, out: Path, start: int) -> Config:
    """An ordinary configuration of the trainer; the scorer is replaced afterwards."""
    embedded = request.model == EMBEDDED
    config = Config()
    config.model.name, config.model.device = model, request.device
    config.task.name, config.task.dedupe, config.task.chat = str(data), False, not embedded
    config.rollout.prompts, config.rollout.group_size = (16, 16) if embedded else (64, 16)
    config.rollout.max_tokens = 48 if embedded else 96
    config.objective.preset, config.objective.entropy_bonus = "dapo", 0.01 if embedded else 0.001
    config.optim.lr, config.optim.warmup = (2e-3, 5) if embedded else (1e-5, 2)
    config.train.seed, config.train.out = request.seed + 1000 * start, str(out)
    config.train.steps = config.train.checkpoint_every = config.train.max_uninformative = 10**6
    config.eval.every = config.log.rollouts_every = 0
    config.log.terminal = False
    if embedded:
        config.train.threads = 1
    else:
        config.model.dtype = "bfloat16" if _on_gpu(request.device) else "float32"
    return config


def _on_gpu(device: str) -> bool:
    import torch

    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _tell(console: Console, exploit: Exploit) -> None:
    minutes, seconds = divmod(int(exploit.seconds), 60)
    console.print(
        f"{minutes:3d}:{seconds:02d}  {exploit.tried:7,} tried  {exploit.why}: {shown(exploit.minimal)}   "
        f"(truth {exploit.truth}; {exploit.phase})",
        markup=False,
    )


def shown(text: str) -> str:
    """On one line of a terminal, which must not obey what a model wrote."""
    line = text.replace("\n", "⏎")[:160]
    return "".join(c if c.isprintable() else "\ufffd" for c in line)


def _summary(attack: Attack, about: dict[str, Any]) -> dict[str, Any]:
    found = attack.findings
    phases = {
        phase: {"tried": found.tried[phase], "clusters": found.found(phase)}
        for phase in ("random search", "RL")
    }
    return {
        **about,
        "seconds": round(time.monotonic() - attack.begin, 1),
        "tried": found.tried.total(),
        "shapes": len(found.shapes),
        "honest": found.honest,
        "clusters": len(found.clusters),
        "phases": phases,
        "troubles": dict(found.troubled),
    }


def _write(out: Path, findings: Findings, about: dict[str, Any], summary: dict[str, Any]) -> None:
    write_list(out / "exploits.jsonl", findings, about)
    troubles = [{"kind": kind, **one} for kind, kept in findings.troubles.items() for one in kept]
    replace(
        out / "troubles.jsonl",
        "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in troubles),
    )
    replace(out / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    replace(out / "report.html", page.render(findings, summary))


def _close(console: Console, out: Path, findings: Findings, summary: dict[str, Any]) -> None:
    phases, minutes = summary["phases"], summary["seconds"] / 60
    for kind, count in findings.troubled.items():
        first = shown(findings.troubles[kind][0]["response"])
        console.print(
            f"{kind}: {count} of {summary['tried']:,} responses, as {first}", markup=False
        )
    console.print(
        "; ".join(
            f"{name}: {p['clusters']} clusters in {p['tried']:,} responses"
            for name, p in phases.items()
        )
    )
    clusters = len(findings.clusters)
    many = f"{clusters} cluster{'s' * (clusters != 1)} of exploits" if clusters else "no exploit"
    console.print(
        f"{many} in {summary['tried']:,} responses ({summary['shapes']:,} shapes, {summary['honest']:,} honest) "
        f"over {minutes:.1f} minutes"
    )
    if not findings.clusters and not findings.honest:
        console.print(
            "It accepted nothing at all, a right answer neither, so this says nothing about it: the problems are "
            "sums whose answers are integers."
        )
    console.print(f"{out}/exploits.jsonl  troubles.jsonl  summary.json   report: {out}/report.html")


def replayed(path: Path, target: Target) -> list[dict[str, Any]]:
    """Try a list of exploits again, and say which of them still work."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    _import_from_here()
    version = target.version()
    alive, count = replay(path, target)
    for exploit in alive:
        console.print(
            f"{exploit['why']}: {shown(exploit['minimal'])}   (truth {exploit['truth']})",
            markup=False,
        )
    console.print(
        f"{len(alive)} of {count} exploits still work against {target.name} ({version})",
        markup=False,
    )
    return alive
