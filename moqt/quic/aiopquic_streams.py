"""What the library does not keep of a connection's streams: which IDs are ours, and what may still happen on each.

It accepts calls on streams that are over, allocates an ID each time it is asked for one, queues streams beyond
the peer's limit without a word, and takes octets only while its ring for the stream has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

PIECE = 64 << 10
"""Octets handed to the library at once; they must fit its ring."""


@dataclass(slots=True)
class Stream:
    """One stream that is not over in both directions."""

    can_send: bool
    can_receive: bool
    is_known: bool = False
    """Whether the library has heard of it."""
    fin: bool = False
    """Whether its end is still to be handed over."""
    waiting: deque[bytes] = field(default_factory=deque)
    """What the library had no room for."""
    stopped: int | None = None
    """The code with which we asked the peer to give up."""


class Streams:
    """The streams of one connection, and the IDs of the next ones."""

    def __init__(self, *, is_client: bool) -> None:
        self._ours = 0 if is_client else 1
        self._next = {True: self._ours, False: self._ours + 2}
        self._open = {True: 0, False: 0}
        self._limits = {True: 0, False: 0}
        self._streams: dict[int, Stream] = {}

    def limit(self, bidirectional: int, unidirectional: int) -> None:
        """Sets how many streams of ours may be open at once."""
        self._limits = {True: bidirectional, False: unidirectional}

    def following(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID; None while as many are open as the peer allows."""
        if self._open[bidirectional] >= self._limits[bidirectional]:
            return None
        return self._next[bidirectional]

    def known(self, stream_id: int) -> Stream | None:
        """A stream that is not over."""
        return self._streams.get(stream_id)

    def to_send(self, stream_id: int) -> Stream | None:
        """The stream if it may be sent on; opens ours if it is the next."""
        stream = self._streams.get(stream_id)
        if stream is None and stream_id % 2 == self._ours:
            bidirectional = not stream_id & 2
            if stream_id == self.following(bidirectional=bidirectional):
                stream = self._streams[stream_id] = Stream(True, bidirectional)
                self._next[bidirectional] += 4
                self._open[bidirectional] += 1
        return stream if stream is not None and stream.can_send else None

    def heard(self, stream_id: int) -> Stream | None:
        """The stream that an event of the peer names; it may be new if it is the peer's."""
        stream = self._streams.get(stream_id)
        if stream is None and stream_id % 2 != self._ours:
            stream = self._streams[stream_id] = Stream(not stream_id & 2, True, is_known=True)
        return stream

    def settle(self, stream_id: int) -> None:
        """Forgets a stream of the peer's that can bring nothing more and takes nothing."""
        stream = self._streams.get(stream_id)
        if (
            stream is not None
            and stream_id % 2 != self._ours
            and not stream.can_send
            and not stream.can_receive
        ):
            del self._streams[stream_id]

    def over(self, stream_id: int) -> Stream | None:
        """Forgets a stream that the library is done with; ours makes room for another."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None and stream_id % 2 == self._ours:
            self._open[not stream_id & 2] -= 1
        return stream


def pieces(data: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """The octets as the library takes them: `bytes`, of bounded size."""
    if isinstance(data, bytes) and len(data) <= PIECE:
        if data:
            yield data
        return
    view = memoryview(data).cast("B")
    for start in range(0, len(view), PIECE):
        yield bytes(view[start : start + PIECE])
