"""Scope ID, Compatibility ID and Block Keys: this project's profile `kvsp-profile-1`.

The KVSP document is not public. Everything that depends on it stands behind `IdentityProfile`, whose
results are opaque octets to the rest of the package; `LiteralProfile` puts in IDs computed elsewhere.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from kvcs.errors import UsageError
from kvcs.kvsp.descriptor import Descriptor
from kvcs.naming import BLOCK_KEY_SIZE, COMPAT_ID_SIZE, SCOPE_ID_SIZE

SCOPE_KEY_SIZES = range(16, 65)
MAX_TOKEN = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A multimodal item: its placeholder tokens and the 32-octet hash of its content."""

    start: int
    """Absolute position of the first placeholder."""
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What besides the tokens decides the numbers in a cache."""

    lora: bytes | None = None
    """32-octet content hash of the adapter; counts in every block."""
    salt: bytes | None = None
    """Cache salt; counts in block 0, and the chain carries it on."""
    media: tuple[MediaItem, ...] = ()
    """In the order of their positions."""

    def of_block(self, index: int, block_tokens: int) -> list[tuple[bytes, bytes]]:
        """Names and values for one block, sorted by name."""
        found: list[tuple[bytes, bytes]] = []
        if self.lora is not None:
            found.append((b"lora", self.lora))
        start, end = index * block_tokens, (index + 1) * block_tokens
        items = b"".join(
            struct.pack(">i", item.start - start) + item.digest
            for item in self.media
            if item.start < end and item.start + item.length > start
        )
        if items:
            found.append((b"mm", items))
        if self.salt is not None and index == 0:
            found.append((b"salt", self.salt))
        return found


class IdentityProfile(Protocol):
    """Computes the identifiers of fields 1 to 3 of a KVCS namespace."""

    @property
    def name(self) -> str:
        """The value of the descriptor's member `profile`."""

    def scope_id(self, scope_key: bytes) -> bytes:
        """16 octets."""

    def compat_id(self, scope_key: bytes, descriptor: Descriptor) -> bytes:
        """32 octets."""

    def block_keys(
        self,
        scope_key: bytes,
        compat_id: bytes,
        tokens: Sequence[int],
        block_tokens: int,
        extra: ExtraKeys | None = None,
    ) -> list[bytes]:
        """32 octets for every complete block, in order; the tokens after the last one have none."""


