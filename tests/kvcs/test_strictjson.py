"""kvcs.strictjson: bounded JSON with our own errors."""

from __future__ import annotations

import pytest

from kvcs.errors import ManifestError, UsageError
from kvcs.strictjson import loads, shown


def read(data: bytes, *, fractions: bool = False) -> object:
    return loads(data, what="it", max_octets=100_000, error=UsageError, fractions=fractions)


def test_values() -> None:
    text = b'{"a": [1, -2, true, null, "x\\ud83d\\ude00"]}'
    assert read(text) == {"a": [1, -2, True, None, "x\U0001f600"]}
    assert read(b"1.5", fractions=True) == 1.5


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"a":1,"a":2}',
        b'[{"b":{"a":1,"a":1}}]',
        b"1.5",
        b"1e3",
        b"NaN",
        b"[Infinity]",
        b"1" * 21,
        b"1" * 5000,
        b"[" * 50_000,
        b"[]x",
        b'"\x01"',
    ],
)
def test_malformed_text_is_one_line_of_ours(data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        read(data)
    assert str(caught.value).startswith("it: ")
    assert "\n" not in str(caught.value)


def test_fractions_do_not_let_constants_through() -> None:
    with pytest.raises(UsageError, match="NaN is not JSON"):
        read(b"[NaN]", fractions=True)


def test_too_long_is_refused_before_parsing() -> None:
    with pytest.raises(ManifestError, match="at most 4 octets are accepted, it has 5"):
        loads(b"[1,2]", what="it", max_octets=4, error=ManifestError)


def test_too_many_values_are_refused_before_parsing() -> None:
    """An empty list takes some 60 octets of memory for two of text."""

    def read_few(data: bytes) -> object:
        return loads(data, what="it", max_octets=100, error=ManifestError, max_values=4)

    assert read_few(b"[[],1,2]") == [[], 1, 2]
    for many in (b"[[],[],[]]", b"[1,2,3,4,5]", b"[{},{},3]"):
        with pytest.raises(ManifestError, match="at most 4 values are accepted"):
            read_few(many)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "'a\\nb'"),
        (None, "None"),
        (7, "7"),
        (1 << 5000, "a huge integer"),
        ([1], "list"),
        ({}, "dict"),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_shown_is_cut() -> None:
    assert len(shown("\n" * 10_000)) == 60
    assert shown("x" * 100).endswith("...")
