"""Where responses run that must be isolated (programs, gym scorers), and within which limits.

`bubblewrap` is the sandbox of this machine. A URL names a runner that `equipoise sandbox serve`
started elsewhere, for a container in which no user namespaces can be had. A configuration chooses
by `sandbox.backend`; the environment variable EQUIPOISE_SANDBOX goes before it, and
EQUIPOISE_SANDBOX_TOKEN holds the runner's token. Nothing falls back: what cannot be isolated is
`unavailable`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from equipoise.verifiers.code import sandbox
from equipoise.verifiers.code.sandbox import Limits

LOCAL = "bubblewrap"
BACKEND_VARIABLE, TOKEN_VARIABLE = "EQUIPOISE_SANDBOX", "EQUIPOISE_SANDBOX_TOKEN"


class BackendError(ValueError):
    """A backend that cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class Settings:
    backend: str = LOCAL
    limits: Limits = field(default_factory=Limits)


_settings = Settings()


def use(backend: str, limits: Limits) -> None:
    """For all verdicts of this process from now on."""
    global _settings
    check(backend)
    _settings = Settings(backend, limits)


def check(backend: str) -> None:
    if backend != LOCAL and not backend.startswith(("http://", "https://")):
        raise BackendError(
            f'sandbox.backend = "{backend}" is no backend: it must be {LOCAL}, or the URL of `equipoise sandbox serve`'
        )


def limits() -> Limits:
    return _settings.limits


def url() -> str | None:
    """The runner's address, or None where this machine isolates for itself."""
    chosen = os.environ.get(BACKEND_VARIABLE) or _settings.backend
    check(chosen)
    return None if chosen == LOCAL else chosen


def token() -> str:
    return os.environ.get(TOKEN_VARIABLE, "")


def problem() -> str | None:
    """None where responses can be isolated, else why not; asks the runner, or tries once."""
    from equipoise.verifiers.code import remote

    address = url()
    return sandbox.available() if address is None else remote.problem(address, token())
