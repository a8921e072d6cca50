"""The header of a safetensors file: where each tensor's octets are. Own code, because the library
raises on BF16 and copies.

    u64 little-endian   length of the JSON
    JSON                {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}
    tensors             one after the other, without holes, up to the end of the file
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from kvcs import strictjson
from kvcs.errors import UsageError
from kvcs.strictjson import shown

MAX_HEADER = 4 << 20
"""Octets of JSON. 4096 layers have 8192 tensors of under 200 octets each, and a descriptor beside."""
MAX_DIMENSIONS = 8
_METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")
PREFIX_SIZE = _LENGTH.size

DTYPE_SIZES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
DTYPE_NAMES: Mapping[str, str] = {
    "bf16": "BF16",
    "f16": "F16",
    "f32": "F32",
    "f8e4m3": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
    "u8": "U8",
}
"""A descriptor's `dtype` to the name in the header."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor; `begin` and `end` count from the first octet after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in front of the tensors. `data_start` is the file offset of their first octet."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int


def header_length(prefix: bytes, file_size: int) -> int:
    """Octets of JSON after the first eight; raises `UsageError`."""
    if len(prefix) != PREFIX_SIZE:
        raise UsageError("safetensors: the file is shorter than its length field")
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_HEADER:
        # The number is not told: it is the start of whatever file was named by mistake, a key perhaps.
        raise UsageError(
            f"safetensors: the header is too long: at most {MAX_HEADER} are accepted; see that it is a cache file"
        )
    if PREFIX_SIZE + length > file_size:
        raise UsageError(
            f"safetensors: a header of {length} octets in a file of {file_size}; it is cut short"
        )
    return length


def parse_header(text: bytes, file_size: int) -> Header:
    """The header whose JSON is `text` in a file of `file_size` octets; raises `UsageError`."""
    document = strictjson.loads(
        text, what="safetensors: header", max_octets=MAX_HEADER, error=UsageError
    )
    if not isinstance(document, dict):
        raise UsageError("safetensors: header: expected an object")
    data_start = PREFIX_SIZE + len(text)
    metadata = _parse_metadata(document.pop(_METADATA, {}))
    tensors = {name: _parse_tensor(name, entry) for name, entry in document.items()}
    position = 0
    for name, info in sorted(tensors.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if info.begin != position:
            raise UsageError(
                f"safetensors: tensor {shown(name)} begins at {info.begin}, expected {position}"
            )
        position = info.end
    if data_start + position != file_size:
        raise UsageError(
            f"safetensors: the header describes {data_start + position} octets, "
            f"the file has {file_size}; it is cut short or not what it says"
        )
    return Header(tensors, metadata, data_start)


def _parse_metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise UsageError("safetensors: __metadata__ must be an object of strings")
    return value


def _parse_tensor(name: str, entry: object) -> TensorInfo:
    where = f"safetensors: tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: expected an object")
    dtype = entry.get("dtype")
    shape = _naturals(entry.get("shape"), MAX_DIMENSIONS)
    offsets = _naturals(entry.get("data_offsets"), 2)
    if not isinstance(dtype, str) or dtype not in DTYPE_SIZES:
        raise UsageError(f"{where}: dtype {shown(dtype)} is unknown")
    if shape is None or offsets is None or len(offsets) != 2:
        raise UsageError(f"{where}: shape and data_offsets must be arrays of integers from 0")
    begin, end = offsets
    if end - begin != prod(shape) * DTYPE_SIZES[dtype]:
        raise UsageError(
            f"{where}: {end - begin} octets are not those of its shape and dtype {dtype}"
        )
    return TensorInfo(dtype, shape, begin, end)


def _naturals(value: object, most: int) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > most:
        return None
    if any(type(item) is not int or item < 0 for item in value):
        return None
    return tuple(value)


def encode_header(
    tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str], size: int | None = None
) -> bytes:
    """Length and JSON, padded with spaces to a multiple of eight octets, or to `size` in all.

    Tensors lie in the file in the order of `tensors`, in which their offsets ascend.
    """
    document: dict[str, object] = {_METADATA: dict(metadata)}
    for name, info in tensors.items():
        document[name] = {
            "dtype": info.dtype,
            "shape": list(info.shape),
            "data_offsets": [info.begin, info.end],
        }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    length = len(text) + -len(text) % 8 if size is None else size - PREFIX_SIZE
    if length < len(text):
        raise ValueError(f"a header of {len(text)} octets does not fit in {length}")
    return _LENGTH.pack(length) + text.ljust(length)
