"""vi64, the reader, namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import ProtocolViolation
from moqt.wire.primitives import (
    NeedMoreData,
    Reader,
    encode_namespace,
    encode_octets,
    encode_vi64,
)
from tests.moqt.wire.support import MAX, Vector, of_kind, survives

INTEGERS = of_kind("vi64")


@pytest.mark.parametrize("vector", INTEGERS, ids=lambda v: v.name)
def test_vector(vector: Vector) -> None:
    value = vector.decoded["value"]
    reader = Reader(vector.octets)
    assert reader.vi64() == value
    assert reader.remaining == 0
    assert (encode_vi64(value) == vector.octets) is vector.encodes


@pytest.mark.parametrize("vector", INTEGERS, ids=lambda v: v.name)
def test_truncation_needs_more(vector: Vector) -> None:
    for end in range(len(vector.octets)):
        reader = Reader(vector.octets[:end])
        with pytest.raises(NeedMoreData):
            reader.vi64()
        assert reader.position == 0


@given(st.integers(0, MAX))
def test_integers_round_trip(value: int) -> None:
    assert Reader(encode_vi64(value)).vi64() == value


@pytest.mark.parametrize("octets", range(1, 10))
def test_padded_forms_are_read(octets: int) -> None:
    prefix = 0xFF << (9 - octets) & 0xFF if octets < 9 else 0xFF
    assert Reader(bytes((prefix,)) + bytes(octets - 1)).vi64() == 0


@pytest.mark.parametrize("value", [-1, MAX + 1])
def test_integers_out_of_range_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="vi64"):
        encode_vi64(value)


def test_fixed_sizes_and_sub_readers() -> None:
    reader = Reader(memoryview(b"\x01\x02\x03\x04\x05\x06"))
    assert (reader.u8(), reader.u16()) == (1, 0x0203)
    inner = reader.sub(2)
    assert (inner.take(2), inner.remaining, reader.take(1)) == (b"\x04\x05", 0, b"\x06")
    for read in (reader.u8, reader.u16, lambda: reader.sub(1), lambda: reader.take(1)):
        with pytest.raises(NeedMoreData):
            read()


def test_octets_are_bounded_before_they_are_read() -> None:
    assert Reader(encode_octets(b"abc")).octets(3, "thing") == b"abc"
    with pytest.raises(ProtocolViolation, match="thing of 4 octets"):
        Reader(encode_vi64(4)).octets(3, "thing")


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=32))
def test_namespaces_round_trip(fields: list[bytes]) -> None:
    namespace = tuple(fields)
    assert Reader(encode_namespace(namespace)).namespace() == namespace


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        (encode_vi64(33), "33 fields"),
        (b"\x01\x00", "empty"),
        (b"\x01" + encode_vi64(4097), "4097 octets"),
        (b"\x02" + encode_octets(bytes(4096)) + encode_octets(b"x"), "4097 octets"),
    ],
)
def test_namespaces_out_of_bounds_are_violations(octets: bytes, fault: str) -> None:
    with pytest.raises(ProtocolViolation, match=fault):
        Reader(octets).namespace()


@pytest.mark.parametrize("namespace", [(b"x",) * 33, (b"",), (bytes(4097),), (bytes(4096), b"x")])
def test_namespaces_out_of_bounds_are_not_sent(namespace: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="namespace"):
        encode_namespace(namespace)


def test_the_largest_namespace() -> None:
    namespace = (b"x" * 4065, *(b"y",) * 31)
    assert Reader(encode_namespace(namespace)).namespace() == namespace


def test_a_name_counts_together_with_its_namespace() -> None:
    namespace = (bytes(4000),)
    assert Reader(encode_octets(bytes(96))).track_name(namespace) == bytes(96)
    with pytest.raises(ProtocolViolation, match="4096"):
        Reader(encode_octets(bytes(97))).track_name(namespace)


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        reader = Reader(data)
        reader.track_name(reader.namespace())
        reader.vi64()

    corpus = [encode_namespace((b"kvcs-1", bytes(16))) + encode_octets(b"k") + encode_vi64(MAX)]
    assert survives(parse, corpus, NeedMoreData, ProtocolViolation)
