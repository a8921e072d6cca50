"""QUIC behind one small interface, base.py. The only package that names a QUIC library."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from moqt.errors import LocalError
from moqt.quic.base import Backend

BACKENDS = ("aioquic", "qh3", "aiopquic")
"""The default first; the others are optional, each an extra of the distribution by the same name."""
NEEDS = {"aiopquic": ", which needs Python 3.12 or newer"}


def backend(name: str = "aioquic") -> Backend:
    """The named backend; its library is imported only now. Raises LocalError for unknown names, and for a
    library that is not installed or not supported."""
    if name not in BACKENDS:
        raise LocalError(f"unknown QUIC backend {name!r}; there is {', '.join(BACKENDS)}")
    try:
        return cast(Backend, import_module(f"moqt.quic.{name}"))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        raise LocalError(
            f"the QUIC backend {name} is not installed: pip install 'kvcs[{name}]'{NEEDS.get(name, '')}"
        ) from None
    except ImportError as error:
        raise LocalError(f"the QUIC backend {name} cannot be used: {error}") from None
