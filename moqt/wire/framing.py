"""Framing of control messages: Message Type (vi64), Length (16 bits), body."""

from __future__ import annotations

from moqt.wire.fields import MAX_MESSAGE_OCTETS
from moqt.wire.primitives import NeedMoreData, Reader, encode_vi64


def frame(message_type: int, body: bytes) -> bytes:
    """A framed message. ValueError when the body is longer than its Length can say."""
    if len(body) > MAX_MESSAGE_OCTETS:
        raise ValueError(f"message body of {len(body)} octets, at most 65535 allowed")
    return encode_vi64(message_type) + len(body).to_bytes(2, "big") + body


class MessageReader:
    """Cuts a stream of octets into messages. Holds what was fed and not yet taken by `next`."""

    __slots__ = ("_buffer", "_position")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0

    def feed(self, data: bytes) -> None:
        """Adds octets of the stream, cut anywhere."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next(self) -> tuple[int, bytes] | None:
        """Type and body of the next complete message; None when more octets are needed."""
        # The header is read anew each time; it is at most 11 octets.
        reader = Reader(self._buffer, self._position)
        try:
            message_type = reader.vi64()
            body = reader.take(reader.u16())
        except NeedMoreData:
            return None
        self._position = reader.position
        return message_type, body

    @property
    def pending(self) -> bool:
        """Whether a part of a message is held, or a whole one that was not taken."""
        return self._position < len(self._buffer)
