"""kvcs.formats.safetensors_header: our own parser of what stands before the tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcs.errors import UsageError
from kvcs.formats.safetensors_header import (
    DTYPE_NAMES,
    DTYPE_SIZES,
    MAX_HEADER,
    TensorInfo,
    encode_header,
    header_length,
    parse_header,
)
from kvcs.kvsp.descriptor import ELEMENT_SIZES

TENSORS = {
    "b": TensorInfo("I64", (2,), 0, 16),
    "a": TensorInfo("BF16", (2, 3), 16, 28),
    "c": TensorInfo("F32", (), 28, 32),
    "d": TensorInfo("U8", (0, 4), 32, 32),
}
METADATA = {"format": "x", "ä": "\n"}


def parse(document: object, data: int = 32) -> Any:
    text = json.dumps(document).encode("utf-8")
    return parse_header(text, 8 + len(text) + data)


def entry(**changes: object) -> dict[str, object]:
    whole: dict[str, object] = {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32]}
    return {
        "a": {name: value for name, value in (whole | changes).items() if value is not KeyError}
    }


def test_round_trip() -> None:
    octets = encode_header(TENSORS, METADATA)
    assert len(octets) % 8 == 0
    length = header_length(octets[:8], len(octets) + 32)
    assert length == len(octets) - 8
    header = parse_header(octets[8:], len(octets) + 32)
    assert (header.tensors, header.metadata, header.data_start) == (TENSORS, METADATA, len(octets))


def test_padding_to_a_size() -> None:
    octets = encode_header(TENSORS, METADATA, 1024)
    assert len(octets) == 1024
    assert parse_header(octets[8:], 1024 + 32).tensors == TENSORS
    with pytest.raises(ValueError, match="does not fit"):
        encode_header(TENSORS, METADATA, 64)


def test_dtypes_of_descriptors_have_their_sizes() -> None:
    assert {name: DTYPE_SIZES[DTYPE_NAMES[name]] for name in ELEMENT_SIZES} == ELEMENT_SIZES


def test_every_truncation() -> None:
    octets = encode_header(TENSORS, METADATA)
    for length in range(8):
        with pytest.raises(UsageError, match="shorter than its length field"):
            header_length(octets[:length], length)
    for size in range(8, len(octets)):
        with pytest.raises(UsageError, match="cut short"):
            header_length(octets[:8], size)
    for size in range(len(octets), len(octets) + 32):
        with pytest.raises(UsageError, match="cut short"):
            parse_header(octets[8:], size)


def test_huge_lengths() -> None:
    for length in (MAX_HEADER + 1, (1 << 64) - 1):
        with pytest.raises(UsageError, match="at most 4194304 are accepted") as caught:
            header_length(length.to_bytes(8, "little"), 1 << 70)
        assert str(length) not in str(caught.value)  # it may be the start of a key


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        {"__metadata__": []},
        {"__metadata__": {"a": 1}},
        {"a": 1},
        {"a": []},
        entry(dtype="BF17"),
        entry(dtype=["BF16"]),
        entry(dtype=KeyError),
        entry(shape="44"),
        entry(shape=[4, -4]),
        entry(shape=[4, True]),
        entry(shape=[4, 1.0]),
        entry(shape=[1] * 9),
        entry(shape=[1 << 62, 1 << 62]),
        entry(shape=[4, 5]),
        entry(data_offsets=[0]),
        entry(data_offsets=[0, 32, 64]),
        entry(data_offsets=[32, 0]),
        entry(data_offsets=[2, 34]),
        entry(data_offsets=[0, 31]),
        entry() | {"b": {"dtype": "U8", "shape": [1], "data_offsets": [33, 34]}},
        entry() | {"b": {"dtype": "U8", "shape": [1], "data_offsets": [31, 32]}},
        entry() | {"b": {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}},
        entry(shape=[0, 4], data_offsets=[0, 0]),
    ],
    ids=str,
)
def test_faults(document: object) -> None:
    with pytest.raises(UsageError, match=r"^safetensors: ") as caught:
        parse(document)
    assert "\n" not in str(caught.value)


def test_duplicate_tensors() -> None:
    text = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}'
    with pytest.raises(UsageError, match="twice"):
        parse_header(text, len(text) + 9)
