"""All that this package uses of aioquic 1.7 without it being public, behind names of ours.

`missing` tells what a version of the library lacks; its test fails when that is not nothing. What only makes the
library faster (`tune`) is left out where it cannot be applied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from typing import Any
from weakref import WeakSet

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import K_MINIMUM_WINDOW, register_congestion_control
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.connection import QuicConnection, QuicConnectionError, QuicConnectionState
from aioquic.quic.crypto import CryptoError  # type: ignore[attr-defined]
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived
from aioquic.quic.packet_builder import (
    QuicPacketBuilder,
    QuicPacketBuilderStop,
    QuicSentPacket,
)
from aioquic.quic.recovery import QuicPacketPacer, QuicPacketSpace
from aioquic.quic.stream import FinalSizeError, QuicStream, StreamFinishedError
from aioquic.tls import Alert
from cryptography.exceptions import InvalidSignature, InvalidTag
from OpenSSL.crypto import Error as OpenSSLError
from service_identity import CertificateError, VerificationError

from moqt.config import MIB, TransportConfig
from moqt.quic.base import request_share
from moqt.quic.datagram_size import SMALLEST_DATAGRAM
from moqt.quic.pem import CERTIFICATE_FAULTS

# Without a handler of its own the library's warnings go to standard error of programs that set up no logging.
logging.getLogger("quic").addHandler(logging.NullHandler())

CONGESTION_CONTROL = "reno-capped"

JOINED = 256 << 10
"""What comes of one stream in succession is joined up to this size: one call to the application, not many. More would
only leave the processor's cache before it is used."""

LIBRARY_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    LookupError,
    OSError,
    RuntimeError,
    Alert,
    CryptoError,
    FinalSizeError,
    QuicConnectionError,
    QuicPacketBuilderStop,
    StreamFinishedError,
    CertificateError,
    InvalidSignature,
    InvalidTag,
    OpenSSLError,
    VerificationError,
    *CERTIFICATE_FAULTS,
)
"""What the library and those it uses may let out when a peer sends what they did not foresee."""

ATTRIBUTES = (
    "_close_event",
    "_events",
    "_get_or_create_stream_for_send",
    "_is_client",
    "_local_max_data",
    "_local_max_streams_bidi",
    "_local_max_streams_uni",
    "_loss",
    "_max_datagram_size",
    "_remote_max_data",
    "_remote_max_data_used",
    "_remote_max_stream_data_uni",
    "_remote_max_streams_bidi",
    "_remote_max_streams_uni",
    "_state",
    "_streams",
    "_streams_queue",
    "_write_connection_limits",
    "_write_stream_frame",
    "_write_stream_limits",
)
LIMIT_ATTRIBUTES = ("sent", "used", "value")
STREAM_ATTRIBUTES = (
    "is_blocked",
    "max_stream_data_local",
    "max_stream_data_local_sent",
    "max_stream_data_remote",
    "receiver",
    "sender",
)
SENDER_ATTRIBUTES = (
    "_buffer_stop",
    "_pending_eof",
    "buffer_is_empty",
    "highest_offset",
    "next_offset",
    "reset_pending",
)
RECEIVER_ATTRIBUTES = ("highest_offset", "is_finished", "starting_offset", "stop_pending")
PACER_ATTRIBUTES = ("bucket_max", "bucket_time", "packet_time", "update_bucket", "update_rate")


