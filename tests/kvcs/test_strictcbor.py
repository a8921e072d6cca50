"""kvcs.strictcbor: what cbor2 would let pass, and what would cost too much."""

from __future__ import annotations

import math

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.errors import ManifestError, UsageError
from kvcs.strictcbor import MAX_DEPTH, MAX_ITEMS, loads


def read(data: bytes, tags: tuple[int, ...] = ()) -> object:
    return loads(data, what="it", max_octets=1 << 20, error=UsageError, tags=tags)


LABELS = st.integers(-(1 << 64), (1 << 64) - 1) | st.text(max_size=4) | st.binary(max_size=4)
ITEMS = st.recursive(
    LABELS | st.booleans() | st.none() | st.floats(allow_nan=False),
    lambda items: st.lists(items, max_size=4) | st.dictionaries(LABELS, items, max_size=4),
    max_leaves=20,
)


@given(ITEMS)
def test_whatever_is_plain_comes_back(item: object) -> None:
    """M8: every truncation is refused, and so is one octet more."""
    data = cbor2.dumps(item)
    assert read(data) == item
    for end in range(len(data)):
        with pytest.raises(UsageError):
            read(data[:end])
    with pytest.raises(UsageError, match="octets follow"):
        read(data + b"\0")


@given(st.binary(max_size=40))
def test_anything_else_is_refused_in_our_words(data: bytes) -> None:
    """M8: nothing but our own error comes out."""
    try:
        item = read(data, tags=(18,))
    except UsageError:
        return
    assert item == cbor2.loads(data) or (isinstance(item, float) and math.isnan(item))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("9fff", "indefinite"),
        ("5f40ff", "indefinite"),
        ("bfff", "indefinite"),
        ("ff", "indefinite"),
        ("1c", "not CBOR"),
        ("f800", "not CBOR"),
        ("61ff", "not CBOR"),
        ("c074323031332d30332d32315432303a30343a30305a", "tag"),
        ("d82301", "tag"),
        ("82d2800a", "tag"),
        ("d2d280", "tag"),
        ("a201020103", "label twice"),
        ("a20102180103", "label twice"),
        ("a2616101616102", "label twice"),
        ("81a201020103", "label twice"),
        ("a1f501", "label that is neither"),
        ("a1f93c0001", "label that is neither"),
        ("a18001", "label that is neither"),
        ("9b7fffffffffffffff", "cut short"),
        ("bb7fffffffffffffff", "cut short"),
        ("5b7fffffffffffffff", "cut short"),
        ("", "cut short"),
        ("81" * (MAX_DEPTH + 1) + "00", "too deep"),
        ("990fff" + "00" * MAX_ITEMS, "octets follow"),
        ("991000" + "00" * MAX_ITEMS, "too many"),
    ],
)
def test_what_is_refused(data: str, fault: str) -> None:
    """M8: indefinite lengths, tags, equal labels in whatever encoding, and what promises more than comes."""
    with pytest.raises(UsageError, match=fault):
        read(bytes.fromhex(data), tags=(18,))


def test_labels_of_different_kinds_are_different() -> None:
    assert read(bytes.fromhex("a3010241010361310a")) == {1: 2, b"\x01": 3, "1": 10}


def test_the_outermost_tag() -> None:
    """M8: only one that the caller names."""
    found = read(bytes.fromhex("d280"), tags=(18,))
    assert isinstance(found, cbor2.CBORTag)
    assert found.tag == 18
    with pytest.raises(UsageError, match="tag"):
        read(bytes.fromhex("d280"))


def test_the_message() -> None:
    with pytest.raises(ManifestError, match=r"^a key: at most 2 octets are accepted, it has 3!$"):
        loads(b"\x01\x01\x01", what="a key", max_octets=2, error=ManifestError, end="!")
