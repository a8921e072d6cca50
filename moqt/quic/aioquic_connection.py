"""A connection over aioquic: how streams are written, given up and read; the rest is in `driving`."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from aioquic.quic import events

from moqt.config import TransportConfig
from moqt.quic.aioquic_path import PathConnection
from moqt.quic.aioquic_private import LIBRARY_FAULTS
from moqt.quic.base import HandlerFactory, Octets
from moqt.quic.driving import DrivenConnection
from moqt.quic.link import Link


class AioquicConnection(DrivenConnection):
    """A Connection over aioquic."""

    library = "aioquic"
    faults = LIBRARY_FAULTS
    kinds: ClassVar[Any] = events
    _quic: PathConnection

    def __init__(
        self, quic: PathConnection, link: Link, config: TransportConfig, factory: HandlerFactory
    ) -> None:
        super().__init__(quic, link, config, factory)
        self._stopped: dict[int, int] = {}
        quic.set_up(config)

    # What the application calls.

    @property
    def peer_certificate(self) -> bytes | None:
        """DER of the client's certificate, which was checked; None where none was asked for."""
        return self._quic.peer_certificate

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        """Puts `data` into the stream's buffer, or refers to it where packets are built in bulk."""
        if self.lost is not None:
            return
        if isinstance(data, memoryview) and data.itemsize != 1:
            data = data.cast("B")
        try:
            self._quic.send_stream_data(stream_id, cast(bytes, data), fin)
        except (ValueError, RuntimeError):
            return  # the stream is finished, reset, stopped or not ours to send on
        self._written += len(data)

    def unsent(self) -> int:
        """Octets written that are in no packet yet."""
        return self._written - self._quic.sent_octets() if self.lost is None else 0

    def data_credit(self) -> int:
        """What the peer's MAX_DATA leaves to data."""
        return self._quic.data_credit() - self.unsent()

    def stream_credit(self, stream_id: int) -> int:
        """What the peer's MAX_STREAM_DATA leaves."""
        return self._quic.stream_credit(stream_id)

    def bandwidth_delay(self) -> int | None:
        """What the path holds."""
        return self._quic.bandwidth_delay()

    def reset(self, stream_id: int, code: int) -> None:
        """Gives up sending."""
        unopened = self._is_unopened(stream_id)
        if self.lost is not None or (
            unopened and stream_id != self.open_stream(bidirectional=not stream_id & 2)
        ):
            return
        try:
            self._quic.reset_stream(stream_id, code)
        except ValueError:
            return  # not ours to send on
        self._written -= self._quic.abandon(stream_id)
        self.flush()

    def stop(self, stream_id: int, code: int) -> None:
        """Asks the peer to give up sending."""
        if (
            self.lost is None
            and stream_id not in self._stopped
            and self._quic.is_receiving(stream_id)
        ):
            self._quic.stop_stream(stream_id, code)
            self._stopped[stream_id] = code
            self.flush()

    def consumed(self, octets: int) -> None:
        """Returns credit; the peer hears of it once a quarter of the window is free."""
        if self.lost is None and self._quic.consume(octets):
            self.flush()

    def _is_unopened(self, stream_id: int) -> bool:
        """Whether this is a stream of ours that nothing was sent on."""
        following = self._quic.get_next_available_stream_id(bool(stream_id & 2))
        return stream_id % 2 != self.is_client and stream_id >= following

    # What the peer does to a stream.

    def _on_stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        if self.lost is not None or self._handler is None:
            return
        if stream_id not in self._stopped:
            self._handler.stream_data(stream_id, data, fin)
            return
        self.consumed(len(data))
        if fin:
            self._handler.stream_reset(stream_id, self._stopped.pop(stream_id))

    def _on_reset(self, stream_id: int) -> None:
        self._stopped.pop(stream_id, None)
        self.consumed(self._quic.undelivered(stream_id))

    def _on_stop(self, stream_id: int) -> bool:
        is_first = self._quic.refuse(stream_id)
        if is_first:
            self._written -= self._quic.abandon(stream_id)
        return is_first
