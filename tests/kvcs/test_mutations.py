"""Seeded random mutations of everything that is parsed: only errors of ours may come out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import cbor2
import pytest

from kvcs.cose import algorithm_and_key_id, open_sign1
from kvcs.errors import ManifestError, UsageError
from kvcs.formats.safetensors import KvFile
from kvcs.formats.tokens import parse_json, parse_npy
from kvcs.kvsp.descriptor import Descriptor
from kvcs.manifest import Manifest
from kvcs.naming import parse_track_name
from kvcs.payload import Discard, PayloadHeader
from tests.kvcs.test_cose import sign1
from tests.kvcs.test_manifest import manifest, segment
from tests.kvcs.test_payload import EXAMPLE, EXPECTED
from tests.kvcs.test_tokens import npy
from tests.support.caches import descriptor, descriptor_json, write_cache
from tests.support.mutable import JSON_PIECES, SAFETENSORS, compact, parse_safetensors

MUTATIONS = 50_000
SEED = int(os.environ.get("KVCS_TEST_SEED", "22"))

Parser = Callable[[bytes], object]


def mutate(random_: random.Random, octets: bytes) -> bytes:
    """One to four small changes: bits, octets, cuts, repeats and pieces of JSON."""
    changed = bytearray(octets)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(changed) + 1)
        end = min(len(changed), at + random_.randint(1, 8))
        match random_.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random_.randrange(8)
            case 1 if at < len(changed):
                changed[at] = random_.choice((0, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = changed[at:end]
            case 4:
                changed[at:end] = random_.choice(JSON_PIECES)
            case _:
                changed[at:at] = random_.randbytes(random_.randint(1, 4))
    return bytes(changed)


def payload(octets: bytes) -> None:
    header = PayloadHeader.decode(octets[:68])
    EXPECTED.check(header, 0, 1, len(octets))


def track_name(octets: bytes) -> None:
    track = parse_track_name(octets)
    assert track is None or track.name == octets


SMALL = manifest(segment(0, 0, 1, groups=1)).encode()

CASES: dict[str, tuple[Parser, bytes, type[Exception]]] = {
    "payload header": (payload, EXAMPLE + bytes(16), Discard),
    "manifest": (Manifest.parse, SMALL, ManifestError),
    "manifest.cose": (
        lambda octets: algorithm_and_key_id(open_sign1(octets)),
        sign1(cbor2.dumps({1: -7, 4: b"k"}), {9: [1.5]}, b"{}", bytes(64)),
        ManifestError,
    ),
    "safetensors header": (parse_safetensors, SAFETENSORS, UsageError),
    "descriptor": (
        Descriptor.from_bytes,
        compact(descriptor_json(rope={"a": [1, "\u00e4"]})),
        UsageError,
    ),
    "track name": (track_name, b"kv.x-zstd-p2.s123", Discard),
    "tokens": (parse_json, b"[0, 1, 4294967295, 17]", UsageError),
    "tokens, npy": (parse_npy, npy([1, 2, 3]), UsageError),
}


@pytest.mark.parametrize("name", CASES)
def test_only_our_own_errors(name: str) -> None:
    """M2, N5, O2: 50,000 mutations of each; what is accepted was whole, all else is refused by us."""
    parse, octets, ours = CASES[name]
    parse(octets)
    random_ = random.Random(f"{SEED} {name}")
    refused = 0
    for number in range(MUTATIONS):
        changed = mutate(random_, octets)
        try:
            parse(changed)
        except ours:
            refused += 1
        except BaseException:
            print(f"seed {SEED}, {name}, mutation {number}: {changed.hex()}")  # noqa: T201
            raise
    print(f"seed {SEED}: {refused} of {MUTATIONS} refused")  # noqa: T201
    assert name == "track name" or refused > MUTATIONS // 4


def test_kv_cache_files(tmp_path: Path) -> None:
    """O5: 50,000 mutations of a whole kvcs-kv/1 file, its header mostly."""
    octets = write_cache(tmp_path / "whole", descriptor(layers=1), 4).read_bytes()
    path = tmp_path / "mutated"
    random_ = random.Random(f"{SEED} file")
    refused = 0
    for number in range(MUTATIONS):
        changed = mutate(random_, octets)
        path.write_bytes(changed)
        try:
            with KvFile(path) as file:
                file.token_ids()
        except UsageError:
            refused += 1
        except BaseException:
            print(f"seed {SEED}, file, mutation {number}: {changed.hex()}")  # noqa: T201
            raise
    print(f"seed {SEED}: {refused} of {MUTATIONS} refused")  # noqa: T201
    assert refused > MUTATIONS // 4
