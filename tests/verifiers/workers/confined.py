"""What a confined worker tries, by name."""

import mmap
import os
import socket
import subprocess


def attempt(what: str, where: str) -> float:
    """1 if it could, 0 if it was refused."""
    try:
        match what:
            case "write":
                with open(where, "w") as file:
                    file.write("x")
            case "tcp":
                socket.create_connection(("127.0.0.1", int(where)), timeout=1).close()
            case "unix":
                socket.socket(socket.AF_UNIX).connect(where)
            case "memory":
                mmap.mmap(-1, 8 << 30).close()
            case "descriptors":
                [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
            case "compute":
                sum(range(1000))
            case "process":
                subprocess.run(["/bin/true"], check=True)
    except (OSError, MemoryError):
        return 0.0
    return 1.0
