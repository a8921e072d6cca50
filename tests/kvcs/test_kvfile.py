"""kvcs.formats.kvfile: reading kvcs-kv/1 files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvcs.errors import SourceChanged, UsageError
from kvcs.formats.safetensors import KvFile, KvFileSource, tensor_name
from kvcs.kvsp.descriptor import Descriptor
from kvcs.payload import Component
from tests.support.caches import (
    DATA,
    REAL_CACHE,
    REAL_DESCRIPTOR,
    descriptor,
    descriptor_json,
    raw_safetensors,
    section,
    write_cache,
)

FACTS: dict[str, Any] = json.loads((DATA / "smollm2-135m-128tok.json").read_text("utf-8"))
REAL = Descriptor.from_bytes(REAL_DESCRIPTOR.read_bytes())


def build(**changes: Any) -> dict[str, Any]:
    """The header of a file of 2 layers with 4 tokens, 2 heads of 4, bf16: tensors of 64 octets."""
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "kvcs-kv/1",
            "layout": "thd",
            "dtype": "bf16",
            "block_tokens": "4",
        }
    }
    names = ["layers.0000.k", "layers.0000.v", "layers.0001.k", "layers.0001.v"]
    for at, name in enumerate(names):
        header[name] = {
            "dtype": "BF16",
            "shape": [4, 2, 4],
            "data_offsets": [64 * at, 64 * at + 64],
        }
    for key, value in changes.items():
        header["__metadata__"][key] = value
        if value is None:
            del header["__metadata__"][key]
    return header


def test_the_real_cache() -> None:
    """O5: the recorded cache is what its notes say; its sections are slices of the tensors."""
    octets = REAL_CACHE.read_bytes()
    assert hashlib.sha256(octets).hexdigest() == FACTS["file_sha256"]
    with KvFile(REAL_CACHE) as file:
        assert file.layers == range(30)
        assert (file.tokens, file.blocks, file.block_tokens) == (128, 2, 64)
        assert (file.kv_heads, file.head_dim, file.v_head_dim, file.dtype) == (3, 64, 64, "bf16")
        assert file.token_ids() == FACTS["prefix_ids"]
        assert (file.descriptor, file.first_token, file.is_part) == (None, 0, False)
        assert file.model is not None
        assert file.metadata["format"] == "kvcs-kv/1"
        source = KvFileSource(file, REAL)
        assert (source.layers, source.tokens, source.notice) == (30, 128, None)
        size = REAL.section_size(Component.K)
        info = file.tensors[tensor_name(Component.V, 29)]
        start = int.from_bytes(octets[:8], "little") + 8 + info.begin
        assert source.read_block(Component.V, 29, 1) == octets[start + size : start + 2 * size]


def test_a_written_cache(tmp_path: Path) -> None:
    path = write_cache(tmp_path / "c", descriptor(v_head_dim=2), 12)
    with KvFile(path) as file:
        assert file.descriptor == descriptor(v_head_dim=2)
        assert (file.layers, file.tokens, file.v_head_dim) == (range(3), 12, 2)
        assert file.token_ids() == list(range(12))
        source = KvFileSource(file, descriptor(v_head_dim=2))
        for layer in range(3):
            for block in range(3):
                assert source.read_block(Component.K, layer, block) == section(
                    Component.K, layer, block, 64
                )
                assert source.read_block(Component.V, layer, block) == section(
                    Component.V, layer, block, 32
                )


def test_a_partial_last_block_is_left_out(tmp_path: Path) -> None:
    path = write_cache(tmp_path / "c", descriptor(), 11)
    with KvFile(path) as file:
        source = KvFileSource(file, descriptor())
        assert (source.tokens, file.tokens) == (8, 11)
        assert source.notice is not None
        assert "the last 3 of 11 tokens do not fill a block of 4" in source.notice


def test_sections_outside(tmp_path: Path) -> None:
    with KvFile(write_cache(tmp_path / "c", descriptor(), 8)) as file:
        source = KvFileSource(file, descriptor())
        for block in (-1, 2):
            with pytest.raises(IndexError):
                source.read_block(Component.K, 0, block)
        with pytest.raises(KeyError):
            source.read_block(Component.K, 3, 0)
        with pytest.raises(ValueError, match="64 octets, not 63"):
            source.read_into(Component.K, 0, 0, memoryview(bytearray(63)))


def test_token_ids_are_optional(tmp_path: Path) -> None:
    with KvFile(write_cache(tmp_path / "c", descriptor(), 4, token_ids=False)) as file:
        assert file.token_ids() is None


@pytest.mark.parametrize("change", ["truncate", "touch", "write", "append"])
def test_a_file_that_changes(tmp_path: Path, change: str) -> None:
    """G7: truncated or changed while it is published."""
    path = write_cache(tmp_path / "c", descriptor(), 8)
    with KvFile(path) as file:
        source = KvFileSource(file, descriptor())
        source.check_unchanged()
        if change == "truncate":
            os.truncate(path, path.stat().st_size - 64)
            with pytest.raises(SourceChanged, match="cut short"):
                source.read_block(Component.V, 2, 1)
        elif change == "touch":
            os.utime(path, ns=(1, 1))
        else:
            with path.open("r+b") as other:
                other.seek(0, os.SEEK_END if change == "append" else os.SEEK_SET)
                other.write(b"x")
            os.utime(path, ns=(2, 2))
        with pytest.raises(SourceChanged, match="was changed while it was published"):
            source.check_unchanged()


def test_a_replaced_file_is_still_the_old_one(tmp_path: Path) -> None:
    path = write_cache(tmp_path / "c", descriptor(), 8)
    with KvFile(path) as file:
        write_cache(path, descriptor(model="other"), 8)
        file.check_unchanged()
        assert KvFileSource(file, descriptor()).read_block(Component.K, 0, 1) == section(
            Component.K, 0, 1, 64
        )


def test_the_smallest_file(tmp_path: Path) -> None:
    with KvFile(raw_safetensors(tmp_path / "c", build(), bytes(256))) as file:
        assert (file.layers, file.tokens, file.descriptor, file.model) == (range(2), 4, None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": None},
        {"format": "kvcs-kv/2"},
        {"layout": "htd"},
        {"dtype": None},
        {"dtype": "f16"},
        {"dtype": "f32"},
        {"block_tokens": None},
        {"block_tokens": "0"},
        {"block_tokens": "4.0"},
        {"block_tokens": "04"},
        {"block_tokens": "9" * 400},
        {"first_token": "-1"},
        {"layers": "0-2"},
        {"layers": "x"},
        {"blocks": "1-1"},
        {"descriptor": "{"},
        {"descriptor": json.dumps(descriptor_json())},
        {"descriptor": json.dumps(descriptor_json(layers=2, kv_heads=1))},
        {"descriptor": json.dumps(descriptor_json(layers=2, layout="other"))},
    ],
    ids=str,
)
def test_metadata_faults(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = raw_safetensors(tmp_path / "c", build(**changes), bytes(256))
    with pytest.raises(UsageError) as caught:
        KvFile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def replaced(old: str, new: str | None, **changes: Any) -> dict[str, Any]:
    header = build()
    info = header.pop(old) | changes
    if new is not None:
        header[new] = info
    return header


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (replaced("layers.0001.v", None), 192),
        (replaced("layers.0001.v", "layers.0002.v"), 256),
        (replaced("layers.0001.v", "layers.1.v"), 256),
        (replaced("layers.0001.v", "layers.00001.v"), 256),
        (replaced("layers.0001.v", "weights"), 256),
        (replaced("layers.0001.v", "layers.0001.q"), 256),
        (replaced("layers.0001.v", "layers.0001.v\n"), 256),
        (replaced("layers.0001.v", "layers.0001.v", dtype="F16"), 256),
        (replaced("layers.0001.v", "layers.0001.v", shape=[4, 8]), 256),
        (replaced("layers.0001.v", "layers.0001.v", shape=[2, 4, 4]), 256),
        (replaced("layers.0001.v", "token_ids", dtype="I64", shape=[8]), 256),
        ({"__metadata__": build()["__metadata__"]}, 0),
    ],
    ids=lambda case: list(case)[-1] if isinstance(case, dict) else None,
)
def test_tensor_faults(tmp_path: Path, header: dict[str, Any], size: int) -> None:
    with pytest.raises(UsageError):
        KvFile(raw_safetensors(tmp_path / "c", header, bytes(size)))


def test_layers_with_a_gap_or_late_start(tmp_path: Path) -> None:
    for numbers in ((0, 2), (1, 2)):
        header = {"__metadata__": build()["__metadata__"]}
        for at, name in enumerate(f"layers.{n:04d}.{part}" for n in numbers for part in "kv"):
            offsets = [64 * at, 64 * at + 64]
            header[name] = {"dtype": "BF16", "shape": [4, 2, 4], "data_offsets": offsets}
        with pytest.raises(UsageError, match="layers are missing"):
            KvFile(raw_safetensors(tmp_path / "c", header, bytes(256)))


def test_every_truncation_of_a_file(tmp_path: Path) -> None:
    octets = write_cache(tmp_path / "c", descriptor(), 4).read_bytes()
    path = tmp_path / "cut"
    for length in range(0, len(octets), 7):
        path.write_bytes(octets[:length])
        with pytest.raises(UsageError):
            KvFile(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        KvFile(tmp_path / "none")
    with pytest.raises(UsageError, match="not a regular file"):
        KvFile(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(UsageError, match="not a regular file"):
        KvFile(fifo)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 4},
        {"kv_heads": 1},
        {"head_dim": 8},
        {"v_head_dim": 2},
        {"dtype": "f16"},
        {"block_tokens": 8},
    ],
    ids=str,
)
def test_another_descriptor(tmp_path: Path, changes: dict[str, Any]) -> None:
    """M7: a file that disagrees with the descriptor is refused, as is one of another model."""
    with KvFile(write_cache(tmp_path / "c", descriptor(), 8)) as file:
        file.check_descriptor(descriptor())
        name = next(iter(changes))
        with pytest.raises(UsageError, match=f"disagrees with the descriptor: .*{name}"):
            file.check_descriptor(descriptor(**changes))
        with pytest.raises(UsageError, match="another model"):
            file.check_descriptor(descriptor(revision="sha256:00"))


def test_what_cannot_be_published(tmp_path: Path) -> None:
    with (
        KvFile(write_cache(tmp_path / "c", descriptor(), 3)) as file,
        pytest.raises(UsageError, match="3 tokens are fewer than one block of 4"),
    ):
        KvFileSource(file, descriptor())
    path = raw_safetensors(tmp_path / "p", build(layers="0-1"), bytes(256))
    with KvFile(path) as part, pytest.raises(UsageError, match="a part of a cache"):
        KvFileSource(part, descriptor())
    path = raw_safetensors(tmp_path / "p", build(**{"first_token": "8"}), bytes(256))
    with KvFile(path) as late, pytest.raises(UsageError, match="a part of a cache"):
        KvFileSource(late, descriptor(layers=2))


def test_close_twice(tmp_path: Path) -> None:
    file = KvFile(write_cache(tmp_path / "c", descriptor(), 4))
    file.close()
    file.close()
    with pytest.raises(OSError, match="descriptor"):
        file.token_ids()
