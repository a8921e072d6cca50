"""Framing of control messages."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.wire.framing import MessageReader, frame
from tests.moqt.wire.support import MAX, Vector, of_kind, split_message, survives

MESSAGES = of_kind("message")


def read_all(reader: MessageReader) -> list[tuple[int, bytes]]:
    found = []
    while (message := reader.next()) is not None:
        found.append(message)
    return found


def test_type_length_body() -> None:
    assert frame(0x2F00, b"abc") == bytes.fromhex("af00 0003") + b"abc"
    assert split_message(frame(MAX, b"")) == (MAX, b"")
    assert split_message(frame(1, bytes(65535))) == (1, bytes(65535))
    with pytest.raises(ValueError, match="65536"):
        frame(1, bytes(65536))


def test_nothing_is_pending_before_and_between_messages() -> None:
    reader = MessageReader()
    assert reader.next() is None
    assert not reader.pending
    reader.feed(frame(1, b"ab") + b"\x02")
    assert reader.pending
    assert reader.next() == (1, b"ab")
    assert reader.pending
    assert reader.next() is None
    reader.feed(b"\x00\x00")
    assert reader.next() == (2, b"")
    assert not reader.pending


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: v.name)
def test_every_truncation_needs_more(vector: Vector) -> None:
    for end in range(1, len(vector.octets)):
        reader = MessageReader()
        reader.feed(vector.octets[:end])
        assert reader.next() is None
        assert reader.pending
        reader.feed(vector.octets[end:])
        assert reader.next() == split_message(vector.octets)


@given(
    st.lists(st.tuples(st.integers(0, MAX), st.binary(max_size=30)), max_size=8),
    st.lists(st.integers(1, 40)),
)
def test_messages_are_the_same_however_they_are_cut(
    messages: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(frame(kind, body) for kind, body in messages)
    reader = MessageReader()
    found = []
    for size in (*sizes, len(stream)):
        reader.feed(stream[:size])
        stream = stream[size:]
        found += read_all(reader)
    assert found == messages
    assert not reader.pending


def test_time_is_linear_however_the_input_is_cut() -> None:
    def cost(octets: int, piece: int) -> float:
        stream = frame(1, bytes(60_000)) * (octets // 60_000)
        pieces = [stream[i : i + piece] for i in range(0, len(stream), piece)]
        reader = MessageReader()
        begin = time.perf_counter()
        for data in pieces:
            reader.feed(data)
            read_all(reader)
        return time.perf_counter() - begin

    def growth() -> float:
        return max(cost(240_000, piece) / cost(60_000, piece) for piece in (1, 7))

    # Quadratic time would take sixteen times as long, not four; one calm run of five is enough.
    assert min(growth() for _ in range(5)) < 9


def test_many_messages_in_one_piece() -> None:
    reader = MessageReader()
    reader.feed(frame(7, b"") * 100_000)
    assert len(read_all(reader)) == 100_000


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        reader = MessageReader()
        reader.feed(data[:7])
        found = read_all(reader)
        reader.feed(data[7:])
        assert read_all(reader) or found or reader.pending or not data

    assert survives(parse, [vector.octets for vector in MESSAGES])
