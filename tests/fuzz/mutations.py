"""From good octets to bad ones: bits, lengths, cuts, repeats, pieces of other inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from moqt.wire.primitives import encode_vi64

NUMBERS = [
    0,
    1,
    0x3F,
    0x40,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x3FFF,
    0x4000,
    0xFFFF,
    0x10000,
    0xFFFFFF,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 53,
    (1 << 62) - 1,
    1 << 63,
    (1 << 64) - 1,
]
"""Where formats and machines have their edges."""

Change = Callable[[random.Random, bytearray, Sequence[bytes], Sequence[bytes]], None]


def mutate(
    dice: random.Random, data: bytes, pool: Sequence[bytes], words: Sequence[bytes], most: int
) -> bytes:
    """One to eight changes, small ones mostly; at most `most` octets."""
    changed = bytearray(data)
    for _ in range(min(1 + int(dice.expovariate(0.6)), 8)):
        dice.choice(_CHANGES)(dice, changed, pool, words)
    return bytes(changed[:most])


def _flip(dice: random.Random, data: bytearray, *_: object) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _octet(dice: random.Random, data: bytearray, *_: object) -> None:
    if data:
        at = dice.randrange(len(data))
        data[at] = dice.choice(
            (0, 1, 0x7F, 0x80, 0xFE, 0xFF, data[at] - 1 & 0xFF, data[at] + 1 & 0xFF)
        )


def _cut(dice: random.Random, data: bytearray, *_: object) -> None:
    at = dice.randrange(len(data) + 1)
    del data[at : at + _length(dice)]


def _end(dice: random.Random, data: bytearray, *_: object) -> None:
    del data[dice.randrange(len(data) + 1) :]


def _insert(dice: random.Random, data: bytearray, *_: object) -> None:
    at = dice.randrange(len(data) + 1)
    data[at:at] = dice.randbytes(dice.randint(1, 9))


def _repeat(dice: random.Random, data: bytearray, *_: object) -> None:
    at = dice.randrange(len(data) + 1)
    piece = data[at : at + _length(dice)]
    data[at:at] = piece * dice.choice((1, 1, 1, 2, 7, 100))


def _move(dice: random.Random, data: bytearray, *_: object) -> None:
    at = dice.randrange(len(data) + 1)
    piece = data[at : at + _length(dice)]
    del data[at : at + len(piece)]
    to = dice.randrange(len(data) + 1)
    data[to:to] = piece


def _number(dice: random.Random, data: bytearray, *_: object) -> None:
    """A number at an edge, as varint or of fixed size, over what was there or before it."""
    value = dice.choice(NUMBERS)
    size = dice.choice((0, 1, 2, 4, 8))
    octets = (value & (1 << 8 * size) - 1).to_bytes(size, "big") if size else encode_vi64(value)
    at = dice.randrange(len(data) + 1)
    data[at : at + dice.choice((0, len(octets)))] = octets


def _word(
    dice: random.Random, data: bytearray, pool: Sequence[bytes], words: Sequence[bytes]
) -> None:
    if words:
        at = dice.randrange(len(data) + 1)
        data[at : at + dice.choice((0, 0, 1, 4))] = dice.choice(words)


def _splice(
    dice: random.Random, data: bytearray, pool: Sequence[bytes], words: Sequence[bytes]
) -> None:
    other = dice.choice(pool)
    at = dice.randrange(len(data) + 1)
    start = dice.randrange(len(other) + 1)
    data[at : at + dice.choice((0, 8, len(data)))] = other[start : start + _length(dice)]


def _length(dice: random.Random) -> int:
    return dice.choice((1, 2, 4, 8, dice.randint(1, 64), dice.randint(1, 1024)))


_CHANGES: tuple[Change, ...] = (
    _flip,
    _flip,
    _octet,
    _octet,
    _cut,
    _end,
    _insert,
    _repeat,
    _move,
    _number,
    _number,
    _word,
    _word,
    _splice,
)
