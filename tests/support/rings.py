"""Key rings for tests."""

from __future__ import annotations

from collections.abc import Callable

from kvcs.key_ring import KeyRing, RingKey
from kvcs.secure_objects import LEAST_KEY_ID, Suite

A, B, C = (LEAST_KEY_ID + n for n in range(3))


def ring_key(
    key_id: int,
    *,
    seed: int = 0,
    suite: Suite = Suite.AES_128_GCM_SHA256_128,
    not_before: int | None = None,
    retire_after: int | None = None,
) -> RingKey:
    """A key whose secret is that of the Key ID and `seed`."""
    secret = bytes([key_id % 256, seed]) * 16
    return RingKey(key_id, secret, suite, not_before, retire_after)


def ring(*keys: int | RingKey, clock: Callable[[], float] = lambda: 1000.0) -> KeyRing:
    """A key ring; the last key protects."""
    made = (key if isinstance(key, RingKey) else ring_key(key) for key in keys)
    return KeyRing(made, clock)
