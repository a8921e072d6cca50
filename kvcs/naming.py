"""Track Namespaces and Track Names of KVCS (draft: Track Namespace, Track Names)."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import NamedTuple

from kvcs.payload import Component
from moqt.model import TrackNamespace

PROTOCOL = b"kvcs-1"
SCOPE_ID_SIZE = 16
COMPAT_ID_SIZE = 32
BLOCK_KEY_SIZE = 32
PUBLICATION_ID_SIZE = 16

MANIFEST = b"manifest"
MANIFEST_COSE = b"manifest.cose"

_FIELD_SIZES = (
    len(PROTOCOL),
    SCOPE_ID_SIZE,
    COMPAT_ID_SIZE,
    BLOCK_KEY_SIZE,
    PUBLICATION_ID_SIZE,
)
_MAX_NAME = 4096
"""A Full Track Name is no longer than this (MOQT section 2.4.1)."""
_DATA_TRACK = re.compile(rb"(kv|k|v)\.([a-z0-9-]{1,32})\.s(0|[1-9][0-9]*)")


class PublicationName(NamedTuple):
    """Fields 1 to 4 of a publication's Track Namespace, as raw octets (N1)."""

    scope_id: bytes
    compat_id: bytes
    anchor_key: bytes
    publication_id: bytes

    @property
    def namespace(self) -> TrackNamespace:
        """The five-field Track Namespace."""
        return (PROTOCOL, *self)


def from_namespace(namespace: TrackNamespace) -> PublicationName | None:
    """The publication that `namespace` names; None unless it has the five fields of KVCS (N1)."""
    if tuple(map(len, namespace)) != _FIELD_SIZES or namespace[0] != PROTOCOL:
        return None
    return PublicationName(*namespace[1:])


def scope_prefix(scope_id: bytes) -> TrackNamespace:
    """Covers all publications of a scope; the unit of authorisation (N4)."""
    return (PROTOCOL, scope_id)


def content_prefix(scope_id: bytes, compat_id: bytes, anchor_key: bytes) -> TrackNamespace:
    """Covers all publications of one token prefix; what a consumer discovers with (N4)."""
    return (PROTOCOL, scope_id, compat_id, anchor_key)


def new_publication_id() -> bytes:
    """16 random octets, for one production of a cache (N2)."""
    return secrets.token_bytes(PUBLICATION_ID_SIZE)


@dataclass(frozen=True, slots=True)
class DataTrack:
    """What the name of a data track says (N5)."""

    component: Component
    codec: str
    segment: int

    @property
    def name(self) -> bytes:
        """The Track Name, such as b"k.raw.s0"."""
        return f"{self.component.label}.{self.codec}.s{self.segment}".encode("ascii")


def parse_track_name(name: bytes) -> DataTrack | None:
    """The data track that `name` names; None where it does not follow the ABNF (N5)."""
    match = _DATA_TRACK.fullmatch(name) if len(name) <= _MAX_NAME else None
    if match is None:
        return None
    component, codec, segment = match.groups()
    return DataTrack(
        Component[component.decode("ascii").upper()], codec.decode("ascii"), int(segment)
    )
