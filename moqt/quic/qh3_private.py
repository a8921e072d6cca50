"""All that this package uses of qh3 2.1 without it being public, behind names of ours.

`missing` tells what a version of the library lacks. The library's core extends the peer's windows as events are
taken from it, and its own driver takes them at once, whatever the application reads. Here they are taken only
while the application keeps up, which ties the windows to it, on clients and servers alike.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any

from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError
from qh3.quic.events import ConnectionTerminated
from qh3.quic.packet import QuicPacketType
from qh3.quic.tls_bridge import QuicTlsBridgeError
from qh3.tls import Alert

from moqt.config import TransportConfig
from moqt.quic.listening import Header
from moqt.quic.udp import Address, Datagrams

try:
    from qh3._hazmat import CryptoError, pull_quic_header
except ImportError as error:  # what is private may go
    raise ImportError(f"this version of qh3 is not supported: {error}") from None

LIBRARY_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    Alert,
    CryptoError,
    QuicConnectionError,
    QuicTlsBridgeError,
)
"""What the library may let out when a peer sends what it did not foresee."""

STUMBLE = "packet builder capacity exhausted"
MAX_STUMBLES = 1000
"""Failures to build a packet, in a row, before a connection counts as broken."""
STUMBLE_PAUSE = 0.002
"""Seconds before sending is tried again after the library failed to build a packet."""
KEY_UPDATE_PACKETS = 1 << 21
"""AES-GCM allows 2^23 packets under one key (RFC 9001 section 6.6)."""

CONNECTION_ATTRIBUTES = ("_close_event", "_core", "_create_core", "_drain_core", "_state")
CORE_ATTRIBUTES = (
    "next_event",
    "poll_transmit",
    "received_authenticated_packet",
    "state",
    "stream_limits",
)


class Windows:
    """How the receive window is split, so that all of it together stays below `max_data`."""

    def __init__(self, config: TransportConfig) -> None:
        self.stream = max(1, min(config.max_stream_data, config.max_data // 4))
        """What the core holds of one stream, and so the most that one event brings."""
        self.core = max(1, config.max_data // 2)
        """What the core holds of all streams."""
        self.ahead = max(1, config.max_data - self.core - self.stream)
        """Octets taken and not consumed at which no further event is taken."""


class PacedCore:
    """Stands before the library's core and holds its events back while the application is behind."""

    def __init__(self, core: Any, ahead: int) -> None:
        self._core = core
        self._limit = ahead
        self._ahead = 0
        self.peer_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    @property
    def is_full(self) -> bool:
        """Whether events are held back; those that tell of an end no longer are."""
        return self._ahead >= self._limit and self._core.state == "connected"

    def next_event(self) -> tuple[Any, ...] | None:
        """The core's next event, None while the application is behind."""
        if self.is_full:
            return None
        event: tuple[Any, ...] | None = self._core.next_event()
        if event is not None:
            if event[0] == "stream_data":
                self._ahead += len(event[2])
            elif event[0] == "peer_closed":
                self.peer_closed = True
        return event

    def consume(self, octets: int) -> bool:
        """Counts octets as used up; True if events that were held back may go on."""
        was_full = self.is_full
        self._ahead = max(0, self._ahead - octets)
        return was_full and not self.is_full


