"""What a session core wants its driver to do with QUIC, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Send:
    """Put octets on a stream."""

    stream_id: int
    data: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Give up sending on a stream."""

    stream_id: int
    code: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the peer to give up sending on a stream."""

    stream_id: int
    code: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with an application code."""

    code: int
    reason: str


Action: TypeAlias = Send | Reset | Stop | Close
