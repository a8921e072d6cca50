"""kvcs.naming: namespaces and track names."""

from __future__ import annotations

import json

import pytest

from kvcs.naming import (
    MANIFEST,
    MANIFEST_COSE,
    DataTrack,
    PublicationName,
    content_prefix,
    from_namespace,
    new_publication_id,
    parse_track_name,
    scope_prefix,
)
from kvcs.payload import Component
from moqt.model import TrackNamespace, namespace_matches
from tests.support.caches import VECTORS

EXAMPLE = bytes.fromhex(
    json.loads((VECTORS / "kvsp-profile-vectors.json").read_text("utf-8"))["seed_example"][
        "namespace"
    ]
)
NAME = PublicationName(
    bytes.fromhex("6d1c6481cd428737da312c089db3832a"),
    EXAMPLE[26:58],
    bytes.fromhex("653275884ca44f8945fd4c902611c467394b73656e64c78d8522648cb75aefc1"),
    bytes.fromhex("0123456789abcdef0123456789abcdef"),
)


def wire(namespace: TrackNamespace) -> bytes:
    """Field count, then each field with its length; all below 64 here."""
    fields = b"".join(bytes([len(part)]) + part for part in namespace)
    return bytes([len(namespace)]) + fields


def test_the_drafts_namespace() -> None:
    """N1, N3: the draft's 108 octets, produced and parsed."""
    assert len(EXAMPLE) == 108
    assert wire(NAME.namespace) == EXAMPLE
    assert NAME.compat_id.hex().startswith("5ed5c2f2")
    assert NAME.compat_id.hex().endswith("ee0f")
    fields: list[bytes] = []
    rest = EXAMPLE[1:]
    while rest:
        fields.append(rest[1 : 1 + rest[0]])
        rest = rest[1 + rest[0] :]
    assert from_namespace(tuple(fields)) == NAME


@pytest.mark.parametrize(
    "namespace",
    [
        (),
        NAME.namespace[:4],
        (*NAME.namespace, b"x"),
        (b"kvcs-2", *NAME),
        (b"KVCS-1", *NAME),
        (b"kvcs-1", NAME.scope_id[:15], *NAME[1:]),
        (b"kvcs-1", NAME.scope_id.hex().encode("ascii"), *NAME[1:]),
        (b"kvcs-1", NAME.compat_id, NAME.scope_id, *NAME[2:]),
        (b"kvcs-1", *NAME[:3], NAME.publication_id + b"x"),
    ],
)
def test_other_namespaces(namespace: TrackNamespace) -> None:
    """N1: exactly five fields of the lengths of the draft, raw octets."""
    assert from_namespace(namespace) is None


def test_publication_ids_are_random() -> None:
    """N2: 16 octets, another at every production."""
    found = {new_publication_id() for _ in range(1000)}
    assert len(found) == 1000
    assert {len(one) for one in found} == {16}


def test_prefixes() -> None:
    """N4: both prefixes cover the publication, by whole fields."""
    scope = scope_prefix(NAME.scope_id)
    content = content_prefix(*NAME[:3])
    assert (len(scope), len(content)) == (2, 4)
    assert namespace_matches(scope, NAME.namespace)
    assert namespace_matches(content, NAME.namespace)
    assert namespace_matches(scope, content)


@pytest.mark.parametrize(
    ("name", "track"),
    [
        (b"k.raw.s0", DataTrack(Component.K, "raw", 0)),
        (b"v.raw.s10", DataTrack(Component.V, "raw", 10)),
        (b"kv.x-zstd-p2.s4294967296", DataTrack(Component.KV, "x-zstd-p2", 1 << 32)),
        (b"k.-.s0", DataTrack(Component.K, "-", 0)),
        (b"k." + b"a" * 32 + b".s7", DataTrack(Component.K, "a" * 32, 7)),
    ],
)
def test_track_names(name: bytes, track: DataTrack) -> None:
    """N5, N6: names follow the ABNF, in both directions."""
    assert parse_track_name(name) == track
    assert track.name == name


@pytest.mark.parametrize(
    "name",
    [
        b"",
        MANIFEST,
        MANIFEST_COSE,
        b"k.raw",
        b"k.raw.0",
        b"k.raw.s",
        b"k.raw.s00",
        b"k.raw.s01",
        b"k.raw.s-1",
        b"k.raw.s+1",
        b"k.raw.s1 ",
        b"k.raw.s1\n",
        b"\nk.raw.s1",
        b"K.raw.s0",
        b"k.RAW.s0",
        b"k.ra_w.s0",
        b"k..s0",
        b"k.raw.x.s0",
        b"q.raw.s0",
        b"kvk.raw.s0",
        b"k." + b"a" * 33 + b".s0",
        b"k.r\xc3\xa4w.s0",
        b"k.raw.s\xd9\xa1",
        b"k.raw.s1" + b"0" * 5000,
    ],
)
def test_other_names(name: bytes) -> None:
    """N5: anything else names no data track."""
    assert parse_track_name(name) is None
