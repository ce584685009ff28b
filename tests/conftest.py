"""What tests of several commands share."""

import os

import pytest
from hypothesis import HealthCheck, settings

from equipoise import cli

# A loaded machine is no reason to fail.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a name that is nowhere is looked for on the hub, five times


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