class PacedConnection(QuicConnection):  # type: ignore[misc]
    """A QuicConnection whose windows follow the application."""

    _core: Any

    def __init__(self, *, config: TransportConfig, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._windows = Windows(config)
        self._stumbles = 0
        self._sealed = 0
        self._latest = -inf

    def _never_back(self, now: float) -> float:
        """The library ends a connection whose time goes back. uvloop's does: it runs a timer up to a
        millisecond before the time that it was set for."""
        self._latest = max(self._latest, now)
        return self._latest

    def receive_datagrams(self, datagrams: Datagrams, now: float) -> None:
        """Takes a batch in."""
        for address, group in groupby(datagrams, key=itemgetter(1)):
            octets = [bytes(data) for data, _ in group]
            self.receive_many_datagrams(octets, numeric(address), now)

    def receive_many_datagrams(self, datagrams: list[bytes], addr: Address, now: float) -> None:
        """Like the library's, at a time not before any it has seen."""
        super().receive_many_datagrams(datagrams, addr, self._never_back(now))

    def handle_timer(self, now: float) -> None:
        """Like the library's, at a time not before any it has seen."""
        super().handle_timer(self._never_back(now))

    def _create_core(self, *arguments: Any) -> None:
        super()._create_core(*arguments)
        self._core = PacedCore(self._core, self._windows.ahead)

    def datagrams_to_send(self, now: float) -> Datagrams:
        """Like the library's, but what was built before it stumbled is not thrown away."""
        datagrams: Datagrams = []
        now = self._never_back(now)
        if self._core is None:
            return datagrams
        try:
            while (transmit := self._core.poll_transmit(now)) is not None:
                datagrams.append((transmit[0], transmit[1]))
        except RuntimeError as error:
            self._stumbles = 1 if datagrams else self._stumbles + 1
            if STUMBLE not in str(error) or self._stumbles >= MAX_STUMBLES:
                raise
        else:
            self._stumbles = 0
        self._update_keys(len(datagrams))
        return datagrams

    def _update_keys(self, packets: int) -> None:
        self._sealed += packets
        if self._sealed >= KEY_UPDATE_PACKETS:
            self._sealed = 0
            # Too early, or while an update is under way, the library refuses.
            with suppress(AssertionError, ValueError, QuicConnectionError):
                self.request_key_update()

    @property
    def has_stumbled(self) -> bool:
        """Whether the last attempt to send failed in the library; another one may succeed."""
        return self._stumbles > 0

    def get_timer(self) -> float | None:
        """Like the library's, but it is given a pause after it stumbled."""
        due: float | None = super().get_timer()
        if not self.has_stumbled:
            return due
        again = self._latest + STUMBLE_PAUSE
        return again if due is None else max(due, again)

    def shrink_datagrams(self) -> None:
        """Nothing to do: what was too large for the path was a probe, and counts as lost."""

    def consume(self, octets: int) -> bool:
        """Counts octets as used up; True if there are events to be taken now."""
        return self._core is not None and bool(self._core.consume(octets))

    def resume(self) -> None:
        """Takes the events that were held back."""
        if self._core is not None:
            self._drain_core()

    def next_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID, None beyond what the peer allows."""
        if self._core is None:
            return None
        allowed = self._core.stream_limits[0 if bidirectional else 1]
        stream_id: int = self.get_next_available_stream_id(is_unidirectional=not bidirectional)
        return stream_id if stream_id // 4 < allowed else None

    @property
    def close_event(self) -> ConnectionTerminated | None:
        """Why the connection is ending, long before the library's own event says so."""
        return self._close_event

    @property
    def is_remote(self) -> bool:
        """Whether it was the peer that closed."""
        return self._core is not None and bool(self._core.peer_closed)

    @property
    def was_heard(self) -> bool:
        """Whether a packet of the peer was understood."""
        return self._core is not None and bool(self._core.received_authenticated_packet)


def long_header(data: bytes, id_length: int) -> Header | None:
    """What a packet with a long header says; None for noise."""
    try:
        version, kind, _, destination, source, *_ = pull_quic_header(data, 0, id_length)
    except ValueError:
        return None
    return Header(version or 0, destination, source, kind == QuicPacketType.INITIAL)


def numeric(address: Address) -> Address:
    """An address as the core takes it: without the zone, which the scope ID repeats."""
    host, *rest = address
    return (host.partition("%")[0], *rest)


@cache
def missing() -> tuple[str, ...]:
    """Names of what this version of the library should have and lacks."""
    quic = QuicConnection(configuration=QuicConfiguration())
    lacking = [name for name in CONNECTION_ATTRIBUTES if not hasattr(quic, name)]
    if not lacking:
        quic.configuration.server_name = "localhost"
        quic.connect(("127.0.0.1", 1), 0.0)
        lacking += [f"core.{name}" for name in CORE_ATTRIBUTES if not hasattr(quic._core, name)]
    return tuple(lacking)
