"""kvcs.scopekey: hex or octets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcs.errors import UsageError
from kvcs.scopekey import ScopeKey, load_scope_key


@pytest.mark.parametrize(
    ("data", "octets", "form"),
    [
        (b"00" * 16, bytes(16), "hex"),
        (b"aB" * 64 + b"\n", b"\xab" * 64, "hex"),
        (b"ab" * 32 + b"\r\n", b"\xab" * 32, "hex"),
        (bytes(16), bytes(16), "octets"),
        (b"\xff" * 64, b"\xff" * 64, "octets"),
        (b"a" * 31, b"a" * 31, "octets"),
        (b"a" * 33, b"a" * 33, "octets"),
        (b"a" * 33 + b"\n", b"a" * 33 + b"\n", "octets"),
        (b"not hex, sixteen or more\n", b"not hex, sixteen or more\n", "octets"),
        (b"ab" * 16 + b"\n\n", b"ab" * 16 + b"\n\n", "octets"),
        (b"ab" * 16 + b"\r", b"ab" * 16 + b"\r", "octets"),
    ],
)
def test_forms(data: bytes, octets: bytes, form: str) -> None:
    key = ScopeKey.from_bytes(data)
    assert (key.octets, key.form) == (octets, form)


@pytest.mark.parametrize("data", [b"", b"x" * 15, b"x" * 65, b"ab" * 65, b"a" * 129, b"x" * 5000])
def test_wrong_lengths(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="expected 16 to 64 octets, or 32 to 128 hex digits"):
        load_scope_key(path)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"0f" * 32 + b"\n")
    assert load_scope_key(path) == ScopeKey(b"\x0f" * 32, "hex")
    for bad in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="cannot read"):
            load_scope_key(bad)


def test_the_key_is_not_shown() -> None:
    assert repr(ScopeKey(b"secret" * 4, "octets")) == "ScopeKey(form='octets')"
