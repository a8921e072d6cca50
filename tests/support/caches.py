"""Small caches, keys and files that several tests use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcs.formats.safetensors import write_kv_file
from kvcs.kvsp.descriptor import Descriptor
from kvcs.manifest import Manifest
from kvcs.payload import Component

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
VECTORS = ROOT / "vectors"
REAL_CACHE = DATA / "smollm2-135m-128tok.safetensors"
REAL_DESCRIPTOR = DATA / "smollm2-descriptor.json"
SCOPE_KEY = bytes(range(32))


def descriptor_json(**changes: object) -> dict[str, object]:
    """A small descriptor's JSON object, with `changes`."""
    members: dict[str, object] = {
        "profile": "kvsp-profile-1",
        "model": "test/model",
        "revision": "sha256:" + "ab" * 32,
        "tokenizer": "sha256:" + "cd" * 32,
        "layers": 3,
        "kv_heads": 2,
        "head_dim": 4,
        "dtype": "bf16",
        "block_tokens": 4,
        "layout": "thd",
    }
    return members | changes


def descriptor(**changes: object) -> Descriptor:
    """A small descriptor: 3 layers, 2 heads of 4, bf16, blocks of 4 tokens; sections of 64 octets."""
    return Descriptor.from_json(descriptor_json(**changes))


def section(component: Component, layer: int, block: int, size: int) -> bytes:
    """Octets that differ at every place of a cache."""
    seed = bytes([component, layer % 256, block % 256])
    return (seed + bytes((7 * at + layer) % 256 for at in range(size)))[:size]


def tensor(of: Descriptor, component: Component, layer: int, tokens: int) -> bytes:
    """K or V of one layer, made of `section`s; the last may be cut."""
    size = of.section_size(component)
    blocks = range(-(-tokens // of.block_tokens))
    whole = b"".join(section(component, layer, block, size) for block in blocks)
    return whole[: tokens * of.token_size(component)]


def layers(of: Descriptor, tokens: int) -> Iterator[tuple[bytes, bytes]]:
    """K and V of every layer."""
    for layer in range(of.layers):
        yield tensor(of, Component.K, layer, tokens), tensor(of, Component.V, layer, tokens)


def write_cache(path: Path, of: Descriptor, tokens: int, *, token_ids: bool = True) -> Path:
    """A kvcs-kv/1 file of `section`s."""
    ids = list(range(tokens)) if token_ids else None
    write_kv_file(path, of, tokens, layers(of, tokens), token_ids=ids, model="test")
    return path


def raw_safetensors(path: Path, header: object, data: bytes) -> Path:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8")
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def names(directory: Path) -> list[str]:
    """What lies in a directory, temporary files included."""
    return sorted(path.name for path in directory.iterdir())


def fail_to_parse(monkeypatch: pytest.MonkeyPatch, *faults: Exception) -> list[Exception]:
    """The next manifests that are read raise these; all after them are read as they are. Returns what is still to be
    raised, which may grow."""
    failures, parse = list(faults), Manifest.parse

    def failing(octets: bytes, **limits: int) -> Manifest:
        if failures:
            raise failures.pop()
        return parse(octets, **limits)

    monkeypatch.setattr(Manifest, "parse", failing)
    return failures