class CappedReno(RenoCongestionControl):
    """Reno with a bounded window: what is in flight costs time for each packet and gains nothing on short
    paths, and packet numbers of two octets allow 32768 packets."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self._cap = _largest_window(max_datagram_size)
        self._granted = _initial_window(max_datagram_size)
        self.large_losses = 0
        """Times that large packets were lost since one was acknowledged."""

    def resize(self, max_datagram_size: int) -> None:
        """Datagrams have another size from now on. As long as nothing was lost, the initial window is reckoned anew
        (RFC 9002 section 7.2)."""
        gain = _initial_window(max_datagram_size) - self._granted
        if self.ssthresh is None and gain > 0:
            self._granted += gain
            self.congestion_window += gain
        self._max_datagram_size = max_datagram_size
        self._cap = _largest_window(max_datagram_size)
        least = K_MINIMUM_WINDOW * max_datagram_size
        self.congestion_window = min(max(self.congestion_window, least), self._cap)
        self.large_losses = 0

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        """Grows the window as Reno does, up to the cap."""
        super().on_packet_acked(now=now, packet=packet)
        self.congestion_window = min(self.congestion_window, self._cap)
        if packet.sent_bytes > SMALLEST_DATAGRAM:
            self.large_losses = 0

    def on_octets_acked(self, octets: int, growth: int, largest: int) -> None:
        """The same for many packets at once, of `octets` and up to `largest`. Those of them sent after the last
        congestion event, `growth`, make the window grow, never further than one by one."""
        self.bytes_in_flight -= octets
        if largest > SMALLEST_DATAGRAM:
            self.large_losses = 0
        if self.ssthresh is None:
            slow = growth
        else:
            slow = min(growth, max(0, self.ssthresh - self.congestion_window))
        self.congestion_window += slow
        self._congestion_stash += growth - slow
        steps = self._congestion_stash // self.congestion_window
        if steps:
            self._congestion_stash -= steps * self.congestion_window
            self.congestion_window += steps * self._max_datagram_size
        self.congestion_window = min(self.congestion_window, self._cap)

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Shrinks the window as Reno does."""
        packets = list(packets)
        self._count_large(packets)
        super().on_packets_lost(now=now, packets=packets)

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        """Takes out of flight what is sent again without being known to be lost."""
        packets = list(packets)
        self._count_large(packets)
        super().on_packets_expired(packets=packets)

    def _count_large(self, packets: list[QuicSentPacket]) -> None:
        if any(packet.sent_bytes > SMALLEST_DATAGRAM for packet in packets):
            self.large_losses += 1


def _initial_window(max_datagram_size: int) -> int:
    return min(10 * max_datagram_size, max(14720, 2 * max_datagram_size))


def _largest_window(max_datagram_size: int) -> int:
    return MIB if max_datagram_size < 8192 else 2 * MIB


register_congestion_control(CONGESTION_CONTROL, CappedReno)


