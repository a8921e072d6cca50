"""What is fuzzed: one function over octets, the errors that it may raise, and octets to start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Run = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`run` must return, or raise one of `errors`, within the limits of tests/fuzz/limits.py.

    Whatever else it raises is a fault, an AssertionError of its own checks included.
    """

    name: str
    run: Run
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    words: Sequence[bytes] = ()
    """Pieces that its inputs are made of."""
    most: int = 4096
    """Octets of an input."""


class Choices:
    """Reads octets as decisions; at the end every decision is 0 and every piece empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self, octets: int = 1) -> int:
        """An unsigned number, big endian."""
        return int.from_bytes(self.piece(octets), "big")

    def piece(self, octets: int) -> bytes:
        """So many octets, or what is left."""
        taken = self._data[self._at : self._at + octets]
        self._at += len(taken)
        return taken

    def rest(self) -> bytes:
        """All that is left."""
        return self.piece(len(self._data))

    def pieces(self, data: bytes) -> list[bytes]:
        """`data` in pieces of decided sizes."""
        cut = []
        while data:
            size = (1, 3, 64, len(data))[self.number() % 4]
            cut.append(data[:size])
            data = data[size:]
        return cut
