"""QUIC behind one small interface, base.py. The only package that names a QUIC library."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from moqt.errors import LocalError
from moqt.quic.base import Backend

BACKENDS = ("aioquic",)


def backend(name: str = "aioquic") -> Backend:
    """The named backend; its library is imported only now. Raises LocalError for unknown names."""
    if name not in BACKENDS:
        raise LocalError(f"unknown QUIC backend {name!r}; there is {', '.join(BACKENDS)}")
    return cast(Backend, import_module(f"moqt.quic.{name}"))
