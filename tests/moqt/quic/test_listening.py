"""The listener of every backend that reads its own socket, over a library of three lines and real datagrams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from moqt.quic import listening
from moqt.quic.datagram_size import SMALLEST_DATAGRAM
from moqt.quic.listening import Header, UdpListener
from moqt.quic.udp import Datagrams, prepare
from tests.support.ends import eventually

ID = 4
INITIAL, OTHER, SHORT = 0xC0, 0xE0, 0x40
VERSION = 1


def packet(kind: int, destination: bytes, version: int = VERSION, size: int = 1200) -> bytes:
    """A packet of the library below: long ones name a version and where they come from."""
    head = bytes([kind]) + (bytes([version]) if kind != SHORT else b"")
    return (head + destination + b"from").ljust(size, b".")


class Connection:
    """Notes what a listener does to it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.batches: list[list[bytes]] = []
        self.ends: list[str] = []
        self.fault: Exception | None = None

    def receive(self, datagrams: Datagrams) -> None:
        if self.fault is not None:
            raise self.fault
        self.batches.append([bytes(data) for data, _ in datagrams])

    def close(self, code: int, reason: str = "") -> None:
        self.ends.append(f"closed {code}")

    def abandon(self) -> None:
        self.ends.append("abandoned")
        self._listener.ended(self)

    @property
    def received(self) -> list[bytes]:
        return [data for batch in self.batches for data in batch]


class Listener(UdpListener[Connection]):
    """Over a library whose packets are those of `packet`."""

    def __init__(self, sock: socket.socket) -> None:
        self.made: list[Connection] = []
        super().__init__(sock, id_length=ID)

    def _header(self, data: bytes) -> Header | None:
        if len(data) < 2 + 2 * ID:
            return None
        return Header(data[1], data[2 : 2 + ID], data[6 : 6 + ID], data[0] == INITIAL)

    @property
    def _versions(self) -> list[int]:
        return [VERSION]

    def _offer(self, header: Header) -> bytes:
        return b"only 1, " + header.source

    def _begin(self, destination: bytes) -> tuple[Connection, bytes]:
        self.made.append(Connection(self))
        return self.made[-1], b"own%d" % len(self.made)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    sock = prepare(socket.AF_INET)
    sock.bind(("127.0.0.1", 0))
    one = Listener(sock)
    yield one
    for connection in one.made:
        one.ended(connection)
    one.close()
    await one.wait_closed()


@pytest.fixture
async def client(listener: Listener) -> AsyncIterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(listener.address)
        yield sock


async def settled(listener: Listener, client: socket.socket) -> None:
    """Returns once everything sent so far was looked at: what is sent last makes a connection."""
    before = len(listener.made)
    client.send(packet(INITIAL, b"last"))
    await eventually(lambda: len(listener.made) > before)
    listener.ended(listener.made.pop())


async def test_a_connection_is_found_by_every_id_it_has(
    listener: Listener, client: socket.socket
) -> None:
    first, second = packet(INITIAL, b"aaaa"), packet(INITIAL, b"bbbb")
    client.send(first)
    client.send(second)
    await eventually(lambda: len(listener.made) == 2)
    one, other = listener.made
    listener.issued(one, b"more")
    sent = [packet(SHORT, name, size=50) for name in (b"own1", b"more", b"aaaa")]
    for data in sent:
        client.send(data)
    await eventually(lambda: len(one.received) == 4)
    assert one.received == [first, *sent]
    assert other.received == [second]


async def test_what_one_wake_up_brings_comes_as_one_batch_for_each(
    listener: Listener, client: socket.socket
) -> None:
    for _ in range(3):
        client.send(packet(INITIAL, b"aaaa"))
        client.send(packet(INITIAL, b"bbbb"))
    await eventually(lambda: len(listener.made) == 2)
    assert [[len(batch) for batch in one.batches] for one in listener.made] == [[3], [3]]


