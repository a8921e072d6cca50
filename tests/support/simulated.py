"""Two aioquic connections joined by a simulated link, with a clock of their own: the same seed, the same run.

An end is any of the library's class or ours. What arrives at one moment is one batch, as a socket would hand it over.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, cast

from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionState
from aioquic.quic.logger import QuicLogger
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.tls import CipherSuite

from moqt.config import KIB, TransportConfig
from moqt.quic.aioquic_path import PathConnection
from moqt.quic.aioquic_private import CONGESTION_CONTROL
from moqt.quic.bulk import BulkConnection
from moqt.quic.bulk_send import BulkSending
from moqt.quic.udp import Datagrams

STOCK, PLAIN, BULK = QuicConnection, PathConnection, BulkConnection
CLIENT, SERVER, ELSEWHERE = ("client", 1), ("server", 1), ("client", 2)
WATERMARK = 64 * KIB
PIECE = 10_000


@dataclass(kw_only=True)
class Weather:
    """What the link does to datagrams."""

    seed: int = 0
    delay: float = 0.01
    loss: float = 0.0
    duplicates: float = 0.0
    reordering: float = 0.0
    """Share of datagrams that are late by up to two delays."""
    corruption: float = 0.0
    limit: int = 1 << 16
    """Larger datagrams vanish."""


class End:
    """One end: a connection, what it is to send and what it got."""

    def __init__(self, quic: QuicConnection, name: tuple[str, int]) -> None:
        self.quic = quic
        self.name = name
        self.queue: list[tuple[int, bytes]] = []
        """Streams to send one after another, by ID."""
        self.sent = 0
        self.data: dict[int, bytearray] = {}
        self.finished: list[int] = []
        self.resets: list[tuple[int, int]] = []
        self.stops: list[tuple[int, int]] = []
        self.ended: events.ConnectionTerminated | None = None
        self.consumes = True
        self.largest = 0
        """Datagram sent."""
        self.on_event: Callable[[events.QuicEvent], None] = lambda _: None
        self.written = 0
        """Octets handed to the connection."""

    def write(self, stream_id: int, content: bytes) -> None:
        """Queues a stream."""
        self.queue.append((stream_id, content))

    def pump(self) -> None:
        """Feeds the connection as a scheduler does: little at a time."""
        while self.queue and self.written - self.quic._remote_max_data_used < WATERMARK:
            stream_id, content = self.queue[0]
            stop = min(self.sent + PIECE, len(content))
            piece = memoryview(content)[self.sent : stop]
            over = stop == len(content)
            try:
                self.quic.send_stream_data(stream_id, cast(bytes, piece), over)
            except (ValueError, RuntimeError):
                over = True  # it was reset meanwhile
            else:
                self.written += len(piece)
            self.sent = stop
            if over:
                self.queue.pop(0)
                self.sent = 0

    def reset(self, stream_id: int, code: int) -> None:
        """Gives a stream up."""
        self.quic.reset_stream(stream_id, code)
        self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        """What was written and will never be sent counts no more."""
        if isinstance(self.quic, PathConnection):
            self.written -= self.quic.abandon(stream_id)

    def receive(self, batch: Datagrams, now: float) -> None:
        """Takes a batch in."""
        if isinstance(self.quic, PathConnection):
            self.quic.receive_datagrams(batch, now)
        else:
            for data, address in batch:
                self.quic.receive_datagram(bytes(data), address, now)

    def take_events(self) -> None:
        """Notes what happened."""
        while (event := self.quic.next_event()) is not None:
            match event:
                case events.StreamDataReceived(data=data, end_stream=fin, stream_id=stream_id):
                    self.data.setdefault(stream_id, bytearray()).extend(data)
                    if fin:
                        self.finished.append(stream_id)
                    if self.consumes and isinstance(self.quic, PathConnection):
                        self.quic.consume(len(data))
                case events.StreamReset(stream_id=stream_id, error_code=code):
                    self.resets.append((stream_id, code))
                case events.StopSendingReceived(stream_id=stream_id, error_code=code):
                    self.stops.append((stream_id, code))
                    self._forget(stream_id)
                case events.ConnectionTerminated():
                    self.ended = event
            self.on_event(event)


@dataclass(order=True)
class _Arrival:
    at: float
    order: int
    to: End = field(compare=False)
    data: bytes = field(compare=False)
    source: Any = field(compare=False)


class Simulation:
    """A client and a server over one link."""

    def __init__(
        self,
        certificates: Path,
        *,
        client: type[QuicConnection] = BULK,
        server: type[QuicConnection] = BULK,
        weather: Weather | None = None,
        config: TransportConfig = TransportConfig(datagram_size=1200),  # noqa: B008 - frozen
        ciphers: list[CipherSuite] | None = None,
        logger: QuicLogger | None = None,
    ) -> None:
        """`logger` is the client's; one that has it does nothing in bulk."""
        self.now = 1000.0
        self.weather = weather or Weather()
        self.dice = random.Random(self.weather.seed)
        self.client_address: Any = CLIENT
        self.mangle: Callable[[End, Datagrams], Datagrams] = lambda _, datagrams: datagrams
        self._order = count()
        self._under_way: list[_Arrival] = []
        near = _configuration(client, config, is_client=True, ciphers=ciphers)
        near.load_verify_locations(cafile=str(certificates / "ca.pem"))
        near.server_name = "localhost"
        near.quic_logger = logger
        self.client = End(_build(client, config, configuration=near), CLIENT)
        far = _configuration(server, config, is_client=False, ciphers=ciphers)
        far.load_cert_chain(certificates / "server.pem", certificates / "server-key.pem")
        cid = self.client.quic.original_destination_connection_id
        arguments = {"configuration": far, "original_destination_connection_id": cid}
        self.server = End(_build(server, config, **arguments), SERVER)
        self.ends = (self.client, self.server)
        self.client.quic.connect(SERVER, now=self.now)
        self._send(self.client)
        self.run(lambda: all(end.quic._handshake_confirmed for end in self.ends))

    def run(self, until: Callable[[], bool], *, limit: float = 120.0) -> None:
        """Lets simulated time pass until the condition holds; not reaching it within `limit` seconds fails."""
        deadline = self.now + limit
        while not until():
            assert self._step(), "nothing will ever happen again"
            assert self.now < deadline, "too late"

    def settle(self, seconds: float = 5.0) -> None:
        """Lets what is under way arrive and be acknowledged."""
        deadline = self.now + seconds
        while self._next() < deadline and self._step():
            pass
        self.now = max(self.now, deadline)

    def kick(self, end: End) -> None:
        """Lets an end send what its application asked for."""
        self._send(end)

    def _next(self) -> float:
        times = [timer for end in self.ends if (timer := self._timer(end)) is not None]
        return min(times + [arrival.at for arrival in self._under_way[:1]], default=float("inf"))

    def _timer(self, end: End) -> float | None:
        is_over = end.quic._state is QuicConnectionState.TERMINATED
        return None if is_over else end.quic.get_timer()

    def _step(self) -> bool:
        at = self._next()
        if at == float("inf"):
            return False
        # Clocks move on; and the library's timers are due a rounding error before it finds them due.
        self.now = max(self.now + 1e-6, at)
        for end in self.ends:
            batch: Datagrams = []
            others = []
            while self._under_way and self._under_way[0].at <= self.now:
                arrival = heapq.heappop(self._under_way)
                if arrival.to is end:
                    batch.append((memoryview(arrival.data), arrival.source))
                else:
                    others.append(arrival)
            for arrival in others:
                heapq.heappush(self._under_way, arrival)
            timer = self._timer(end)
            if batch:
                end.receive(self.mangle(end, batch), self.now)
            if timer is not None and timer <= self.now:
                end.quic.handle_timer(self.now)
            if batch or (timer is not None and timer <= self.now):
                self._send(end)
        return True

    def _send(self, end: End) -> None:
        """As the backend does: events, feeding, sending, until there is no more to feed."""
        while True:
            end.take_events()
            end.pump()
            before = end.quic._loss.bytes_in_flight
            datagrams = end.quic.datagrams_to_send(self.now) if end.quic._network_paths else []
            check_books(end.quic, before)
            for data, address in datagrams:
                end.largest = max(end.largest, len(data))
                self._carry(end, bytes(data), address)
            end.take_events()
            if not (datagrams and end.queue):
                return
            if end.written - end.quic._remote_max_data_used > 0:
                return

    def _carry(self, source: End, data: bytes, address: Any) -> None:
        weather, dice = self.weather, self.dice
        to = self.server if source is self.client else self.client
        if to is self.client and address != self.client_address:
            return  # nobody is there any more
        if dice.random() < weather.loss or len(data) > weather.limit:
            return
        copies = 2 if dice.random() < weather.duplicates else 1
        for _ in range(copies):
            late = dice.random() * 2 * weather.delay if dice.random() < weather.reordering else 0.0
            if dice.random() < weather.corruption:
                at = dice.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
            name = self.client_address if source is self.client else SERVER
            # Sockets hand over what came meanwhile: arrivals are rounded to a tick.
            at_time = round((self.now + weather.delay + late) * 1000) / 1000
            arrival = _Arrival(max(at_time, self.now + 1e-6), next(self._order), to, data, name)
            heapq.heappush(self._under_way, arrival)


