"""Request streams that the peer opened, until their first message is whole (draft-22 section 2.2)."""

from __future__ import annotations

from typing import NamedTuple

from moqt.errors import ProtocolViolation
from moqt.protocol.requests import UsedIds
from moqt.wire.messages import MessageReader, MessageType

_FIRST_MESSAGES: frozenset[int] = frozenset(
    {
        MessageType.TRACK_STATUS,
        MessageType.SUBSCRIBE,
        MessageType.PUBLISH,
        MessageType.FETCH,
        MessageType.PUBLISH_NAMESPACE,
        MessageType.SUBSCRIBE_NAMESPACE,
        MessageType.SUBSCRIBE_TRACKS,
    }
)


class Opening(NamedTuple):
    """The first message of a stream, and what came after it."""

    message_type: int
    body: bytes
    reader: MessageReader


class Openings:
    """Reads first messages, and throws away what still comes on streams that are given up."""

    def __init__(self, *, is_client: bool) -> None:
        self._is_client = is_client
        self._readers: dict[int, MessageReader] = {}
        self._streams = UsedIds(1 if is_client else 0, 4)
        self._draining: set[int] = set()

    @property
    def waiting(self) -> int:
        """Streams that are remembered here."""
        return len(self._readers) + len(self._draining)

    def receive(self, stream_id: int, data: bytes, fin: bool) -> Opening | None:
        """Takes octets of a stream without a request. Raises ProtocolViolation."""
        if stream_id in self._draining or not self._is_peers(stream_id):
            if fin:
                self._draining.discard(stream_id)
            return None
        reader = self._readers.get(stream_id)
        if reader is None:
            self._streams.take(stream_id)
            reader = self._readers[stream_id] = MessageReader()
        reader.feed(data)
        framed = reader.next()
        if framed is None:
            if fin:
                raise ProtocolViolation("FIN before the first message of a request")
            return None
        del self._readers[stream_id]
        if framed[0] not in _FIRST_MESSAGES:
            raise ProtocolViolation(f"a request stream begins with message 0x{framed[0]:x}")
        return Opening(*framed, reader)

    @property
    def begun(self) -> frozenset[int]:
        """Streams whose first message is not whole."""
        return frozenset(self._readers)

    def give_up(self, stream_id: int) -> bool:
        """Waits for the rest of a first message no longer. False where it is whole, or the stream is gone."""
        if self._readers.pop(stream_id, None) is None:
            return False
        self.drain(stream_id)
        return True

    def drain(self, stream_id: int) -> None:
        """Whatever still comes on a stream is of no interest."""
        self._draining.add(stream_id)

    def reset(self, stream_id: int) -> None:
        """The peer gave a stream up."""
        self._readers.pop(stream_id, None)
        self._draining.discard(stream_id)

    def stopped(self, stream_id: int) -> None:
        """The peer wants no answer on a stream: a cancellation that overtook its request."""
        was_opening = self._readers.pop(stream_id, None) is not None
        if was_opening or (self._is_peers(stream_id) and self._streams.take(stream_id)):
            self.drain(stream_id)

    def _is_peers(self, stream_id: int) -> bool:
        return (stream_id & 1 == 0) != self._is_client
