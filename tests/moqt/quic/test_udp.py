"""The UDP socket: batches, queueing, errors, fragmentation."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Iterator

import pytest

from moqt.errors import LocalError
from moqt.quic import udp
from moqt.quic.udp import BATCH, Datagrams, UdpSocket, prepare
from tests.support.quic import LOOPBACKS, PATIENCE


class Owner:
    """Counts what a socket reports."""

    def __init__(self) -> None:
        self.batches: list[Datagrams] = []
        self.errors: list[OSError] = []
        self.changed = asyncio.Event()

    def received(self, batch: Datagrams) -> None:
        self.batches.append(batch)
        self.changed.set()

    def failed(self, error: OSError) -> None:
        self.errors.append(error)
        self.changed.set()

    async def change(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.changed.wait()
        self.changed.clear()


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


def opened(owner: Owner, peer: object = None) -> UdpSocket:
    sock = prepare(socket.AF_INET)
    if peer is None:
        sock.bind(("127.0.0.1", 0))
    else:
        sock.connect(peer)  # type: ignore[arg-type]
    return UdpSocket(sock, received=owner.received, failed=owner.failed, peer=peer)


async def test_what_has_arrived_comes_in_batches(sender: socket.socket) -> None:
    owner = Owner()
    sock = opened(owner)
    for number in range(BATCH + 10):
        sender.sendto(b"%d" % number, sock.address)
    while sum(map(len, owner.batches)) < BATCH + 10:
        await owner.change()
    assert [len(batch) for batch in owner.batches] == [BATCH, 10]
    assert owner.batches[1][-1] == (b"%d" % (BATCH + 9), sender.getsockname())
    sock.close()


async def test_a_connected_socket_hears_its_peer_only(sender: socket.socket) -> None:
    owner = Owner()
    sock = opened(owner, sender.getsockname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"stranger", sock.address)
    assert sock.send([(b"hello", sender.getsockname()), (b"elsewhere", ("127.0.0.1", 9))])
    assert sender.recvfrom(100) == (b"hello", sock.address)
    sender.sendto(b"", sock.address)
    sender.sendto(b"answer", sock.address)
    await owner.change()
    assert owner.batches == [[(b"", sender.getsockname()), (b"answer", sender.getsockname())]]
    sock.close()


async def test_nobody_at_the_other_end_is_reported(sender: socket.socket) -> None:
    owner = Owner()
    address = sender.getsockname()
    sender.close()
    sock = opened(owner, address)
    sock.send([(b"hello", address)])
    await owner.change()
    assert isinstance(owner.errors[0], ConnectionRefusedError)
    sock.close()
    sock.close()
    assert sock.send([(b"hello", address)]), "ignored after close"


class Full:
    """A socket that takes so many datagrams and then no more until told."""

    def __init__(self, sock: socket.socket, room: int) -> None:
        self.sock, self.room = sock, room

    def sendto(self, data: bytes, address: object) -> None:
        if not self.room:
            raise BlockingIOError
        self.room -= 1
        self.sock.sendto(data, address)  # type: ignore[call-overload]

    def __getattr__(self, name: str) -> object:
        return getattr(self.sock, name)


async def test_what_the_system_does_not_take_waits(sender: socket.socket) -> None:
    owner = Owner()
    sock = opened(owner)
    full = Full(sock._sock, 2)
    sock._sock = full  # type: ignore[assignment]
    full.fileno = full.sock.fileno  # type: ignore[attr-defined]
    target = sender.getsockname()
    assert sock.send([(b"%d" % number, target) for number in range(4)])
    assert sock.send([(b"4", target)])
    assert len(sock._waiting) == 3
    full.room = 1
    sender.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        assert [await loop.sock_recv(sender, 9) for _ in range(3)] == [b"0", b"1", b"2"]
        full.room = 2
        assert [await loop.sock_recv(sender, 9) for _ in range(2)] == [b"3", b"4"]
    assert not loop.remove_writer(full.sock)
    sock.close()


async def test_what_still_waits_is_dropped_by_close(sender: socket.socket) -> None:
    owner = Owner()
    sock = opened(owner)
    real = sock._sock
    sock._sock = Full(real, 0)  # type: ignore[assignment]
    sock._sock.fileno = real.fileno  # type: ignore[method-assign]
    sock.send([(b"x", sender.getsockname())])
    sock.close()
    assert real.fileno() == -1


class Broken:
    """A socket whose sending fails in one way."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock, self.number = sock, number

    def sendto(self, data: bytes, address: object) -> None:
        raise OSError(self.number, "broken")


@pytest.mark.parametrize(("number", "fits"), [(errno.EMSGSIZE, False), (errno.ENETUNREACH, True)])
async def test_only_a_datagram_that_is_too_large_is_told(
    sender: socket.socket, number: int, fits: bool
) -> None:
    owner = Owner()
    sock = opened(owner)
    real, sock._sock = sock._sock, Broken(sock._sock, number)  # type: ignore[assignment]
    assert sock.send([(b"x", sender.getsockname())] * 2) is fits
    assert [error.errno for error in owner.errors] == [number] * 2
    sock._sock = real
    sock.close()


async def test_closing_when_sending_fails(sender: socket.socket) -> None:
    owner = Owner()
    sock = opened(owner)
    real, sock._sock = sock._sock, Broken(sock._sock, errno.ENETUNREACH)  # type: ignore[assignment]

    def close(_: OSError) -> None:
        sock._sock = real
        sock.close()

    sock._failed = close
    assert sock.send([(b"x", sender.getsockname())] * 2)
    assert real.fileno() == -1


async def test_a_loop_that_cannot_watch_sockets_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def add_reader(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", add_reader)
    with pytest.raises(LocalError, match="selector loop"):
        opened(Owner())


@pytest.mark.parametrize("host", LOOPBACKS)
def test_packets_are_never_fragmented(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with prepare(family) as sock:
        assert not sock.getblocking()
        for each in {family, socket.AF_INET}:
            if each in udp._DONT_FRAGMENT:
                level, name, value = udp._DONT_FRAGMENT[each]
                assert sock.getsockopt(level, name) == value
    assert (sys.platform in {"linux", "darwin"}) == bool(udp._DONT_FRAGMENT)
