r"""Verifiers by name, as f(prompt, response, row), and the version of each.

Each adapter is as thin as it can be: the grader is called the way its own trainer calls it. This
file imports nothing of the project at its top, because it also runs in other interpreters
(`--python`), where the project may be missing.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Grader:
    """`package`: whose version is reported; `mark`: where the prompt asks for the answer."""

    function: str
    package: str
    mark: str = "\\boxed"


def math(prompt: str, response: str, row: Row) -> Any:
    return _grade_math(response, row, rules="strict", prompt=prompt)


def math_lenient(prompt: str, response: str, row: Row) -> Any:
    return _grade_math(response, row, rules="lenient", prompt=prompt)


def _grade_math(response: str, row: Row, **options: str) -> Any:
    from equipoise.verifiers import grade_math

    known = inspect.signature(grade_math).parameters  # an older checkout knows fewer
    return grade_math(response, row["answer"], **{k: v for k, v in options.items() if k in known})


def arithmetic(prompt: str, response: str, row: Row) -> Any:
    from equipoise.tasks.arithmetic import grade

    return grade(response, row["answer"])


def math_verify(prompt: str, response: str, row: Row) -> float:
    """As its README shows."""
    from math_verify import parse, verify

    return float(verify(parse(f"${row['answer']}$"), parse(response)))


def trl_accuracy(prompt: str, response: str, row: Row) -> float:
    from trl.rewards import accuracy_reward

    (reward,) = accuracy_reward(
        [[{"role": "assistant", "content": response}]], [f"${row['answer']}$"]
    )
    return 0.0 if reward is None else float(reward)


def _verl(module: str) -> Callable[[str, str, Row], float]:
    def grade(prompt: str, response: str, row: Row) -> float:
        grader = importlib.import_module(f"verl.utils.reward_score.{module}")
        score = grader.compute_score(response, row["answer"])
        if isinstance(score, Mapping):
            score = score["score"]
        return float(score[0] if isinstance(score, tuple | list) else score)

    return grade


verl_math = _verl("math_reward")
verl_dapo = _verl("math_dapo")
verl_gsm8k = _verl("gsm8k")
verl_prime = _verl("prime_math")
verl_math_verify = _verl("math_verify")


GRADERS = {
    "math": Grader("math", "equipoise"),
    "math-lenient": Grader("math_lenient", "equipoise"),
    "arithmetic": Grader("arithmetic", "equipoise", "#"),
    "math-verify": Grader("math_verify", "math-verify"),
    "trl": Grader("trl_accuracy", "trl"),
    "verl-math": Grader("verl_math", "verl"),
    "verl-dapo": Grader("verl_dapo", "verl", "Answer:"),
    "verl-gsm8k": Grader("verl_gsm8k", "verl", "####"),
    "verl-prime": Grader("verl_prime", "verl"),
    "verl-math-verify": Grader("verl_math_verify", "verl"),
}


def path_of(name: str) -> str:
    """`module:function` of a verifier by its name, which may be one already."""
    return f"{__name__}:{GRADERS[name].function}" if name in GRADERS else name


def resolve(name: str) -> Callable[[str, str, Row], Any]:
    if name in GRADERS:
        return globals()[GRADERS[name].function]  # type: ignore[no-any-return]
    source, _, function = name.rpartition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look where it was started
    if source.endswith(".py"):
        sys.path.append(str(Path(source).resolve().parent))
        source = Path(source).stem
    return getattr(importlib.import_module(source), function)  # type: ignore[no-any-return]


def version(name: str) -> str:
    """What is attacked: the package's version and commit, or the hash of a user's file."""
    if name not in GRADERS:
        file = inspect.getsourcefile(resolve(name))
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] if file else "unknown"
        return f"{Path(file or name).name} sha256 {digest}"
    package = GRADERS[name].package
    if package == "equipoise":
        module = importlib.import_module("equipoise")
        commit = _commit(Path(str(module.__file__)).parent)
        return f"equipoise {module.__version__}{commit and f' at {commit}'}"
    return f"{package} {importlib.metadata.version(package)}"


def _commit(folder: Path) -> str:
    """The checkout's commit, with a + where files differ from it; else empty."""
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def describe(prompt: str, response: str, row: Row) -> Any:
    """A job for a worker: the version of the verifier `row["verifier"]` as the reason of a verdict."""
    from equipoise.verifiers.verdict import Verdict

    return Verdict("correct", version(row["verifier"]))