class Profile1:
    """This project's profile, HKDF and HMAC with SHA-256 throughout."""

    name = "kvsp-profile-1"

    def scope_id(self, scope_key: bytes) -> bytes:
        return self._expand(scope_key, b"scope-id", SCOPE_ID_SIZE)

    def compat_id(self, scope_key: bytes, descriptor: Descriptor) -> bytes:
        if descriptor.profile != self.name:
            raise UsageError(
                f"descriptor: expected profile {self.name!r}, got {descriptor.profile[:60]!r}"
            )
        key = self._expand(scope_key, b"compatibility-id", COMPAT_ID_SIZE)
        return hmac.digest(key, descriptor.canonical(), "sha256")

    def block_keys(
        self,
        scope_key: bytes,
        compat_id: bytes,
        tokens: Sequence[int],
        block_tokens: int,
        extra: ExtraKeys | None = None,
    ) -> list[bytes]:
        packed = pack_tokens(tokens)
        size = 4 * block_tokens
        secret = self._expand(scope_key, b"block-key", BLOCK_KEY_SIZE)
        previous = hmac.digest(
            secret, b"\x00" + struct.pack(">I", len(compat_id)) + compat_id, "sha256"
        )
        keys: list[bytes] = []
        for index in range(len(packed) // size):
            parts = [
                b"\x01",
                previous,
                struct.pack(">QI", index, block_tokens),
                packed[index * size : (index + 1) * size],
                _pack_extra(extra.of_block(index, block_tokens) if extra else []),
            ]
            previous = hmac.digest(secret, b"".join(parts), "sha256")
            keys.append(previous)
        return keys

    @staticmethod
    def _expand(scope_key: bytes, info: bytes, length: int) -> bytes:
        if len(scope_key) not in SCOPE_KEY_SIZES:
            raise UsageError(f"scope key: expected 16 to 64 octets, got {len(scope_key)}")
        extracted = hmac.digest(b"kvsp-profile-1", scope_key, "sha256")
        return HKDFExpand(SHA256(), length, info).derive(extracted)


@dataclass(frozen=True)
class LiteralProfile:
    """IDs computed elsewhere, such as by an implementation of KVSP; keys, tokens and descriptor are not looked at."""

    literal_scope_id: bytes
    literal_compat_id: bytes
    literal_block_keys: tuple[bytes, ...]
    name: str = "literal"

    def scope_id(self, scope_key: bytes) -> bytes:
        return self.literal_scope_id

    def compat_id(self, scope_key: bytes, descriptor: Descriptor) -> bytes:
        return self.literal_compat_id

    def block_keys(
        self,
        scope_key: bytes,
        compat_id: bytes,
        tokens: Sequence[int],
        block_tokens: int,
        extra: ExtraKeys | None = None,
    ) -> list[bytes]:
        return list(self.literal_block_keys[: len(tokens) // block_tokens])


PROFILE: IdentityProfile = Profile1()
"""The profile used where none is named."""


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """The token ids as 32-bit integers, big-endian; raises `UsageError` for any that do not fit."""
    values = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    try:
        return struct.pack(f">{len(values)}I", *values)
    except (struct.error, TypeError):
        raise UsageError(
            f"tokens: expected integers from 0 to {MAX_TOKEN}, got something else"
        ) from None


def _pack_extra(extra: list[tuple[bytes, bytes]]) -> bytes:
    parts = [struct.pack(">I", len(extra))]
    for pair in extra:
        for part in pair:
            parts += [struct.pack(">I", len(part)), part]
    return b"".join(parts)


def block_keys_digest(block_keys: Sequence[bytes]) -> bytes:
    """SHA-256 of the concatenated raw Block Keys of a segment: `block_keys_sha256` (M6)."""
    return sha256(b"".join(block_keys)).digest()


@dataclass(frozen=True)
class Identity:
    """All identifiers of one prompt in one scope."""

    scope_id: bytes
    compat_id: bytes
    block_keys: tuple[bytes, ...]
    descriptor: Descriptor
    _compat_id_of: Callable[[Descriptor], bytes] = field(repr=False, compare=False)

    @classmethod
    def derive(
        cls,
        scope_key: bytes,
        descriptor: Descriptor,
        tokens: Sequence[int],
        extra: ExtraKeys | None = None,
        profile: IdentityProfile = PROFILE,
    ) -> Identity:
        """Identifiers of `tokens`; raises `UsageError` for a bad key, bad tokens or less than one block."""
        block_tokens = descriptor.block_tokens
        if len(tokens) == 0:
            raise UsageError("tokens: the list is empty; at least one block is needed")
        if len(tokens) < block_tokens:
            raise UsageError(
                f"tokens: {len(tokens)} are fewer than one block of {block_tokens}; "
                "only whole blocks have keys"
            )
        compat_id = profile.compat_id(scope_key, descriptor)
        return cls(
            scope_id=profile.scope_id(scope_key),
            compat_id=compat_id,
            block_keys=tuple(profile.block_keys(scope_key, compat_id, tokens, block_tokens, extra)),
            descriptor=descriptor,
            _compat_id_of=lambda other: profile.compat_id(scope_key, other),
        )

    def compat_id_of(self, descriptor: Descriptor) -> bytes:
        """The Compatibility ID of another descriptor in the same scope, such as a manifest's `compat` (M7)."""
        return self._compat_id_of(descriptor)

    def anchor(self, blocks: int) -> bytes:
        """The Anchor Key of the first `blocks` blocks (from 1)."""
        if not 1 <= blocks <= len(self.block_keys):
            raise UsageError(f"blocks: expected 1 to {len(self.block_keys)}, got {blocks}")
        return self.block_keys[blocks - 1]
