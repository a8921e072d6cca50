"""Which draft is spoken, and under which name."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

ALPN = "moqt-22"


def _version() -> str:
    try:
        return version("kvcs")
    except PackageNotFoundError:
        return "0"


IMPLEMENTATION = f"kvcs-moqt/{_version()}"
"""MOQT_IMPLEMENTATION of the SETUP."""
