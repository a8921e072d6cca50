"""--quic: which QUIC library carries the sessions."""

from __future__ import annotations

from typing import Any

import click

from kvcs.errors import UsageError
from moqt import QUIC_BACKENDS, Backend, quic_backend
from moqt.errors import LocalError

NAMES = click.Choice(QUIC_BACKENDS)
"""A flag's type: the backends there are, installed or not."""


def quic_option(command: Any) -> Any:
    """--quic NAME."""
    return click.option(
        "--quic", type=NAMES, default=QUIC_BACKENDS[0], show_default=True, help="QUIC library."
    )(command)


def backend(name: str) -> Backend:
    """The backend of --quic. Raises UsageError, which tells how to install it, where it cannot be used."""
    try:
        return quic_backend(name)
    except LocalError as fault:
        raise UsageError(f"quic: {fault}") from None
