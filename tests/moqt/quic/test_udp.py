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
from moqt.quic.udp import BATCH, Datagrams, UdpSocket, largest_payload, prepare
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


def opened(owner: Owner, peer: object = None, *, segments: bool = True) -> UdpSocket:
    sock = prepare(socket.AF_INET)
    if peer is None:
        sock.bind(("127.0.0.1", 0))
    else:
        sock.connect(peer)  # type: ignore[arg-type]
    opened = UdpSocket(sock, received=owner.received, failed=owner.failed, peer=peer)
    opened._segments = opened._segments and segments
    return opened


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


async def test_a_batch_is_bounded_in_octets_too(
    sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 of the largest datagrams, or of what the kernel joins, would hold the loop up for 4 MiB."""
    assert udp.BATCH_OCTETS + udp.MAX_DATAGRAM <= 1.1 * (1 << 20)
    monkeypatch.setattr(udp, "BATCH_OCTETS", 50_000)
    owner = Owner()
    sock = opened(owner)
    for number in range(5):
        sender.sendto(bytes([number]) * 20_000, sock.address)
    while sum(map(len, owner.batches)) < 5:
        await owner.change()
    assert [len(batch) for batch in owner.batches] == [3, 2]
    assert [data[0] for batch in owner.batches for data, _ in batch] == list(range(5))
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
    sock = opened(owner, segments=False)
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
    sock = opened(owner, segments=False)
    real, sock._sock = sock._sock, Broken(sock._sock, number)  # type: ignore[assignment]
    assert sock.send([(b"x", sender.getsockname())] * 2) is fits
    assert [error.errno for error in owner.errors] == [number] * 2
    sock._sock = real
    sock.close()


async def test_closing_when_sending_fails(sender: socket.socket) -> None:
    owner = Owner()
    sock = opened(owner, segments=False)
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


# Several datagrams a call.


class Kernel:
    """Records the sizes of each call; refuses those with several datagrams, or large ones, when told."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.calls: list[list[int]] = []
        self.refuses = 0
        self.largest = 1 << 16
        self.room = 1000

    def _take(self, sizes: list[int]) -> None:
        if not self.room:
            raise BlockingIOError
        if len(sizes) > 1 and self.refuses:
            raise OSError(self.refuses, "refused")
        if max(sizes) > self.largest:
            raise OSError(errno.EMSGSIZE, "too large")
        self.room -= 1
        self.calls.append(sizes)

    def sendto(self, data: bytes, address: object) -> None:
        self._take([len(data)])
        self.sock.sendto(data, address)  # type: ignore[call-overload]

    def sendmsg(
        self, buffers: list[bytes], ancillary: list[tuple[int, int, bytes]], *to: object
    ) -> None:
        self._take(list(map(len, buffers)))
        self.sock.sendmsg(buffers, ancillary, *to)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.sock, name)


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux joins and splits datagrams")


def watched(sock: UdpSocket) -> Kernel:
    kernel = Kernel(sock._sock)
    kernel.fileno = kernel.sock.fileno  # type: ignore[attr-defined]
    sock._sock = kernel  # type: ignore[assignment]
    return kernel


def sized(target: object, *sizes: int) -> Datagrams:
    return [(bytes([number % 256]) * size, target) for number, size in enumerate(sizes)]


async def received(sender: socket.socket, count: int) -> list[int]:
    sender.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        return [len(await loop.sock_recv(sender, 1 << 16)) for _ in range(count)]


@linux
@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([100] * 3, [[100] * 3]),
        ([100, 100, 40, 100], [[100, 100, 40], [100]]),
        ([40, 100], [[40], [100]]),
        ([100, 0, 100], [[100], [0], [100]]),
        ([10] * 65, [[10] * 64, [10]]),
        ([16000] * 5, [[16000] * 4, [16000]]),
    ],
)
async def test_equal_datagrams_go_in_one_call(
    sender: socket.socket, sizes: list[int], calls: list[list[int]]
) -> None:
    sock = opened(Owner())
    kernel = watched(sock)
    assert sock.send(sized(sender.getsockname(), *sizes))
    assert kernel.calls == calls
    assert await received(sender, len(sizes)) == sizes
    sock.close()


