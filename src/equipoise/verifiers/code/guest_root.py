"""What a guest of the sandbox sees: its interpreter, its environment and the files of its root.

Not here: starting it and its limits (sandbox.py), and what it does (guest.py).
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path

FOLDER = "/tmp"  # the only writable place

# The guest's code comes in over stdin: no file and no mount is needed for it. It has built-ins of
# its own, which the response cannot replace by accident.
_BOOT = """
import builtins, marshal, posix
def take(n):
    data = b""
    while len(data) < n:
        chunk = posix.read(0, n - len(data))
        if not chunk: posix._exit(0)
        data += chunk
    return data
code, config = marshal.loads(take(int(take(12))))
guest = {"__name__": "guest", "__builtins__": dict(vars(builtins))}
exec(code, guest)
guest["main"](config)
"""


def _base() -> Path:
    return Path(sys.base_prefix).resolve()


def _executable() -> str:
    # In a virtual environment sys.executable is a link; its prefix is found from the real file.
    return os.path.realpath(sys.executable)


def interpreter() -> list[str]:
    """No site-packages, no current folder on the path, no .pyc files."""
    return [_executable(), "-s", "-S", "-P", "-B", "-c", _BOOT]


def environment() -> dict[str, str]:
    """The whole environment; with the fixed hash seed a set prints alike twice."""
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "HOME": FOLDER, "MALLOC_ARENA_MAX": "2"}
    return {**fixed, "LD_LIBRARY_PATH": str(_base() / "lib")}


@functools.cache
def mounts(packages: tuple[str, ...] = ()) -> list[str]:
    """bubblewrap's arguments that do not depend on the limits."""
    arguments = [
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
    ]
    arguments += ["--hostname", "sandbox"]
    bound: list[Path] = []
    made: list[Path] = []

    def make_parents(path: Path) -> None:
        # bubblewrap itself would make some of them readable for their owner only,
        # whom the guest ceases to be.
        for parent in reversed(path.parents[:-1]):
            if parent not in made:
                arguments.extend(["--perms", "0755", "--dir", str(parent)])
                made.append(parent)

    def bind(path: Path, how: str = "--ro-bind") -> None:
        if path.exists() and not any(path.is_relative_to(folder) for folder in bound):
            make_parents(path)
            arguments.extend([how, str(path), str(path)])
            bound.append(path)

    for name in (
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
        "/lib",
        "/lib32",
        "/lib64",
        "/etc/ld.so.cache",
        "/nix/store",
    ):
        if Path(name).is_symlink():
            arguments += ["--symlink", os.readlink(name), name]
        else:
            bind(Path(name))
    bind(_base() / "lib")
    bind(Path(_executable()))
    for scheme in ("stdlib", "platstdlib"):
        base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
        bind(
            Path(
                sysconfig.get_path(scheme, vars={**base, "installed_base": sys.base_prefix})
            ).resolve()
        )
    own = _base() / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if own.exists() and str(own) not in packages:
        arguments += ["--tmpfs", str(own), "--remount-ro", str(own)]
    for folder in packages:
        bind(Path(folder))
    for name in ("null", "zero", "random", "urandom"):
        bind(Path("/dev", name), "--dev-bind")
    arguments += ["--symlink", f"{FOLDER}/.stdin", "/dev/stdin", "--symlink", FOLDER, "/dev/shm"]
    return [*arguments, "--remount-ro", "/"]
