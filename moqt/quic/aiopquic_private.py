"""All that this package uses of aiopquic 0.6 without it being public, behind names of ours.

`missing` tells what a version of the library lacks. Its events are taken raw: the public ones tell neither a
closing peer from a connection that timed out, nor which streams are over.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, NamedTuple

from aiopquic._binding._transport import TransportContext
from aiopquic.quic import connection as library
from aiopquic.quic.configuration import QuicConfiguration

CONNECTION_ATTRIBUTES = (
    "_cnx_ptr",
    "_destroy_stream_ctxs",
    "_enqueue_raw",
    "_events",
    "_negotiated_alpn",
    "_release_dgram_ring",
)
ENGINE_ATTRIBUTES = ("_start_transport", "_transport")
TRANSPORT_ATTRIBUTES = (
    "arm_tx_event_ring_drain_pending",
    "drain_rx",
    "eventfd",
    "release_batch",
    "stop",
)
EVENTS = {
    "STREAM_DATA": "data",
    "STREAM_FIN": "fin",
    "STREAM_RESET": "reset",
    "STOP_SENDING": "stop",
    "CLOSE": "close",
    "APP_CLOSE": "application close",
    "READY": "ready",
    "DATAGRAM": "datagram",
    "STREAM_TX_DRAINED": "drained",
    "STREAM_DESTROY": "over",
}
"""The library's names of its raw events, and ours. Other events only concern the library."""

ENGINE_FAULTS = (OSError, RuntimeError, ValueError, MemoryError)
"""What starting the library's thread may raise."""
CALL_FAULTS = (RuntimeError, ValueError, MemoryError)
"""What a call to it may raise."""

# Without a handler of its own the library's warnings go to standard error of programs that set up no logging.
logging.getLogger("aiopquic").addHandler(logging.NullHandler())


class Event(NamedTuple):
    """One raw event of one connection. `connection` identifies it until its close."""

    kind: str
    connection: int
    stream_id: int
    data: memoryview | None
    code: int
    raw: tuple[Any, ...]


class Engine:
    """One network thread of the library with the queue of its events. Raises ENGINE_FAULTS if it cannot start."""

    def __init__(self, configuration: QuicConfiguration, *, port: int = 0) -> None:
        self.configuration = configuration
        self._kinds = {getattr(library, f"_EVT_{name}"): ours for name, ours in EVENTS.items()}
        self._engine = library.QuicEngine(configuration=configuration, create_protocol=None)
        self._engine._start_transport(port=port)
        self._transport = self._engine._transport
        self.fileno = int(self._transport.eventfd)
        """Readable while there are events."""

    def drain(self, most: int) -> list[Event]:
        """Takes up to `most` events; taking a stream's octets is what gives the peer credit for more."""
        return [
            Event(self._kinds.get(raw[0], ""), raw[5], raw[1], raw[2], raw[4], raw)
            for raw in self._transport.drain_rx(most)
        ]

    def release(self) -> None:
        """Frees what the events of the last `drain` refer to."""
        self._transport.release_batch()

    def peer(self, connection: int = 0) -> Peer:
        """The library's side of a connection that the peer began, or that `dial` will."""
        quic = library.QuicConnection(
            configuration=self.configuration, engine=self._engine, cnx_ptr=connection
        )
        return Peer(quic, self._transport)

    def stop(self) -> None:
        """Ends the thread, which takes up to 50 ms. Nothing is sent any more."""
        self._transport.stop()


class Peer:
    """What can be asked of one connection. False from a method means: not now, the queue to the thread is full."""

    def __init__(self, quic: Any, transport: Any) -> None:
        self._quic = quic
        self._transport = transport
        self.fault = ""
        """What kept the library from going on with this connection."""

    def dial(self, host: str, port: int) -> None:
        """Begins a client's handshake with a numeric address."""
        self._quic.connect((host, port))

    def note(self, event: Event) -> None:
        """Lets the library keep its books on an event that is ours to handle."""
        if not self._quic._cnx_ptr and event.kind not in {"close", "application close"}:
            self._quic._cnx_ptr = event.connection
        kind, stream_id, data, is_fin, code, _, context, _ = event.raw
        self._quic._enqueue_raw(kind, stream_id, data, is_fin, code, context)
        self._quic._events.clear()

    @property
    def alpn(self) -> str:
        """What was negotiated."""
        return self._quic._negotiated_alpn(0) or ""

    @property
    def address(self) -> str | None:
        """The peer's numeric host."""
        address = self._quic.peer_address()
        return address and str(address[0])

    def stream_limits(self) -> tuple[int, int]:
        """Bidirectional and unidirectional streams that the peer allowed in its handshake."""
        given = self._quic.peer_transport_parameters or {}
        return given.get("initial_max_streams_bidi", 0), given.get("initial_max_streams_uni", 0)

    def send(self, stream_id: int, data: bytes, fin: bool) -> bool:
        """Queues all of `data` or nothing. Opens the stream if need be."""
        try:
            self._quic.send_stream_data(stream_id, data, end_stream=fin)
        except BufferError:
            return False  # the library tells when there is room
        except CALL_FAULTS as fault:
            return self._fail(fault)
        return True

    def reset(self, stream_id: int, code: int) -> bool:
        """Queues RESET_STREAM."""
        return self._order(self._quic.reset_stream, stream_id, code)

    def stop(self, stream_id: int, code: int) -> bool:
        """Queues STOP_SENDING."""
        return self._order(self._quic.stop_stream, stream_id, code)

    def close(self, code: int) -> bool:
        """Queues CONNECTION_CLOSE with an application code."""
        return self._order(self._quic.close, code)

    def _order(self, method: Any, *arguments: int) -> bool:
        try:
            method(*arguments)
        except BufferError:
            self._transport.arm_tx_event_ring_drain_pending()
            return False
        except CALL_FAULTS as fault:
            return self._fail(fault)
        return True

    def _fail(self, fault: Exception) -> bool:
        self.fault = f"aiopquic failed: {type(fault).__name__}: {fault}"
        return False

    def queued(self, stream_id: int) -> int:
        """Octets of a stream that the thread has not put into packets."""
        return int(self._quic.tx_data_ring_used(stream_id))

    def arm(self, stream_id: int) -> bool:
        """Asks for "drained" when the thread takes more of a stream; False if it took all already."""
        self._quic.set_tx_data_drain_pending(stream_id)
        return self.queued(stream_id) > 0

    def forget(self) -> None:
        """Frees what the library keeps of the streams; after the thread ended."""
        self._quic._destroy_stream_ctxs()
        self._quic._release_dgram_ring()


@cache
def missing() -> tuple[str, ...]:
    """Names of what this version of the library should have and lacks."""
    configuration = QuicConfiguration()
    checks: tuple[tuple[str, object, tuple[str, ...]], ...] = (
        (
            "QuicConnection",
            library.QuicConnection(configuration=configuration),
            CONNECTION_ATTRIBUTES,
        ),
        (
            "QuicEngine",
            library.QuicEngine(configuration=configuration, create_protocol=None),
            ENGINE_ATTRIBUTES,
        ),
        ("TransportContext", TransportContext, TRANSPORT_ATTRIBUTES),
        ("connection", library, tuple(f"_EVT_{name}" for name in EVENTS)),
    )
    return tuple(
        f"{name}.{attribute}"
        for name, thing, attributes in checks
        for attribute in attributes
        if not hasattr(thing, attribute)
    )
