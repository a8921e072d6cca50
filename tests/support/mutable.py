"""What is worth mutating, and worth putting into it, where files and JSON are parsed."""

from __future__ import annotations

import json

from kvcs.formats.safetensors_header import PREFIX_SIZE, header_length, parse_header

JSON_PIECES = (
    b"null",
    b"true",
    b"-1",
    b"1e9",
    b"9" * 30,
    b'"',
    b"\\ud800",
    b"[",
    b"{",
    b"}",
    b",",
    b"\xff",
)


def compact(value: object) -> bytes:
    """JSON without white space."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


_HEADER = compact(
    {
        "__metadata__": {"format": "kvcs-kv/1"},
        "a": {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 16]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [16, 24]},
    }
)
SAFETENSORS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(24)


def parse_safetensors(octets: bytes) -> None:
    """The header of a safetensors file."""
    length = header_length(octets[:PREFIX_SIZE], len(octets))
    parse_header(octets[PREFIX_SIZE : PREFIX_SIZE + length], len(octets))
