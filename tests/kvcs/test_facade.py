"""kvcs: what applications import is there, and comes only when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kvcs


def test_every_name_can_be_had() -> None:
    for name in kvcs.__all__:
        assert getattr(kvcs, name).__module__.startswith("kvcs.")
    assert set(kvcs.__all__) <= set(dir(kvcs))
    assert set(kvcs._MODULES) == set(kvcs.__all__)


def test_other_names_cannot() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Relay'"):
        kvcs.Relay  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", ["Consumer", "Publisher", "Prefill", "KvFile", "UsageError"])
def test_any_name_may_be_the_first(name: str) -> None:
    """No import goes in a circle, wherever one begins."""
    told = subprocess.run(  # noqa: S603
        [
            sys.executable,
            "-c",
            f"from kvcs import {name}; import sys; print('aioquic' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert told.stdout == "False\n"
