"""Secure Objects: the payload of one Object sealed for the members of a scope (draft-ietf-moq-secure-objects).

    key, salt = HKDF of the base key, the Full Track Name, the cipher suite and the Key ID
    nonce     = salt XOR (Group ID as 64 bits, Object ID as 32 bits)
    AAD       = Group ID, Object ID, Publisher Priority, Immutable Properties
    plaintext = vi64 length of the payload, payload
    sealed    = AEAD(key, nonce, AAD, plaintext), 16 octets of tag at the end

The one fatal mistake is to seal two plaintexts at one Location of one track under one key. Track names begin with a
Publication ID that is random at every start, a Track takes each Location once, and what is sealed again because it
is sent again is compared with the first time (`kvcs.sealing`).
"""

from __future__ import annotations

import hmac
import struct
from enum import IntEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from kvcs.errors import KeyExhausted
from kvcs.payload import Discard, DiscardReason
from moqt import FullTrackName, Location, decode_properties, decode_vi64, encode_vi64
from moqt.errors import MoqtError
from moqt.model import Properties

IMMUTABLE_PROPERTIES = 0x0B
KEY_ID = 0x02
"""The property inside the Immutable Properties. MOQT reads 0x02 as a delivery time-out in milliseconds, hence LEAST_KEY_ID."""
LEAST_KEY_ID = 1 << 40
"""Key IDs of KVCS begin here: taken for a time-out that is 34 years. 0, which is none, may be used as well."""
TAG_SIZE = 16
MAX_OBJECT_ID = (1 << 32) - 1
MAX_LIST = 1 << 16
"""Octets behind the payload that are tolerated, and ignored: the draft's Encrypted Properties."""
OVERHEAD = 9 + TAG_SIZE
"""At most so many octets are added to a payload."""

SEALED_BLOCKS = 1 << 35
"""Messages and their blocks of 16 octets under one key and track after which no further layer is begun."""
MOST_SEALED_BLOCKS = 1 << 36
"""And after which nothing is sealed: where an attacker's advantage is 2^-57 (draft-irtf-cfrg-aead-limits)."""
FAILED_BLOCKS = 1 << 69
"""Likewise of messages that did not open: p * 2^127 for p = 2^-58."""

_KEY_LABEL = b"MOQ 1.0 Secure Objects Secret key "
_SALT_LABEL = b"MOQ 1.0 Secret salt "
_NONCE_SIZE = 12
_PLACE = struct.Struct(">QIB")
_LIST = 0x0A


class Suite(IntEnum):
    """Cipher suites by their code points. Those with AES-CTR are left out: their tags are short, or not agreed on."""

    AES_128_GCM_SHA256_128 = 0x0004
    AES_256_GCM_SHA512_128 = 0x0005

    @property
    def key_size(self) -> int:
        """Octets of the key of a track."""
        return 16 if self is Suite.AES_128_GCM_SHA256_128 else 32

    @property
    def hash_name(self) -> str:
        """The hash of its HKDF, as hashlib knows it."""
        return "sha256" if self is Suite.AES_128_GCM_SHA256_128 else "sha512"


def serialize_track_name(name: FullTrackName) -> bytes:
    """A Full Track Name as key derivation takes it: all lengths in their shortest form."""
    fields = b"".join(encode_vi64(len(field)) + field for field in name.namespace)
    return encode_vi64(len(name.namespace)) + fields + encode_vi64(len(name.name)) + name.name


def derive(base_key: bytes, suite: Suite, key_id: int, track: bytes, /) -> tuple[bytes, bytes]:
    """Key and salt of a track, whose name is serialized."""
    secret = hmac.new(b"", base_key, suite.hash_name).digest()
    tail = track + struct.pack(">HQ", suite, key_id)
    algorithm = hashes.SHA256() if suite.hash_name == "sha256" else hashes.SHA512()
    key = HKDFExpand(algorithm, suite.key_size, _KEY_LABEL + tail).derive(secret)
    return key, HKDFExpand(algorithm, _NONCE_SIZE, _SALT_LABEL + tail).derive(secret)


def aad(location: Location, priority: int, immutable: bytes) -> bytes:
    """What is authenticated beside the payload; `immutable` as it was sent or received, octet by octet."""
    return _PLACE.pack(location.group, location.object, priority) + immutable


