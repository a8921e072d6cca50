"""A connection's path: the size of its datagrams, what it holds, and keys that are renewed in time."""

from __future__ import annotations

import logging
from typing import Any

from aioquic.quic.connection import END_STATES
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder
from aioquic.tls import Epoch

from moqt.config import TransportConfig
from moqt.quic.aioquic_clients import ClientCheck, shown
from moqt.quic.aioquic_private import CappedReno
from moqt.quic.aioquic_turns import TurnConnection
from moqt.quic.datagram_size import (
    LARGEST_DATAGRAM,
    SMALLEST_DATAGRAM,
    USUAL_DATAGRAM,
    SizeSearch,
    smaller_than,
)
from moqt.quic.udp import Address, Datagrams, largest_payload

PACKETS_PER_KEY = 1 << 20
"""An eighth of what AES-GCM may protect with one key (RFC 9001 section 6.6): an update costs next to nothing,
and what large transfers do every gigabyte or so is known to work."""

_log = logging.getLogger(__name__)

BLACK_HOLE = 3
"""Times that large packets were lost, with none acknowledged in between, until the path is taken to swallow them."""


class PathConnection(TurnConnection):
    """A connection whose datagrams grow as far as its path carries them."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._search = SizeSearch()
        self._largest = SMALLEST_DATAGRAM
        self._sized_for: Address = None
        self._key_phase = 0
        self._key_since = 0
        self.client_check: ClientCheck | None = None
        """Set before the handshake by servers that ask who the client is."""

    def set_up(self, config: TransportConfig) -> None:
        """Applies what the library has no settings for; before the handshake only."""
        self._largest = config.datagram_size or LARGEST_DATAGRAM
        self.grant_streams(config)
        self.tune()

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if self.client_check is not None:
            self.client_check.watch(self.tls)

    @property
    def peer_certificate(self) -> bytes | None:
        """DER of the client's certificate where it was asked for and checked."""
        return None if self.client_check is None else shown(self.tls)

    def receive_datagrams(self, datagrams: Datagrams, now: float) -> None:
        """Takes a batch in."""
        for data, address in datagrams:
            self.receive_datagram(bytes(data), address, now)

    def datagrams_to_send(self, now: float) -> Datagrams:  # type: ignore[override]
        """What is to be sent now, a probe of the path included."""
        self._renew_keys()
        datagrams: Datagrams = [*super().datagrams_to_send(now)]
        if self._largest > SMALLEST_DATAGRAM:
            datagrams += self._probe_size(now)
        return datagrams

    def bandwidth_delay(self) -> int | None:
        """Octets under way when the path is in full use and nothing queues; None before the first round trip."""
        loss = self._loss
        if not loss._rtt_initialized:
            return None
        without_queue = loss._rtt_min / max(loss._rtt_smoothed, loss._rtt_min)
        return int(loss.congestion_window * without_queue)

    # Keys.

    def _renew_keys(self) -> None:
        """Asks for new keys long before the old ones have protected all they may."""
        if self._packet_number - self._key_since < PACKETS_PER_KEY:
            return
        phase = self._cryptos[Epoch.ONE_RTT].send.key_phase
        self._key_since = self._packet_number
        if phase == self._key_phase:
            self._key_phase = 1 - phase
            self.request_key_update()
            _log.info("asked for new keys after %d packets", self._packet_number)
        else:
            self._key_phase = phase  # the peer was first

    # Datagram size.

    def shrink_datagrams(self) -> None:
        """A datagram was larger than the path allows: back to the smallest, and a search below what it was."""
        too_large = self._search.largest_sent
        if too_large > SMALLEST_DATAGRAM:
            self._largest = min(self._largest, smaller_than(too_large))
            self._search.begin(SMALLEST_DATAGRAM)
            self._sized_for = None
            self._resize(SMALLEST_DATAGRAM)

    def _probe_size(self, now: float) -> Datagrams:
        if (
            not self._handshake_confirmed
            or self._state in END_STATES
            or self._close_pending
            or not self._loss._rtt_initialized
        ):
            return []
        path = self._network_paths[0]
        if path.addr != self._sized_for or self._is_black_hole():
            self._begin_search(path.addr)
        size = self._search.probe(now) if path.is_validated else None
        return [] if size is None else self._build_probe(size, now)

    def _is_black_hole(self) -> bool:
        control = self._loss._cc
        return isinstance(control, CappedReno) and control.large_losses >= BLACK_HOLE

    def _begin_search(self, address: Address) -> None:
        self._sized_for = address
        self._search.begin(min(self._largest, largest_payload(address) or USUAL_DATAGRAM))
        self._resize(SMALLEST_DATAGRAM)

    def _build_probe(self, size: int, now: float) -> Datagrams:
        """One packet of PING and PADDING. Its loss says nothing about congestion (RFC 9000 section 14.4), so it does
        not count as in flight."""
        builder = QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=self._is_client,
            max_datagram_size=size,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            quic_logger=self._quic_logger,
            spin_bit=self._spin_bit,
            version=self._version,  # type: ignore[arg-type]  # known since the handshake
        )
        builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[Epoch.ONE_RTT])
        buffer = builder.start_frame(
            QuicFrameType.PING, handler=self._on_probe_delivery, handler_args=(size,)
        )
        buffer.push_bytes(bytes(builder.remaining_buffer_space))
        assert builder._packet is not None
        builder._packet.in_flight = False
        path = self._network_paths[0]
        cid = self._peer_cid.cid
        return [*self._flush_builder(builder=builder, network_path=path, peer_cid=cid, now=now)]

    def _on_probe_delivery(self, delivery: QuicDeliveryState, size: int) -> None:
        if self._search.answered(size, delivered=delivery is QuicDeliveryState.ACKED):
            self._resize(size)

    def _resize(self, size: int) -> None:
        """Everything that reckons in datagrams hears of their size."""
        self._max_datagram_size = size
        control, pacer = self._loss._cc, self._loss._pacer
        if isinstance(control, CappedReno):
            control.resize(size)
        if pacer is not None:
            pacer._max_datagram_size = size
            if pacer.packet_time is not None:
                pacer.update_rate(
                    congestion_window=control.congestion_window,
                    smoothed_rtt=self._loss._rtt_smoothed,
                )
