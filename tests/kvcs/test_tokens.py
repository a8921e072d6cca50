"""kvcs.formats.tokens: token lists and descriptors from files."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvcs.errors import UsageError
from kvcs.formats.tokens import load_descriptor, load_tokens, parse_npy
from kvcs.kvsp.descriptor import Descriptor
from tests.support.caches import (
    DATA,
    REAL_CACHE,
    REAL_DESCRIPTOR,
    descriptor,
    raw_safetensors,
    write_cache,
)

FACTS: dict[str, Any] = json.loads((DATA / "smollm2-135m-128tok.json").read_text("utf-8"))


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def saved(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "tokens"
    path.write_bytes(data)
    return path


def test_json(tmp_path: Path) -> None:
    assert load_tokens(saved(tmp_path, b" [0, 1,\n4294967295]\n")) == [0, 1, 4294967295]


@pytest.mark.parametrize("dtype", ["<i4", "<u4", "<i8", "<u8", "<u2", "u1", "i1"])
def test_npy(tmp_path: Path, dtype: str) -> None:
    assert load_tokens(saved(tmp_path, npy(np.arange(5, dtype=dtype)))) == [0, 1, 2, 3, 4]


def test_other_versions_of_npy() -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }\n"
    value = (7).to_bytes(8, "little")
    for version, width in ((1, 2), (2, 4), (3, 4)):
        length = len(header).to_bytes(width, "little")
        assert parse_npy(b"\x93NUMPY" + bytes([version, 0]) + length + header + value) == [7]


def test_a_kv_cache_file(tmp_path: Path) -> None:
    assert load_tokens(REAL_CACHE) == FACTS["prefix_ids"]
    path = write_cache(tmp_path / "c", descriptor(), 4, token_ids=False)
    with pytest.raises(UsageError, match="has no token_ids"):
        load_tokens(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"7",
        b"[1, 2.0]",
        b"[1, null]",
        b"[true]",
        b'["1"]',
        b"[-1]",
        b"[4294967296]",
        b"[" + b"9" * 5000 + b"]",
        b"[" * 9000,
        b"\xff\xfe",
        npy(np.zeros(0, "<i8")),
        npy(np.zeros((2, 2), "<i8")),
        npy(np.zeros(2, ">i8")),
        npy(np.zeros(2, "<f8")),
        npy(np.zeros(2, "?")),
        npy(np.array(-1)),
        npy(np.array([-1])),
        npy(np.array([1 << 32])),
        npy(np.array([1, 2]))[:-1],
        npy(np.array([1, 2])) + b"x",
        npy(np.array([1, 2])).replace(b"(2,)", b"(9,)"),
        b"\x93NUMPY",
        b"\x93NUMPY\x04\x00\x00\x00",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    ],
)
def test_unusable_lists(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        load_tokens(saved(tmp_path, data))
    assert "\n" not in str(caught.value)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="array of integers"):
        load_tokens(saved(tmp_path, stream.getvalue()))


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(UsageError, match="is not a file"):
            load_tokens(path)
    with pytest.raises(UsageError, match="cannot read"):
        load_descriptor(tmp_path / "none")


def test_descriptor(tmp_path: Path) -> None:
    real = load_descriptor(REAL_DESCRIPTOR)
    assert real == Descriptor.from_bytes(REAL_DESCRIPTOR.read_bytes())
    assert load_descriptor(write_cache(tmp_path / "c", descriptor(), 4)) == descriptor()
    with pytest.raises(UsageError, match="carries none"):
        load_descriptor(REAL_CACHE)
    with pytest.raises(UsageError, match="expected a JSON object"):
        load_descriptor(saved(tmp_path, b"[]"))


def test_a_broken_cache_file(tmp_path: Path) -> None:
    path = raw_safetensors(tmp_path / "c", {}, b"")
    with pytest.raises(UsageError, match="not a KV cache file"):
        load_tokens(path)
