"""A math worker without rights: what it may still do is compute."""

import os
import socket
import sys

import pytest

from equipoise.verifiers.workers.process_pool import Pool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
TARGET, CONFINE = "tests.verifiers.workers.confined:attempt", "equipoise.verifiers.workers.confine:give_up_rights"


@pytest.mark.parametrize("confine", [None, CONFINE])
def test_a_confined_worker_reaches_nothing(tmp_path, confine):
    """Each attempt succeeds without the confinement and fails with it."""
    file = tmp_path / "written"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, Pool(TARGET, workers=1, confine=confine) as p:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "door"))
        tcp.listen()
        unix.listen()
        attempts = {"write": str(file), "tcp": str(tcp.getsockname()[1]), "unix": str(tmp_path / "door")}
        attempts |= {"descriptors": "", "memory": ""}
        could = {what: p.submit(what, where, seconds=20).result() for what, where in attempts.items()}
        assert p.submit("compute", "", seconds=5).result() == 1.0
    assert could == dict.fromkeys(attempts, 0.0 if confine else 1.0)
    assert (file.read_text() if file.exists() else "") == ("" if confine else "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="the limit on processes does not bind root")
def test_a_confined_worker_starts_no_process():
    with Pool(TARGET, workers=1, confine=CONFINE) as p:
        assert p.submit("process", "", seconds=20).result() == 0.0