async def test_a_connection_that_fails_costs_the_others_nothing(
    listener: Listener, client: socket.socket
) -> None:
    """The loop hears of it, and each of the others gets what one wake-up brought for it."""
    names = (b"aaaa", b"bbbb", b"cccc", b"dddd")
    for name in names:
        client.send(packet(INITIAL, name))
    await eventually(lambda: len(listener.made) == 4)
    faults: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context.get("exception")))
    broken = [ValueError("one"), ValueError("another")]
    listener.made[0].fault, listener.made[2].fault = broken
    for number in (1, 2, 3, 4):
        client.send(packet(SHORT, b"own%d" % number, size=50))
    await eventually(lambda: len(listener.made[3].received) == 2)
    assert len(listener.made[1].received) == 2
    assert faults == broken


async def test_ids_that_were_retired_lead_nowhere(
    listener: Listener, client: socket.socket
) -> None:
    client.send(packet(INITIAL, b"aaaa"))
    await eventually(lambda: bool(listener.made))
    listener.retired(b"own1")
    listener.retired(b"none")
    client.send(packet(SHORT, b"own1"))
    client.send(packet(SHORT, b"aaaa"))
    await settled(listener, client)
    assert listener.made[0].received[1:] == [packet(SHORT, b"aaaa")]


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        packet(INITIAL, b"aaaa")[:5],
        packet(INITIAL, b"aaaa", size=SMALLEST_DATAGRAM - 1),
        packet(INITIAL, b"aaaa", version=0),
        packet(OTHER, b"aaaa"),
        packet(SHORT, b"aaaa"),
    ],
    ids=["nothing", "cut off", "too small", "Version Negotiation", "no Initial", "short header"],
)
async def test_what_begins_no_connection(
    noise: bytes, listener: Listener, client: socket.socket
) -> None:
    client.send(noise)
    await settled(listener, client)
    assert listener.made == []


async def test_another_version_is_answered_with_those_there_are(
    listener: Listener, client: socket.socket
) -> None:
    client.send(packet(INITIAL, b"aaaa", version=2))
    async with asyncio.timeout(30):
        assert await asyncio.get_running_loop().sock_recv(client, 100) == b"only 1, from"
    client.send(packet(INITIAL, b"aaaa", version=2, size=SMALLEST_DATAGRAM - 1))
    await settled(listener, client)
    with pytest.raises(BlockingIOError):
        client.recv(100)


async def test_handshakes_under_way_are_bounded(
    listener: Listener, client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "MAX_HALF_OPEN", 2)
    for name in (b"aaaa", b"bbbb", b"cccc"):
        client.send(packet(INITIAL, name))
    await eventually(lambda: len(listener.made) == 2)
    listener.opened(listener.made[0])
    client.send(packet(INITIAL, b"dddd"))
    await eventually(lambda: len(listener.made) == 3)
    listener.ended(listener.made[1])
    client.send(packet(INITIAL, b"cccc"))
    await eventually(lambda: len(listener.made) == 4)


async def test_it_waits_for_those_that_are_open(listener: Listener, client: socket.socket) -> None:
    client.send(packet(INITIAL, b"aaaa"))
    client.send(packet(INITIAL, b"bbbb"))
    await eventually(lambda: len(listener.made) == 2)
    one, other = listener.made
    listener.opened(one)
    listener.close()
    listener.close()
    assert (one.ends, other.ends) == (["closed 0"], ["abandoned"])
    waiting = asyncio.create_task(listener.wait_closed())
    client.send(packet(SHORT, b"own1"))
    await eventually(lambda: len(one.received) == 2)
    client.send(packet(INITIAL, b"cccc"))
    client.send(packet(SHORT, b"own1"))
    await eventually(lambda: len(one.received) == 3)
    assert len(listener.made) == 2
    assert not waiting.done()
    listener.ended(one)
    await waiting
