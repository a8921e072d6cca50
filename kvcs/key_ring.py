"""The key ring of a scope: base keys by Key ID, one of which protects what is published now.

Several keys at once make rotation possible: a new key is given to every member first, then it is used, and the old one
is kept until what it protects has expired. It is independent of the scope key, so that names survive a rotation.

A file is a JWK Set (RFC 7517) of symmetric keys:

    {"keys": [{"kty": "oct", "kid": "1c0de5ca1e5", "alg": "AES_128_GCM_SHA256_128", "k": "<base64url>",
               "nbf": 1790000000, "exp": 1800000000}]}

`kid` is the Key ID in hex, `alg` the cipher suite, `k` 32 to 64 octets. With `nbf` a key is used from then on, with `exp`
it is refused from then on (Unix time); both may be missing. Of the keys that may be used the one with the latest `nbf`
protects what is published, of several the last in the file. Other members are ignored.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvcs import strictjson
from kvcs.errors import UsageError
from kvcs.payload import Discard, DiscardReason
from kvcs.reading import read_up_to, unreadable
from kvcs.secure_objects import LEAST_KEY_ID, Suite
from kvcs.strictjson import shown

MAX_KEYS = 64
MAX_OCTETS = 64 << 10
KEY_SIZES = range(32, 65)
MAX_TIME = 1 << 40

_KEY_ID = re.compile(r"0|[1-9a-f][0-9a-f]{0,15}")
_SIX_OCTETS = 1 << 42
"""New Key IDs are below this, so that they take six octets in every Object."""


@dataclass(frozen=True)
class RingKey:
    """One base key. `not_before` and `retire_after` are Unix time; None stands for always and never."""

    key_id: int
    secret: bytes = field(repr=False)
    suite: Suite = Suite.AES_128_GCM_SHA256_128
    not_before: int | None = None
    retire_after: int | None = None

    def __post_init__(self) -> None:
        if self.key_id and not LEAST_KEY_ID <= self.key_id < 1 << 64:
            raise UsageError(
                f"Key ID {self.key_id:x} is below {LEAST_KEY_ID:x}: MOQT takes it for a time-out"
            )
        if len(self.secret) not in KEY_SIZES:
            raise UsageError(f"k must have 32 to 64 octets, it has {len(self.secret)}")
        for name, time_ in (("nbf", self.not_before), ("exp", self.retire_after)):
            if time_ is not None and not 0 <= time_ <= MAX_TIME:
                raise UsageError(
                    f"{name} must be a time in seconds since 1970, it is {shown(time_)}"
                )

    @classmethod
    def generate(cls, suite: Suite, *, not_before: int | None = None) -> RingKey:
        """A new key with a Key ID of its own."""
        key_id = LEAST_KEY_ID + secrets.randbelow(_SIX_OCTETS - LEAST_KEY_ID)
        return cls(key_id, secrets.token_bytes(32), suite, not_before)

    def is_retired(self, now: float) -> bool:
        """Whether nothing that it protects is taken any more."""
        return self.retire_after is not None and now >= self.retire_after

    def to_json(self) -> dict[str, object]:
        """The JWK. It holds the secret."""
        jwk: dict[str, object] = {
            "kty": "oct",
            "kid": f"{self.key_id:x}",
            "alg": self.suite.name,
            "k": base64.urlsafe_b64encode(self.secret).rstrip(b"=").decode("ascii"),
        }
        times = {"nbf": self.not_before, "exp": self.retire_after}
        return jwk | {name: value for name, value in times.items() if value is not None}


class KeyRing:
    """The keys of a scope. They can be exchanged while it is in use; `clock` gives Unix time."""

    def __init__(self, keys: Iterable[RingKey], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._path: Path | None = None
        self._apart_from = b""
        self._keys: dict[int, RingKey] = {}
        self.replace(keys)

    @classmethod
    def load(cls, path: Path, *, apart_from: bytes = b"") -> KeyRing:
        """The key ring in a file, none of whose keys may ever be `apart_from`, the scope key. Raises UsageError."""
        ring = cls(load_keys(path, apart_from))
        ring._path, ring._apart_from = path, apart_from
        return ring

    def reload(self) -> None:
        """Takes what the file holds by now. Raises UsageError, and then keeps the keys it has."""
        if self._path is None:
            raise UsageError("key ring: it was not read from a file")
        self.replace(load_keys(self._path, self._apart_from))

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(f'{key_id:x}' for key_id in self._keys)})"

    @property
    def keys(self) -> tuple[RingKey, ...]:
        """All of them, retired ones included."""
        return tuple(self._keys.values())

    def replace(self, keys: Iterable[RingKey]) -> None:
        """Takes other keys from now on. Raises UsageError, and then keeps those it has."""
        listed = list(keys)
        found = {key.key_id: key for key in listed}
        if not found or len(found) != len(listed) or len(found) > MAX_KEYS:
            raise UsageError(f"expected 1 to {MAX_KEYS} keys, each with a Key ID of its own")
        self._keys = found

    @property
    def current(self) -> RingKey:
        """The key that protects what is published now. Raises UsageError where none may be used."""
        now = self._clock()
        usable = [
            key
            for key in self._keys.values()
            if (key.not_before or 0) <= now and not key.is_retired(now)
        ]
        if not usable:
            raise UsageError("key ring: no key of it may be used now; add one (kvcs keygen --ring)")
        latest = max(key.not_before or 0 for key in usable)
        return [key for key in usable if (key.not_before or 0) == latest][-1]

    def find(self, key_id: int) -> RingKey:
        """The key with which an Object of this Key ID is opened. Raises Discard (KEY)."""
        key = self._keys.get(key_id)
        if key is None:
            raise Discard(
                DiscardReason.KEY,
                f"it is protected with key {key_id:x}, which the key ring lacks",
            )
        if key.is_retired(self._clock()):
            raise Discard(
                DiscardReason.KEY, f"it is protected with key {key_id:x}, which is retired"
            )
        return key


# Files


def load_keys(path: Path, apart_from: bytes = b"") -> list[RingKey]:
    """The keys in a file; raises UsageError, which never quotes one, also where `apart_from` is among them."""
    try:
        data = read_up_to(path, MAX_OCTETS + 1)
    except OSError as fault:
        raise unreadable("key ring", path, fault, "--encrypt or --decrypt") from None
    try:
        keys = parse_keys(data)
    except UsageError as fault:
        raise UsageError(f"key ring: {path}: {fault}") from None
    if any(key.secret == apart_from for key in keys):
        raise UsageError(
            f"key ring: {path}: a key is the scope key, which must protect nothing but names; make another"
        )
    return keys


def parse_keys(data: bytes) -> list[RingKey]:
    """The keys in a JWK Set."""
    document = strictjson.loads(
        data, what="JWK Set", max_octets=MAX_OCTETS, error=UsageError, max_values=MAX_OCTETS >> 3
    )
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not all(isinstance(jwk, dict) for jwk in listed):
        raise UsageError('expected a JWK Set: {"keys": [...]}')
    if not 1 <= len(listed) <= MAX_KEYS:
        raise UsageError(f"expected 1 to {MAX_KEYS} keys, it has {len(listed)}")
    keys = [_from_jwk(jwk) for jwk in listed]
    if len({key.key_id for key in keys}) != len(keys):
        raise UsageError("a Key ID (kid) occurs twice")
    return keys


def _from_jwk(jwk: dict[str, object]) -> RingKey:
    key_id, suite = jwk.get("kid"), jwk.get("alg")
    if jwk.get("kty") != "oct":
        raise UsageError("a key is not symmetric: its kty must be oct")
    if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
        raise UsageError("a kid is not a Key ID: 1 to 16 lower-case hex digits")
    if not isinstance(suite, str) or suite not in Suite.__members__:
        raise UsageError(
            f"key {key_id}: alg must be {' or '.join(Suite.__members__)}, it is {shown(suite)}"
        )
    try:
        return RingKey(
            int(key_id, 16),
            _secret(jwk.get("k")),
            Suite[suite],
            _time(jwk, "nbf"),
            _time(jwk, "exp"),
        )
    except UsageError as fault:
        raise UsageError(f"key {key_id}: {fault}") from None


def _secret(value: object) -> bytes:
    text = value if isinstance(value, str) else "?"
    try:
        octets = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if base64.urlsafe_b64encode(octets).rstrip(b"=").decode("ascii") != text:
            raise ValueError
    except ValueError:
        raise UsageError("k must be base64url without padding") from None
    return octets


def _time(jwk: dict[str, object], name: str) -> int | None:
    value = jwk.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise UsageError(f"{name} must be a time in seconds since 1970, it is {shown(value)}")
    return value


def write_keys(path: Path, keys: Sequence[RingKey]) -> None:
    """Writes a file for its owner's eyes only, whole from the moment it can be seen. Raises UsageError."""
    text = json.dumps({"keys": [key.to_json() for key in keys]}, indent=1) + "\n"
    aside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as fault:
        aside.unlink(missing_ok=True)
        raise UsageError(f"key ring: cannot write {path}: {fault.strerror}") from None
