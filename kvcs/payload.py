"""The KVCS object payload: a 68-octet header that describes the Data after it (draft: Object Payload).

 0                   1                   2                   3
+-------------------------------------------------------------+
| Magic "KVO1"                                                |
| Version        | Component      | Flags                     |
| Layer                                                       |
| Block Index                                                 |
| Token Start (64 bits)                                       |
| Token Count                                                 |
| Codec                           | Reserved                  |
| Data Length                                                 |
| Data Digest (SHA-256)                                       |
| Data                                                        |
+-------------------------------------------------------------+
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum, IntEnum

MAGIC = b"KVO1"
VERSION = 1
HEADER_SIZE = 68

_LAYOUT = struct.Struct(">4sBBHIIQIHHI32s")

ADVISED_DATA = (16 << 10, 1 << 20)
"""Octets of Data that balance per-object overhead against granularity (draft: Object size)."""


class Component(IntEnum):
    """The "KVCS Components" registry; 0 is reserved."""

    K = 1
    V = 2
    KV = 3

    @property
    def label(self) -> str:
        """The name in Track Names: "k", "v" or "kv"."""
        return self.name.lower()


class DiscardReason(Enum):
    """Which check an Object failed; it then counts as missing."""

    MAGIC = "magic"
    VERSION = "version"
    LAYER = "layer"
    BLOCK = "block"
    LENGTH = "length"
    DIGEST = "digest"
    COMPONENT = "component"
    CODEC = "codec"
    TOKEN_COUNT = "token_count"  # noqa: S105
    TOKEN_START = "token_start"  # noqa: S105
    LOCATION = "location"
    """Outside what the manifest lists."""
    UNLISTED = "unlisted"
    """Too much waits already for the manifest that lists it."""
    UNPROTECTED = "unprotected"
    """Not encrypted, where a key ring is given (X3)."""
    KEY = "key"
    """Encrypted with a key that the key ring lacks, or has retired."""
    AUTHENTICATION = "authentication"
    """Altered on its way, or encrypted with another key of that Key ID."""
    CONFLICT = "conflict"
    """Verified copies of one Location differ, or the manifest lists another digest."""


class Discard(Exception):
    """An Object failed a check and is treated as missing. `reason` says which."""

    def __init__(self, reason: DiscardReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class PayloadHeader:
    """The header of one Object; `digest` is the SHA-256 of its Data, `codec` a registry value."""

    component: Component
    layer: int
    block: int
    token_start: int
    token_count: int
    codec: int
    data_length: int
    digest: bytes
    flags: int = 0
    reserved: int = 0

    def encode(self) -> bytes:
        """The 68 octets."""
        return _LAYOUT.pack(
            MAGIC,
            VERSION,
            self.component,
            self.flags,
            self.layer,
            self.block,
            self.token_start,
            self.token_count,
            self.codec,
            self.reserved,
            self.data_length,
            self.digest,
        )

    @classmethod
    def decode(cls, octets: bytes | bytearray | memoryview) -> PayloadHeader:
        """The header in exactly 68 octets; raises `Discard` (LENGTH, MAGIC, VERSION, COMPONENT)."""
        if len(octets) != HEADER_SIZE:
            raise Discard(
                DiscardReason.LENGTH, f"expected {HEADER_SIZE} octets of header, got {len(octets)}"
            )
        (
            magic,
            version,
            component,
            flags,
            layer,
            block,
            token_start,
            token_count,
            codec,
            reserved,
            data_length,
            digest,
        ) = _LAYOUT.unpack(octets)
        if magic != MAGIC:
            raise Discard(DiscardReason.MAGIC, f"expected {MAGIC.hex()}, got {magic.hex()}")
        if version != VERSION:
            raise Discard(DiscardReason.VERSION, f"expected {VERSION}, got {version}")
        try:
            known = Component(component)
        except ValueError:
            raise Discard(DiscardReason.COMPONENT, f"{component} is not registered") from None
        return cls(
            known,
            layer,
            block,
            token_start,
            token_count,
            codec,
            data_length,
            digest,
            flags,
            reserved,
        )


@dataclass(frozen=True, slots=True)
class Expectation:
    """What every Object of one data track must say about itself (O2, O8)."""

    component: Component
    codec: int
    """Value of the track's codec."""
    first_block: int
    """Absolute index of the segment's first block."""
    block_tokens: int
    data_length: int
    """Octets of Data; for raw the descriptor's section size, for kv both sections."""

    def check(self, header: PayloadHeader, group: int, object_id: int, payload_length: int) -> None:
        """Raises `Discard` unless `header` fits its place and length; the digest is left to who takes the Data."""
        _equal(DiscardReason.LAYER, header.layer, group)
        _equal(DiscardReason.BLOCK, header.block, object_id)
        _equal(DiscardReason.LENGTH, payload_length, HEADER_SIZE + header.data_length)
        _equal(DiscardReason.COMPONENT, header.component, self.component)
        _equal(DiscardReason.CODEC, header.codec, self.codec)
        _equal(DiscardReason.TOKEN_COUNT, header.token_count, self.block_tokens)
        start = (self.first_block + object_id) * self.block_tokens
        _equal(DiscardReason.TOKEN_START, header.token_start, start)
        _equal(DiscardReason.LENGTH, header.data_length, self.data_length)

    def digest_in(
        self, head: bytes | bytearray | memoryview, group: int, object_id: int, payload_length: int
    ) -> bytes:
        """The Data Digest in 68 octets of header; raises `Discard` unless the rest of it fits.

        Flags and Reserved may have any value.
        """
        if len(head) == HEADER_SIZE and payload_length == HEADER_SIZE + self.data_length:
            magic, version, component, _, layer, block, start, count, codec, _, length, digest = (
                _LAYOUT.unpack(head)
            )
            if (
                (magic, version) == (MAGIC, VERSION)
                and (component, codec) == (self.component, self.codec)
                and (layer, block) == (group, object_id)
                and (start, count)
                == ((self.first_block + object_id) * self.block_tokens, self.block_tokens)
                and length == self.data_length
            ):
                return bytes(digest)
        header = PayloadHeader.decode(head)  # says what is wrong
        self.check(header, group, object_id, payload_length)
        return header.digest


def _equal(reason: DiscardReason, came: int, expected: int) -> None:
    if came != expected:
        raise Discard(reason, f"expected {expected}, got {came}")


def layer_digest(k: bytes | bytearray | memoryview, v: bytes | bytearray | memoryview) -> bytes:
    """The KVSP layer digest of one block and layer, from its raw K and V sections (O6)."""
    digest = hashlib.sha256(k)
    digest.update(v)
    return digest.digest()


def size_advice(data_length: int) -> str | None:
    """A warning where Objects of `data_length` octets of Data lie outside the advised range (X1)."""
    low, high = ADVISED_DATA
    if low <= data_length <= high:
        return None
    change = "more" if data_length < low else "fewer"
    return (
        f"objects of {data_length} octets: between 16 KiB and 1 MiB is advised; "
        f"use {change} tokens per block"
    )
