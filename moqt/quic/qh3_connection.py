"""A connection over qh3: how streams are written, given up and read; the rest is in `driving`."""

from __future__ import annotations

from typing import Any, ClassVar

from qh3.quic import events

from moqt.config import TransportConfig
from moqt.quic.base import HandlerFactory, Octets, Unmeasured
from moqt.quic.driving import DrivenConnection
from moqt.quic.link import Link
from moqt.quic.qh3_private import LIBRARY_FAULTS, PacedConnection
from moqt.quic.qh3_streams import StreamEnds


class Qh3Connection(Unmeasured, DrivenConnection):
    """A Connection over qh3."""

    library = "qh3"
    faults = LIBRARY_FAULTS
    kinds: ClassVar[Any] = events
    _quic: PacedConnection

    def __init__(
        self, quic: PacedConnection, link: Link, config: TransportConfig, factory: HandlerFactory
    ) -> None:
        super().__init__(quic, link, config, factory)
        self._ends = StreamEnds()

    # What the application calls.

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        """Copies `data` into the library's buffer."""
        if (
            self.lost is not None
            or not self._is_usable(stream_id)
            or self._ends.is_given_up(stream_id)
        ):
            return
        try:
            self._quic.send_stream_data(stream_id, data, fin)
        except ValueError:
            return  # the stream is finished, stopped or not ours to send on
        except LIBRARY_FAULTS as fault:
            self._fail(fault)
            return
        self._written += len(data) + fin

    def unsent(self) -> int:
        """Octets written that are in no packet yet."""
        return int(self._quic.get_send_buffer_size()) if self.lost is None else 0

    def reset(self, stream_id: int, code: int) -> None:
        """Gives up sending; the first code counts."""
        if (
            self.lost is not None
            or not self._is_usable(stream_id)
            or self._ends.is_given_up(stream_id)
        ):
            return
        try:
            self._quic.reset_stream(stream_id, code)
        except ValueError:
            return  # not ours to send on, or finished
        self._ends.give_up(stream_id)
        self.flush()

    def stop(self, stream_id: int, code: int) -> None:
        """Asks the peer to give up sending."""
        if self.lost is not None or self._ends.is_stopped(stream_id):
            return
        try:
            self._quic.stop_stream(stream_id, code)
        except ValueError:
            # Either there is nothing to stop, or all of it has arrived and its end is yet to be delivered.
            if not self._ends.is_under_way(stream_id):
                return
        self._ends.stop(stream_id, code)
        self.flush()

    def consumed(self, octets: int) -> None:
        """Returns credit; events that were held back follow."""
        if self.lost is None and self._quic.consume(octets):
            self._advance_soon()

    def _is_usable(self, stream_id: int) -> bool:
        """False for streams of ours that cannot be used yet: the library would skip those before them."""
        if stream_id % 2 == self.is_client:
            return True  # the peer's
        following = self._quic.get_next_available_stream_id(is_unidirectional=bool(stream_id & 2))
        return stream_id < following or (
            stream_id == self.open_stream(bidirectional=not stream_id & 2)
        )

    def _pump(self, now: float, room: bool) -> None:
        """Events that were held back may have made room whatever brought us here."""
        super()._pump(now, True)

    # What the peer does to a stream.

    def _dispatch(self) -> None:
        """Takes the events that were held back as well."""
        try:
            self._quic.resume()
        except LIBRARY_FAULTS as fault:
            self._fail(fault)
        super()._dispatch()

    def _on_stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        self._deliver(stream_id, data, fin)
        self._quic.resume()

    def _deliver(self, stream_id: int, data: bytes, fin: bool) -> None:
        if self.lost is not None or self._handler is None:
            return
        stopped = self._ends.received(stream_id, over=fin)
        if stopped is None:
            self._handler.stream_data(stream_id, data, fin)
            return
        self._quic.consume(len(data))
        if fin:
            self._handler.stream_reset(stream_id, stopped)

    def _on_reset(self, stream_id: int) -> None:
        self._ends.received(stream_id, over=True)

    def _on_stop(self, stream_id: int) -> bool:
        return self._ends.give_up(stream_id)
