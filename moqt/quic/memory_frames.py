"""What two ends in memory tell each other: QUIC's frames, as far as an application can notice them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Stream:
    """Octets of a stream; `fin` ends it."""

    stream_id: int
    data: bytes
    fin: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """The sender gave up. `final_size` octets count against the connection's credit."""

    stream_id: int
    code: int
    final_size: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The receiver gave up."""

    stream_id: int
    code: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Acknowledges FIN or a reset."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class MaxData:
    """Octets the peer may send in all."""

    limit: int


@dataclass(frozen=True, slots=True)
class MaxStreamData:
    """Octets the peer may send on one stream."""

    stream_id: int
    limit: int


@dataclass(frozen=True, slots=True)
class MaxStreams:
    """Streams of one kind the peer may have opened in all."""

    unidirectional: bool
    limit: int


@dataclass(frozen=True, slots=True)
class Datagram:
    """One DATAGRAM frame."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """CONNECTION_CLOSE of the application."""

    code: int
    reason: str


Frame: TypeAlias = (
    Stream | Reset | Stop | Ended | MaxData | MaxStreamData | MaxStreams | Datagram | Close
)
