"""Files that users are given: KV caches, descriptors, tokens, keys, settings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from kvcs.cli import keys, subscribe
from kvcs.cli.config import default_map
from kvcs.errors import UsageError
from kvcs.formats.safetensors import KvFile
from kvcs.formats.tokens import load_descriptor, load_tokens, parse_json, parse_npy
from kvcs.keyfiles import load_private_key, load_public_keys
from kvcs.kvsp.descriptor import Descriptor
from kvcs.scopekey import ScopeKey
from tests.fuzz.target import Run, Target
from tests.kvcs.test_tokens import npy
from tests.support.caches import descriptor, descriptor_json, write_cache
from tests.support.keys import COSE
from tests.support.mutable import JSON_PIECES, SAFETENSORS, compact, parse_safetensors

_MEMORY = Path("/dev/shm")  # noqa: S108 - where there is one, no disk is needed
_DIRECTORY = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())


def through_file(use: Callable[[Path], object]) -> Run:
    """`use` with a file that holds the input, in memory where that is possible."""

    def run(data: bytes) -> None:
        path = _DIRECTORY / f"kvcs-fuzz-{os.getpid()}"
        path.write_bytes(data)
        try:
            use(path)
        finally:
            path.unlink()

    return run


def _kv_file(path: Path) -> None:
    with KvFile(path) as file:
        file.token_ids()
        file.check_unchanged()


def descriptor_json_of(data: bytes) -> None:
    """A descriptor; its canonical form is a descriptor, and the same."""
    found = Descriptor.from_bytes(data)
    again = Descriptor.from_bytes(found.canonical())
    assert again.canonical() == found.canonical()


def tokens_json(data: bytes) -> None:
    """Tokens in JSON: integers."""
    assert all(type(token) is int for token in parse_json(data))


def tokens_npy(data: bytes) -> None:
    """Tokens in an array file."""
    assert all(type(token) is int for token in parse_npy(data))


def scope_key(data: bytes) -> None:
    """A scope key; it is nowhere in how it is shown."""
    found = ScopeKey.from_bytes(data)
    assert 16 <= len(found.octets) <= 64
    assert found.octets.hex() not in repr(found)


def _keys(path: Path) -> None:
    for key in load_public_keys([path]):
        assert 1 <= len(key.key_id) <= 64


def _private(path: Path) -> None:
    key = load_private_key(path)
    assert 1 <= len(key.key_id) <= 64


def _settings(path: Path) -> None:
    default_map(path, ["keys", "subscribe"], _load)


def _load(name: str) -> click.Command:
    return {"keys": keys.command, "subscribe": subscribe.command}[name]


def _cache(**changes: object) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = write_cache(Path(name) / "cache", descriptor(layers=1, **changes), 4)
        return path.read_bytes()


def _public_files() -> list[bytes]:
    known = COSE["keys"].values()
    single = [compact(key["jwk"]) for key in known]
    pems = [key["pem_public"].encode("ascii") for key in known]
    cose = [bytes.fromhex(key["cose_key_public"]) for key in known]
    sets = [
        compact({"keys": [key["jwk"] for key in known]}),
        b"".join(pems),
        b"\x82" + b"".join(cose),
    ]
    return [*single, *pems, *cose, *sets]


def _private_files() -> list[bytes]:
    known = COSE["keys"].values()
    return [
        *(compact(key["jwk"] | {"d": key["jwk_private_d"]}) for key in known),
        *(key["pem_private"].encode("ascii") for key in known),
        *(bytes.fromhex(key["cose_key_private"]) for key in known),
    ]


_TENSORS = [
    *JSON_PIECES,
    b'"dtype":"U64"',
    b'"shape":[]',
    b'"data_offsets":[0,0]',
    b'"BF16"',
    b"4294967296",
]
_PEM = [
    b"-----BEGIN PUBLIC KEY-----",
    b"-----END PUBLIC KEY-----",
    b"-----BEGIN X-----",
    b"-----BEGIN X-----" * 200,
]
_KEY_WORDS = [
    *JSON_PIECES,
    *_PEM,
    b'"kty":"EC"',
    b'"crv":"P-256"',
    b'"use":"enc"',
    b"\xa1\1\2",
    b"\x58\x20",
]

TARGETS = (
    Target(
        name="safetensors",
        run=parse_safetensors,
        errors=(UsageError,),
        seeds=[SAFETENSORS, _cache()],
        words=_TENSORS,
    ),
    Target(
        name="kv-file",
        run=through_file(_kv_file),
        errors=(UsageError,),
        seeds=[_cache(), _cache(dtype="f16"), SAFETENSORS],
        words=_TENSORS,
        most=8192,
    ),
    Target(
        name="descriptor",
        run=descriptor_json_of,
        errors=(UsageError,),
        seeds=[compact(descriptor_json()), compact(descriptor_json(rope={"a": [1, "\u00e4"]}))],
        words=[*JSON_PIECES, b'"layers":', b'"dtype":"f32"', b'"kv_heads":'],
    ),
    Target(
        name="tokens-json",
        run=tokens_json,
        errors=(UsageError,),
        seeds=[b"[0, 1, 4294967295, 17]", b"[]", b"[1]"],
        words=JSON_PIECES,
    ),
    Target(
        name="tokens-npy",
        run=tokens_npy,
        errors=(UsageError,),
        seeds=[npy([1, 2, 3]), npy(np.arange(4, dtype=">u4")), npy(np.zeros((2, 2)))],
        words=[b"'<i8'", b"'shape': (", b"True", b"9" * 20, b"\x93NUMPY", b"'|O'"],
    ),
    Target(
        name="token-file",
        run=through_file(load_tokens),
        errors=(UsageError,),
        seeds=[b"[1,2,3]", npy([1, 2, 3]), _cache()],
        words=_TENSORS,
        most=8192,
    ),
    Target(
        name="descriptor-file",
        run=through_file(load_descriptor),
        errors=(UsageError,),
        seeds=[compact(descriptor_json()), _cache()],
        words=_TENSORS,
        most=8192,
    ),
    Target(
        name="public-keys",
        run=through_file(_keys),
        errors=(UsageError,),
        seeds=_public_files(),
        words=_KEY_WORDS,
        most=1 << 17,
    ),
    Target(
        name="private-keys",
        run=through_file(_private),
        errors=(UsageError,),
        seeds=_private_files(),
        words=_KEY_WORDS,
        most=1 << 17,
    ),
    Target(
        name="scope-key",
        run=scope_key,
        errors=(UsageError,),
        seeds=[bytes(range(32)), b"ab" * 32 + b"\n", b"x" * 64],
        most=300,
    ),
    Target(
        name="settings",
        run=through_file(_settings),
        errors=(UsageError,),
        seeds=[
            b'scope_key = "k"\n[subscribe]\ndeadline = 30\nno_probe = true\nca = "x"\n',
            b"[keys]\n",
        ],
        words=[b"[", b"]", b"=", b'"""', b"'", b"1979-05-27", b"inf", b"{}", b".", b"\n[a.b]\n"],
    ),
)
