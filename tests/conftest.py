"""What tests of several commands share."""

import pytest

from equipoise import cli


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