def check_books(quic: QuicConnection, before: int) -> None:
    """What holds at every moment: what is in flight adds up and fits the window, limits are kept."""
    control = quic._loss._cc
    spaces: list[QuicPacketSpace] = quic._loss.spaces
    packets = [packet for space in spaces for packet in space.sent_packets.values()]
    assert control.bytes_in_flight == sum(p.sent_bytes for p in packets if p.in_flight)
    for space in spaces:
        eliciting = sum(packet.is_ack_eliciting for packet in space.sent_packets.values())
        assert space.ack_eliciting_in_flight == eliciting
        assert list(space.sent_packets) == sorted(space.sent_packets)
    probe = quic._max_datagram_size
    assert 0 <= control.bytes_in_flight <= max(control.congestion_window, before) + probe
    assert quic._remote_max_data_used <= quic._remote_max_data
    assert quic._local_max_data.used <= quic._local_max_data.value
    highest = 0
    for stream in quic._streams.values():
        assert stream.receiver.highest_offset <= stream.max_stream_data_local
        assert stream.sender.highest_offset <= stream.max_stream_data_remote
        highest += stream.sender.highest_offset
    assert highest <= quic._remote_max_data_used
    pacer = quic._loss._pacer
    assert 0 <= pacer.bucket_time <= pacer.bucket_max


def is_flying(quic: QuicConnection) -> bool:
    """Whether the bulk path sends at present."""
    return isinstance(quic, BulkSending) and quic._may_fly()


def _build(kind: type[QuicConnection], config: TransportConfig, **arguments: Any) -> QuicConnection:
    quic = kind(**arguments)
    if isinstance(quic, PathConnection):
        quic.set_up(config)
    return quic


def _configuration(
    kind: type[QuicConnection],
    config: TransportConfig,
    *,
    is_client: bool,
    ciphers: list[CipherSuite] | None,
) -> QuicConfiguration:
    return QuicConfiguration(
        alpn_protocols=["x"],
        cipher_suites=ciphers,
        congestion_control_algorithm=CONGESTION_CONTROL
        if issubclass(kind, PathConnection)
        else "reno",
        idle_timeout=config.idle_timeout,
        is_client=is_client,
        max_data=config.max_data,
        max_stream_data=config.max_stream_data,
    )