class ObjectCipher:
    """One key on one track: seals and opens payloads, and counts what the key has been used for."""

    __slots__ = ("_aead", "_salt", "failed_blocks", "immutable", "key_id", "sealed_blocks")

    def __init__(self, base_key: bytes, suite: Suite, key_id: int, track: FullTrackName) -> None:
        key, salt = derive(base_key, suite, key_id, serialize_track_name(track))
        self.key_id = key_id
        self.immutable = encode_vi64(KEY_ID) + encode_vi64(key_id)
        """The value of IMMUTABLE_PROPERTIES of Objects that are sealed here."""
        self.sealed_blocks = 0
        self.failed_blocks = 0
        self._aead = AESGCM(key)
        self._salt = int.from_bytes(salt, "big")

    @property
    def properties(self) -> Properties:
        """Object Properties that go with what `seal` returns."""
        return ((IMMUTABLE_PROPERTIES, self.immutable),)

    def nonce(self, location: Location) -> bytes:
        """Of a Location, which must have been checked."""
        counter = location.group << 32 | location.object
        return (self._salt ^ counter).to_bytes(_NONCE_SIZE, "big")

    def check(self) -> None:
        """Raises KeyExhausted where no further layer, or other Group, should be begun with this key."""
        self._limit(0, SEALED_BLOCKS)

    def reserve(self, length: int) -> None:
        """Counts a payload of `length` octets that is about to be sealed for the first time. Raises KeyExhausted where
        the key must not be used for it.
        """
        self.sealed_blocks += self._limit(length, MOST_SEALED_BLOCKS)

    def _limit(self, length: int, most: int) -> int:
        blocks = _blocks(length + OVERHEAD + _PLACE.size + len(self.immutable))
        if self.sealed_blocks + blocks > most:
            raise KeyExhausted(
                f"key {self.key_id:x} has protected as much of one track as it safely can; "
                "add another key to the key ring, or publish anew"
            )
        return blocks

    def seal(self, location: Location, priority: int, payload: bytes | memoryview) -> bytes:
        """A payload, sealed; the same octets whenever the arguments are the same."""
        plaintext = b"".join((encode_vi64(len(payload)), payload))
        return bytes(self.seal_plaintext(location, priority, plaintext))

    def seal_plaintext(
        self, location: Location, priority: int, plaintext: bytes | memoryview, prefix: bytes = b""
    ) -> bytearray:
        """`prefix`, and in the same buffer a plaintext sealed: a payload with its length before it."""
        if not 0 <= location.object <= MAX_OBJECT_ID:
            raise ValueError(f"Object ID {location.object} is beyond 2^32-1")
        start = len(prefix)
        octets = bytearray(start + len(plaintext) + TAG_SIZE)
        octets[:start] = prefix
        self._aead.encrypt_into(
            self.nonce(location),
            plaintext,
            aad(location, priority, self.immutable),
            memoryview(octets)[start:],
        )
        return octets

    def open(
        self,
        location: Location,
        priority: int,
        immutable: bytes,
        sealed: bytes | bytearray | memoryview,
    ) -> memoryview:
        """The payload in what `seal` made, here or elsewhere. Raises Discard, always for the same reason."""
        try:
            if location.object > MAX_OBJECT_ID or self.failed_blocks > FAILED_BLOCKS:
                raise InvalidTag
            plaintext = self._aead.decrypt(
                self.nonce(location), sealed, aad(location, priority, immutable)
            )
        except InvalidTag:
            self.failed_blocks += _blocks(len(sealed) + _PLACE.size + len(immutable))
            raise _unauthentic(self.key_id) from None
        return self._payload(plaintext)

    def _payload(self, plaintext: bytes) -> memoryview:
        try:
            length, start = decode_vi64(plaintext)
            end = start + length
            if end > len(plaintext) or not _is_list(plaintext[end:]):
                raise ValueError
        except ValueError:
            raise _unauthentic(self.key_id) from None
        return memoryview(plaintext)[start:end]


def _unauthentic(key_id: int) -> Discard:
    return Discard(
        DiscardReason.AUTHENTICATION,
        f"it does not open with key {key_id:x} of the key ring, which is another key of that name, "
        "or it was altered on its way",
    )


def _is_list(rest: bytes) -> bool:
    """Whether what follows the payload is nothing, or Encrypted Properties in one of the forms the draft allows."""
    if not rest:
        return True
    if len(rest) > MAX_LIST:
        return False
    kind, start = (_LIST, 2) if rest[:2] == b"\0\x0a" else decode_vi64(rest)
    length, start = decode_vi64(rest, start)
    return kind == _LIST and start + length == len(rest)


def _blocks(octets: int) -> int:
    """What a message of so many octets counts: its blocks, and one for the message."""
    return 1 + -(-octets // 16)


def key_id_of(properties: Properties) -> tuple[int, bytes] | None:
    """The Key ID, and the octets of the Immutable Properties that it stands in; None where there is no single one."""
    found = [value for kind, value in properties if kind == IMMUTABLE_PROPERTIES]
    if len(found) != 1 or not isinstance(found[0], bytes):
        return None
    try:
        inner = decode_properties(found[0])
    except MoqtError:
        return None
    key_ids = [value for kind, value in inner if kind == KEY_ID]
    nested = any(kind == IMMUTABLE_PROPERTIES for kind, _ in inner)
    if nested or len(key_ids) != 1 or not isinstance(key_ids[0], int):
        return None
    return key_ids[0], found[0]