class SoftPacer(QuicPacketPacer):
    """Paces at 1.25 times cwnd/RTT in bursts of up to 4 ms and asks for no timer finer than 1 ms, the
    resolution of event loops. The library's pacer spins on such a clock."""

    GAIN = 1.25
    BURST = 0.004
    TICK = 0.001

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Sets the time one packet takes and how far the bucket fills."""
        size = self._max_datagram_size
        rate = self.GAIN * congestion_window / max(smoothed_rtt, self.TICK)
        self.packet_time = max(1e-6, min(size / rate, 1.0))
        self.bucket_max = max(16 * size, min(congestion_window, rate * self.BURST)) / rate
        self.bucket_time = min(self.bucket_time, self.bucket_max)

    def next_send_time(self, now: float) -> float | None:  # type: ignore[override]
        """None if a packet may go now."""
        if self.packet_time is None:
            return None
        self.update_bucket(now=now)
        return now + max(self.packet_time, self.TICK) if self.bucket_time <= 0 else None


class CreditConnection(QuicConnection):
    """A QuicConnection that grants what its application allows.

    MAX_DATA follows what was consumed. MAX_STREAM_DATA follows what arrived in order, so that one stream's gaps
    hold one window at the most. The library's own rule doubles both for ever.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._consumed = 0
        self._share: int | None = None
        self._refused: WeakSet[QuicStream] = WeakSet()

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        limit = self._local_max_data
        wanted = self._consumed + self._configuration.max_data
        if wanted - limit.value >= self._quarter_window:
            limit.value = wanted
        used, limit.used = limit.used, 0
        try:
            super()._write_connection_limits(builder=builder, space=space)
        finally:
            limit.used = used

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        receiver = stream.receiver
        if receiver.is_finished:
            return
        window = self._configuration.max_stream_data
        wanted = receiver.starting_offset() + window
        if wanted - stream.max_stream_data_local >= max(1, window // 4):
            stream.max_stream_data_local = wanted
        if stream.max_stream_data_local_sent == stream.max_stream_data_local:
            return
        highest, receiver.highest_offset = receiver.highest_offset, 0
        try:
            super()._write_stream_limits(builder=builder, space=space, stream=stream)
        finally:
            receiver.highest_offset = highest

    def next_event(self) -> QuicEvent | None:
        """The library's next event; what successive packets bring of one stream comes as one."""
        event = super().next_event()
        if not isinstance(event, StreamDataReceived):
            return event
        waiting, stream_id, fin = self._events, event.stream_id, event.end_stream
        pieces, size = [event.data], len(event.data)
        while waiting and not fin and size < JOINED:
            following = waiting[0]
            if not isinstance(following, StreamDataReceived) or following.stream_id != stream_id:
                break
            waiting.popleft()
            pieces.append(following.data)
            size, fin = size + len(following.data), following.end_stream
        if len(pieces) == 1:
            return event
        return StreamDataReceived(data=b"".join(pieces), end_stream=fin, stream_id=stream_id)

    @property
    def _quarter_window(self) -> int:
        return max(1, self._configuration.max_data // 4)

    def consume(self, octets: int) -> bool:
        """Counts octets as used up; True when the peer is due an update."""
        self._consumed += octets
        wanted = self._consumed + self._configuration.max_data
        return bool(wanted - self._local_max_data.value >= self._quarter_window)

    def grant_streams(self, config: TransportConfig) -> None:
        """Sets how many streams the peer may open; before the handshake only."""
        for limit, value in (
            (self._local_max_streams_uni, config.max_streams_uni),
            (self._local_max_streams_bidi, config.max_streams_bidi),
        ):
            limit.value = limit.sent = value

    def tune(self) -> None:
        """Replaces the pacer; a new one learns the rate with the next RTT sample."""
        old = getattr(self._loss, "_pacer", None)
        if isinstance(old, QuicPacketPacer):
            self._loss._pacer = SoftPacer(max_datagram_size=self._max_datagram_size)

    def next_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID, None beyond what the peer allows."""
        allowed = self._remote_max_streams_bidi if bidirectional else self._remote_max_streams_uni
        stream_id = self.get_next_available_stream_id(is_unidirectional=not bidirectional)
        return stream_id if stream_id // 4 < allowed else None

    def data_credit(self) -> int:
        """Octets of new stream data that the peer takes, less the share that requests keep."""
        if self._share is None and self._remote_max_data:
            self._share = request_share(self._remote_max_data)
        return self._remote_max_data - self._remote_max_data_used - (self._share or 0)

    def sent_octets(self) -> int:
        """New octets of stream data that went into packets."""
        return self._remote_max_data_used

    def abandon(self, stream_id: int) -> int:
        """Octets of a reset stream that will never go into a packet; counted once."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        octets = stream.sender._buffer_stop - stream.sender.highest_offset
        stream.sender._buffer_stop = stream.sender.highest_offset
        return octets

    def refuse(self, stream_id: int) -> bool:
        """True when the peer's STOP_SENDING is its first for this stream; packets are repeated."""
        stream = self._streams.get(stream_id)
        if stream is None or stream in self._refused:
            return False
        self._refused.add(stream)
        return True

    def undelivered(self, stream_id: int) -> int:
        """Octets that count against MAX_DATA though a reset keeps them from the application."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        return stream.receiver.highest_offset - stream.receiver.starting_offset()

    def is_receiving(self, stream_id: int) -> bool:
        """Whether more may come on this stream."""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.receiver.is_finished

    @property
    def close_event(self) -> ConnectionTerminated | None:
        """Why the connection is ending, long before the library's own event says so."""
        return self._close_event

    @property
    def is_remote(self) -> bool:
        """Whether it was the peer that closed."""
        return self._state is QuicConnectionState.DRAINING

    @property
    def was_heard(self) -> bool:
        """Whether a packet of the peer was understood."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT


@cache
def missing() -> tuple[str, ...]:
    """Names of what this version of the library should have and lacks."""
    return lacking(QuicConnection(configuration=QuicConfiguration()))


def lacking(quic: QuicConnection) -> tuple[str, ...]:
    """Names of what `quic` should have and lacks."""
    stream = QuicStream(stream_id=0)
    checks: tuple[tuple[object, str, tuple[str, ...]], ...] = (
        (quic, "QuicConnection", ATTRIBUTES),
        (getattr(quic, "_local_max_data", None), "Limit", LIMIT_ATTRIBUTES),
        (stream, "QuicStream", STREAM_ATTRIBUTES),
        (stream.sender, "QuicStreamSender", SENDER_ATTRIBUTES),
        (stream.receiver, "QuicStreamReceiver", RECEIVER_ATTRIBUTES),
        (getattr(getattr(quic, "_loss", None), "_pacer", None), "_pacer", PACER_ATTRIBUTES),
    )
    return tuple(
        f"{name}.{attribute}"
        for thing, name, attributes in checks
        for attribute in absent(thing, attributes)
    )


def absent(thing: object, attributes: tuple[str, ...]) -> list[str]:
    """Those of `attributes` that `thing` does not have."""
    return [attribute for attribute in attributes if not hasattr(thing, attribute)]
