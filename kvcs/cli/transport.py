"""--quic: which QUIC library carries the sessions."""

from __future__ import annotations

import click

from kvcs.errors import UsageError
from moqt import QUIC_BACKENDS, Backend, quic_backend
from moqt.errors import LocalError

NAMES = click.Choice(QUIC_BACKENDS)
"""A flag's type: the backends there are, installed or not."""
EVERY_ADDRESS = frozenset({"aiopquic"})
"""Those that take packets at every address of the machine, whichever they are told to listen at."""
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not listened at


quic_option = click.option(
    "--quic", type=NAMES, default=QUIC_BACKENDS[0], show_default=True, help="QUIC library."
)


def backend(name: str, listen: tuple[str, int] | None = None) -> Backend:
    """The backend of --quic. Raises UsageError, which tells how to install it, where it cannot be used, and
    where it would let in others than `listen`, host and port, says.
    """
    try:
        found = quic_backend(name)
    except LocalError as fault:
        raise UsageError(f"quic: {fault}") from None
    if listen is not None and name in EVERY_ADDRESS and listen[0] not in _WILDCARDS:
        raise UsageError(
            f"quic: {name} listens on every address of the machine, never on {listen[0]} alone; "
            "name another library, or say --listen 0.0.0.0 and who may use it: docs/backends.md"
        )
    return found


def on_loopback(name: str) -> str:
    """The library for a listener that only this machine may reach, where --quic names `name`."""
    return QUIC_BACKENDS[0] if name in EVERY_ADDRESS else name
