"""What tests of several commands share."""

import gc
import os
import zlib

import pytest
from hypothesis import HealthCheck, settings

from equipoise import cli
from equipoise.verifiers.code import sandbox
from equipoise.verifiers.workers.process_pool import Pool
from tests.hub_server import hub_asked, hub_nowhere  # noqa: F401

# A loaded machine is no reason to fail.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A property is tried on this part of the examples that its test names, the same ones in every run, so that a change
# fails by its own fault alone. `make test-slow` tries as many as it names, other ones every time.
EXAMPLES = float(os.environ.get("EQUIPOISE_EXAMPLES", "0.3"))
SAME = "EQUIPOISE_EXAMPLES" not in os.environ
FEW = 10

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a name that is nowhere is looked for on the hub, five times

# What is imported while tests are collected stays: looking through it for garbage costs seconds and finds none.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture
def sandboxed():
    """For what runs code, or a gym's scorer, in the sandbox."""
    if (why := sandbox.available()) is not None:
        pytest.skip(why)


def count_workers(file):
    """Under coverage.py: have the verifiers' workers count their lines (counted.py), in files named like this one."""
    plain = Pool.__init__

    def counted(self, target, *, preload=(), environment=None, **options):
        environment = {"EQUIPOISE_COUNTS": file, **(os.environ if environment is None else environment)}
        plain(self, target, preload=(*preload, "tests.counted"), environment=environment, **options)

    Pool.__init__ = counted


if "COVERAGE_RUN" in os.environ:
    count_workers(os.path.abspath(os.environ.get("COVERAGE_FILE", ".coverage")))


def pytest_collection_modifyitems(config, items):
    leave_out_most_that_would_skip(config, items)
    tests = {item.obj for item in items if getattr(getattr(item, "obj", None), "is_hypothesis_test", False)}
    for test in tests:
        named = test._hypothesis_internal_use_settings  # there is no other way to it from outside
        if named.max_examples > FEW:
            fewer = settings(named, max_examples=max(FEW, round(EXAMPLES * named.max_examples)))
            test._hypothesis_internal_use_settings = fewer


def leave_out_most_that_would_skip(config, items):
    """Hundreds of cases need a GPU or Triton: without them one of each test says so."""
    told, left_out = set(), []
    for item in items:
        name = item.nodeid.partition("[")[0]
        if any(mark.args == (True,) for mark in item.iter_markers("skipif")):
            if name in told:
                left_out.append(item)
            told.add(name)
    config.hook.pytest_deselected(items=left_out)
    missing = set(left_out)
    items[:] = [item for item in items if item not in missing]


def pytest_runtest_setup(item):
    if SAME and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.obj._hypothesis_internal_use_seed = zlib.crc32(item.nodeid.encode())  # each parametrisation has its own


@pytest.fixture
def equipoise(capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        capsys.readouterr()
        try:
            cli.main([str(a) for a in arguments])
            code = 0
        except SystemExit as error:
            code = error.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run
