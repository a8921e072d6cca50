"""kvcs.payload: header, checks and digests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.payload import (
    HEADER_SIZE,
    Component,
    Discard,
    DiscardReason,
    Expectation,
    PayloadHeader,
    layer_digest,
    size_advice,
)
from tests.support.caches import VECTORS

VECTOR: dict[str, Any] = json.loads((VECTORS / "kvsp-profile-vectors.json").read_text("utf-8"))
EXAMPLE = bytes.fromhex(VECTOR["seed_example"]["header"])
DATA = bytes(range(16))
HEADER = PayloadHeader(
    component=Component.K,
    layer=0,
    block=1,
    token_start=4,
    token_count=4,
    codec=1,
    data_length=16,
    digest=hashlib.sha256(DATA).digest(),
)
EXPECTED = Expectation(Component.K, 1, first_block=0, block_tokens=4, data_length=16)


def reason(
    header: PayloadHeader, group: int = 0, object_id: int = 1, length: int = 84
) -> DiscardReason:
    with pytest.raises(Discard) as caught:
        EXPECTED.check(header, group, object_id, length)
    return caught.value.reason


def test_the_drafts_header() -> None:
    """O1: the draft's example of 68 octets, produced and parsed."""
    assert len(EXAMPLE) == HEADER_SIZE == 68
    assert HEADER.encode() == EXAMPLE
    assert PayloadHeader.decode(EXAMPLE) == HEADER
    EXPECTED.check(HEADER, 0, 1, HEADER_SIZE + 16)


def test_every_field_has_its_place() -> None:
    """O1: fields in network byte order, each distinct; O7: component and codec values."""
    header = PayloadHeader(Component.KV, 2, 3, 5 << 32, 7, 0x0102, 9, b"\xaa" * 32, 0x0304, 0x0506)
    octets = header.encode()
    assert (
        octets.hex()
        == ("4b564f310103030400000002000000030000000500000000000000070102050600000009") + "aa" * 32
    )
    assert PayloadHeader.decode(memoryview(octets)) == header


def test_components() -> None:
    """O7: the registry of components."""
    assert {part.label: part.value for part in Component} == {"k": 1, "v": 2, "kv": 3}


@pytest.mark.parametrize("length", [*range(HEADER_SIZE), HEADER_SIZE + 1])
def test_every_truncation_is_discarded(length: int) -> None:
    """O2: a header that is not whole."""
    with pytest.raises(Discard) as caught:
        PayloadHeader.decode((EXAMPLE + b"x")[:length])
    assert caught.value.reason is DiscardReason.LENGTH


@pytest.mark.parametrize(
    ("at", "octet", "why"),
    [
        (0, 0x4C, DiscardReason.MAGIC),
        (3, 0x32, DiscardReason.MAGIC),
        (4, 0, DiscardReason.VERSION),
        (4, 2, DiscardReason.VERSION),
        (5, 0, DiscardReason.COMPONENT),
        (5, 4, DiscardReason.COMPONENT),
    ],
)
def test_header_faults(at: int, octet: int, why: DiscardReason) -> None:
    """O2: Magic and Version; O7: components outside the registry."""
    changed = bytearray(EXAMPLE)
    changed[at] = octet
    with pytest.raises(Discard) as caught:
        PayloadHeader.decode(changed)
    assert caught.value.reason is why
    assert str(caught.value).startswith(why.value)


def test_flags_and_reserved_are_ignored() -> None:
    """O3: zero when sent, anything accepted."""
    assert HEADER.encode()[6:8] == b"\0\0"
    assert HEADER.encode()[30:32] == b"\0\0"
    changed = bytearray(EXAMPLE)
    changed[6:8] = changed[30:32] = b"\xff\xff"
    EXPECTED.check(PayloadHeader.decode(changed), 0, 1, 84)
    assert EXPECTED.digest_in(changed, 0, 1, 84) == HEADER.digest


@given(
    st.lists(st.tuples(st.integers(0, 67), st.integers(0, 255)), max_size=2),
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(83, 85)),
    st.sampled_from([67, 68, 69]),
)
def test_the_digest_comes_from_a_header_that_fits(
    changes: list[tuple[int, int]], place: tuple[int, int, int], size: int
) -> None:
    """O2, O8: checked at once or field by field, the outcome is the same."""
    head = bytearray(EXAMPLE[:HEADER_SIZE] + b"\0")[:size]
    for at, octet in changes:
        if at < size:
            head[at] = octet

    def field_by_field() -> bytes:
        header = PayloadHeader.decode(head)
        EXPECTED.check(header, *place)
        return header.digest

    outcomes: list[bytes | DiscardReason] = []
    for way in (field_by_field, lambda: EXPECTED.digest_in(memoryview(head), *place)):
        try:
            outcomes.append(way())
        except Discard as discard:
            outcomes.append(discard.reason)
    assert outcomes[0] == outcomes[1]


def test_place_and_length() -> None:
    """O2: Layer = Group ID, Block Index = Object ID, header and Data Length = payload."""
    assert reason(HEADER, group=1) is DiscardReason.LAYER
    assert reason(replace(HEADER, layer=7)) is DiscardReason.LAYER
    assert reason(HEADER, object_id=0) is DiscardReason.BLOCK
    assert reason(HEADER, length=83) is DiscardReason.LENGTH
    assert reason(HEADER, length=85) is DiscardReason.LENGTH


def test_what_the_track_says() -> None:
    """O8: component, codec, token count, token start and the section's size."""
    assert reason(replace(HEADER, component=Component.V)) is DiscardReason.COMPONENT
    assert reason(replace(HEADER, codec=2)) is DiscardReason.CODEC
    assert reason(replace(HEADER, token_count=5)) is DiscardReason.TOKEN_COUNT
    assert reason(replace(HEADER, token_start=0)) is DiscardReason.TOKEN_START
    assert reason(replace(HEADER, data_length=15), length=83) is DiscardReason.LENGTH


def test_later_segments_start_later() -> None:
    """O4: Token Start is the absolute position of the block's first token."""
    later = replace(EXPECTED, first_block=64)
    later.check(replace(HEADER, token_start=260), 0, 1, 84)
    with pytest.raises(Discard, match="token_start: expected 260, got 4"):
        later.check(HEADER, 0, 1, 84)


@pytest.mark.parametrize("case", VECTOR["raw_container"], ids=lambda case: str(case["name"]))
def test_sections_and_layer_digest(case: dict[str, Any]) -> None:
    """O5, O6: raw sections of the vectors, and the layer digest from both Objects or the joint one."""
    count = case["tokens"] * case["kv_heads"] * case["head_dim"]
    k = b"".join(value.to_bytes(2, "little") for value in range(count))
    v = b"".join((0x8000 + value).to_bytes(2, "little") for value in range(count))
    assert (k[:16].hex(), v[:16].hex()) == (case["k_head"], case["v_head"])
    assert hashlib.sha256(k).hexdigest() == case["k_digest"]
    assert hashlib.sha256(v).hexdigest() == case["v_digest"]
    assert layer_digest(k, v).hex() == case["layer_digest"]
    assert hashlib.sha256(k + v).hexdigest() == case["layer_digest"]


@pytest.mark.parametrize(
    ("size", "word"),
    [(1, "more"), (16383, "more"), (16384, None), (1 << 20, None), ((1 << 20) + 1, "fewer")],
)
def test_size_advice(size: int, word: str | None) -> None:
    """X1: a warning outside 16 KiB to 1 MiB, that says which way to go."""
    advice = size_advice(size)
    assert (advice is None) == (word is None)
    assert word is None or f"use {word} tokens per block" in str(advice)