@linux
async def test_a_call_has_one_address(sender: socket.socket) -> None:
    sock = opened(Owner())
    kernel = watched(sock)
    here, there = sender.getsockname(), ("127.0.0.1", 9)
    assert sock.send([(b"a", here), (b"b", here), (b"c", there), (b"d", here)])
    assert kernel.calls == [[1, 1], [1], [1]]
    sock.close()


@linux
@pytest.mark.parametrize("number", sorted(udp.SEGMENTATION_FAULTS))
async def test_a_kernel_that_cannot_split_is_asked_once(sender: socket.socket, number: int) -> None:
    owner = Owner()
    sock = opened(owner)
    kernel = watched(sock)
    kernel.refuses = number
    assert sock.send(sized(sender.getsockname(), 100, 100, 100))
    assert kernel.calls == [[100]] * 3
    assert not sock._segments
    assert owner.errors == []
    assert await received(sender, 3) == [100] * 3
    sock.close()


@linux
async def test_datagrams_that_are_too_large_do_not_count_as_a_refusal(
    sender: socket.socket,
) -> None:
    owner = Owner()
    sock = opened(owner)
    kernel = watched(sock)
    kernel.largest = 1500
    assert not sock.send(sized(sender.getsockname(), 2000, 2000, 900, 1000, 1000))
    assert kernel.calls == [[900], [1000, 1000]]
    assert [error.errno for error in owner.errors] == [errno.EMSGSIZE] * 2
    assert sock._segments
    sock.close()


@linux
async def test_a_run_that_the_system_does_not_take_waits_whole(sender: socket.socket) -> None:
    sock = opened(Owner())
    kernel = watched(sock)
    kernel.room = 1
    assert sock.send(sized(sender.getsockname(), 50, 100, 100))
    assert (len(sock._waiting), kernel.calls) == (2, [[50]])
    kernel.room = 1
    assert await received(sender, 3) == [50, 100, 100]
    assert kernel.calls == [[50], [100, 100]]
    sock.close()


@linux
async def test_a_connected_socket_sends_several_in_one_call(sender: socket.socket) -> None:
    sock = opened(Owner(), sender.getsockname())
    kernel = watched(sock)
    assert sock.send(sized(sender.getsockname(), 100, 100, 7))
    assert kernel.calls == [[100, 100, 7]]
    assert await received(sender, 3) == [100, 100, 7]
    sock.close()


@linux
@pytest.mark.parametrize("joins", [True, False])
async def test_what_the_kernel_joined_is_taken_apart(joins: bool) -> None:
    owner = Owner()
    sock = opened(owner)
    if not joins:
        sock._joins = False
        sock._sock.setsockopt(udp._SOL_UDP, udp._UDP_GRO, 0)
    sizes = [1452] * 40 + [700]
    source = opened(Owner())
    assert source.send(sized(sock.address, *sizes))
    while sum(map(len, owner.batches)) < len(sizes):
        await owner.change()
    got = [datagram for batch in owner.batches for datagram in batch]
    assert got == [(data, source.address) for data, _ in sized(sock.address, *sizes)]
    source.close()
    sock.close()


async def test_a_kernel_that_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(socket.socket):
        def setsockopt(self, level: int, *rest: object) -> None:
            if level == udp._SOL_UDP:
                raise OSError(errno.ENOPROTOOPT, "unknown")

    with Old(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert not udp._join_received(sock)


# What a path carries.


@pytest.mark.parametrize("host", LOOPBACKS)
def test_loopback_carries_large_datagrams(host: str) -> None:
    rest = (0, 0) if ":" in host else ()
    carried = largest_payload((host, 9, *rest))
    assert carried is None or carried > 16000
    assert (sys.platform == "linux") == (carried is not None)


def test_an_ipv4_address_of_a_socket_for_both_families() -> None:
    assert largest_payload(("::ffff:127.0.0.1", 9, 0, 0)) == largest_payload(("127.0.0.1", 9))


def test_an_address_without_a_way() -> None:
    assert largest_payload(("not an address", 9)) is None


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
