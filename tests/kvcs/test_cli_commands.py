"""kvcs.cli: keys, inspect, verify and sample."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvcs.cli.main import main
from kvcs.formats.safetensors import KvFile, KvFileSink
from kvcs.kvsp.descriptor import Descriptor
from kvcs.payload import Component
from tests.support.caches import (
    REAL_CACHE,
    REAL_DESCRIPTOR,
    SCOPE_KEY,
    VECTORS,
    descriptor,
    section,
    write_cache,
)

Out = pytest.CaptureFixture[str]
SAMPLE_SHA256 = "d1340a7b85c0923bbe4e47586d39e9fdf12338678b867ed21b873bac2d333053"
VECTOR: dict[str, Any] = json.loads((VECTORS / "kvsp-profile-vectors.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(capsys: Out, status: int, *args: str) -> str:
    """What a command prints on stdout, after it ended with `status`."""
    assert main(args) == status
    return capsys.readouterr().out


def keys(capsys: Out, *more: str) -> str:
    Path("key").write_text(SCOPE_KEY.hex() + "\n", "utf-8")
    Path("d.json").write_text(json.dumps(VECTOR["descriptor"]), "utf-8")
    Path("t.json").write_text(json.dumps(VECTOR["tokens"]), "utf-8")
    args = ["keys", "--scope-key", "key", "--descriptor", "d.json", "--tokens", "t.json", *more]
    return told(capsys, 0, *args)


def test_keys_json(capsys: Out) -> None:
    """N1, N4, M6: the vectors' identifiers, in lower-case hex."""
    shown = json.loads(keys(capsys, "--json"))
    assert list(shown) == [
        "scope_id",
        "compatibility_id",
        "anchor_key",
        "block_keys",
        "block_keys_sha256",
        "namespace_prefix",
    ]
    assert shown["scope_id"] == VECTOR["scope_id"]
    assert shown["compatibility_id"] == VECTOR["compat_id"]
    assert shown["anchor_key"] == VECTOR["anchor_key_2_blocks"]
    assert shown["block_keys"] == VECTOR["block_keys"]
    assert shown["block_keys_sha256"] == VECTOR["block_keys_sha256"]
    prefix = [b"kvcs-1".hex(), shown["scope_id"], shown["compatibility_id"], shown["anchor_key"]]
    assert shown["namespace_prefix"] == prefix


def test_keys_says_how_the_key_was_read(capsys: Out) -> None:
    text = keys(capsys)
    assert text.startswith("scope key read as hex (32 octets)\n")
    assert VECTOR["block_keys"][1] in text


def test_inspect(capsys: Out) -> None:
    text = told(capsys, 0, "inspect", str(REAL_CACHE))
    assert "layers           0-29\n" in text
    assert "k objects        24576 octets\n" in text
    shown = json.loads(told(capsys, 0, "inspect", "--json", str(REAL_CACHE)))
    assert (shown["tokens"], shown["blocks"], shown["dtype"]) == (128, 2, "bf16")
    assert (shown["token_ids"], shown["descriptor"]) == (True, None)


def test_inspect_warns_of_small_objects(capsys: Out) -> None:
    """X1: a warning outside the advised sizes."""
    write_cache(Path("c"), descriptor(), 7)
    text = told(capsys, 0, "inspect", "c")
    assert "k objects        64 octets; objects of 64 octets: between 16 KiB and 1 MiB" in text
    assert "tokens_left_out  3\n" in text


def test_verify_one(capsys: Out) -> None:
    text = told(capsys, 0, "verify", str(REAL_CACHE))
    assert "whole: 61 tensors, 2950144 octets" in text


def part(path: str, layers: range, blocks: int) -> None:
    with KvFileSink(path, descriptor(), blocks, layers=layers) as sink:
        for component in (Component.K, Component.V):
            for layer in layers:
                for block in range(blocks):
                    data = section(component, layer, block, 64)
                    sink.commit(component, layer, block, data)
        sink.finish(blocks)


def test_verify_two(capsys: Out) -> None:
    write_cache(Path("a"), descriptor(), 16)
    part("b", range(3), 4)
    report = json.loads(told(capsys, 0, "verify", "a", "b", "--json"))
    assert report == {
        "identical": True,
        "tensors": 6,
        "octets": 6 * 256,
        "missing": [],
        "different": [],
    }


@pytest.mark.parametrize(("layers", "blocks"), [(range(1, 3), 4), (range(3), 2), (range(1, 2), 1)])
def test_a_part_is_missing(capsys: Out, layers: range, blocks: int) -> None:
    write_cache(Path("a"), descriptor(), 16)
    part("b", layers, blocks)
    for pair in (("a", "b"), ("b", "a")):
        report = json.loads(told(capsys, 4, "verify", *pair, "--json"))
        assert report["missing"]
        assert all(text.endswith(" in b") for text in report["missing"])
        assert report["different"] == []


def test_one_octet_differs(capsys: Out) -> None:
    write_cache(Path("a"), descriptor(), 16)
    octets = bytearray(Path("a").read_bytes())
    octets[-1] ^= 1
    Path("b").write_bytes(octets)
    assert main(["verify", "a", "b"]) == 5
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "kvcs: a and b differ: layers.0002.v\n"


def test_other_tokens_or_geometry(capsys: Out) -> None:
    write_cache(Path("a"), descriptor(), 16)
    write_cache(Path("b"), descriptor(block_tokens=8), 16)
    report = json.loads(told(capsys, 5, "verify", "a", "b", "--json"))
    assert report["different"] == ["block_tokens 4 and 8"]
    octets = Path("a").read_bytes()
    third = (3).to_bytes(8, "little")
    Path("c").write_bytes(octets.replace(third, (9).to_bytes(8, "little"), 1))
    report = json.loads(told(capsys, 5, "verify", "a", "c", "--json"))
    assert report["different"] == ["token_ids"]


def sample(path: str, *more: str) -> bytes:
    args = ["sample", "--layers", "3", "--kv-heads", "2", "--head-dim", "8", "--tokens", "50"]
    assert main([*args, "--block-tokens", "16", "--output", path, *more]) == 0
    return Path(path).read_bytes()


def test_sample_depends_on_the_seed_only() -> None:
    first = sample("a", "--seed", "7")
    assert sample("b", "--seed", "7") == first
    assert sample("c", "--seed", "8") != first
    # The same numbers everywhere: bit generators are stable between versions of numpy.
    assert hashlib.sha256(first).hexdigest() == SAMPLE_SHA256


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f8e4m3", "f8e5m2", "u8"])
def test_sample_is_a_kv_cache_file(capsys: Out, dtype: str) -> None:
    sample("a", "--dtype", dtype)
    assert "use more tokens per block" in capsys.readouterr().err
    with KvFile("a") as file:
        assert (file.layers, file.tokens, file.dtype) == (range(3), 50, dtype)
        assert file.descriptor == Descriptor.from_json(json.loads(file.metadata["descriptor"]))
        ids = file.token_ids()
        assert ids is not None
        assert len(ids) == 50
        assert all(0 <= token < 32_000 for token in ids)


def test_the_real_descriptor_fits_the_real_cache() -> None:
    with KvFile(REAL_CACHE) as file:
        file.check_descriptor(Descriptor.from_bytes(REAL_DESCRIPTOR.read_bytes()))
