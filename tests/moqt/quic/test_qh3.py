"""What is particular to qh3. Runs only where that backend is asked for, since it imports the library."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from qh3.quic.configuration import QuicConfiguration

from kvcs.certs import make
from moqt.config import KIB, TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic import backend as named
from moqt.quic import qh3, qh3_private
from moqt.quic.base import Backend, ClientTls, ConnectionLost
from moqt.quic.qh3_private import PacedConnection, PacedCore, Windows, missing
from moqt.quic.udp import Datagrams, UdpSocket
from tests.support.quic import (
    ALPN,
    LOOPBACKS,
    Accepted,
    join,
    server_tls,
)
from tests.support.two_backends import connected, round_trips

BIDI, UNI = 0, 2
SMALL = TransportConfig(max_data=64 * KIB, max_stream_data=16 * KIB)


@pytest.fixture
def backend() -> Backend:
    return named("qh3")


async def refused(port: int, tls: ClientTls, host: str = "127.0.0.1") -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        await qh3.connect(
            host, port, alpn=[ALPN], tls=tls, config=TransportConfig(), handler=Accepted()
        )
    return caught.value


# The library's private side.


def test_the_installed_version_has_everything() -> None:
    assert missing() == ()


async def test_a_version_that_lacks_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qh3, "missing", lambda: ("core.state",))
    with pytest.raises(LocalError, match=r"is not supported: it has no core\.state"):
        await qh3.connect(
            "127.0.0.1",
            1,
            alpn=["x"],
            tls=ClientTls(verify=False),
            config=TransportConfig(),
            handler=Accepted(),
        )


@pytest.mark.parametrize("max_data", [1, 100, 64 * KIB, 8 << 20])
@pytest.mark.parametrize("max_stream_data", [1, 16 * KIB, 1 << 20])
def test_all_windows_together_stay_below_max_data(max_data: int, max_stream_data: int) -> None:
    windows = Windows(TransportConfig(max_data=max_data, max_stream_data=max_stream_data))
    assert min(windows.stream, windows.core, windows.ahead) >= 1
    assert windows.core + windows.stream + windows.ahead <= max(max_data, 3)


class Core:
    """A core with events and datagrams of ours."""

    def __init__(self) -> None:
        self.state = "connected"
        self.events: list[tuple[Any, ...]] = []
        self.sending: list[tuple[bytes, Any] | RuntimeError | None] = []

    def next_event(self) -> tuple[Any, ...] | None:
        return self.events.pop(0) if self.events else None

    def poll_transmit(self, now: float) -> tuple[bytes, Any] | None:
        found = self.sending.pop(0)
        if isinstance(found, RuntimeError):
            raise found
        return found


def test_events_wait_while_the_application_is_behind() -> None:
    core = Core()
    core.events = [("stream_data", 2, b"12345", False)] * 4
    paced = PacedCore(core, 8)
    assert [paced.next_event() is not None for _ in range(3)] == [True, True, False]
    assert not paced.consume(1)
    assert paced.next_event() is None
    assert paced.consume(2)
    assert paced.next_event() is not None
    core.state = "draining"
    assert paced.next_event() is not None, "an end is heard of at once"
    assert not paced.consume(1 << 30)


def stumbling(*sending: tuple[bytes, Any] | RuntimeError | None) -> PacedConnection:
    quic = PacedConnection(config=SMALL, configuration=QuicConfiguration(is_client=True))
    quic._core = Core()
    quic._core.sending = list(sending)
    return quic


def test_packets_built_before_the_library_stumbles_are_sent() -> None:
    stumble = RuntimeError(f"QUIC: {qh3_private.STUMBLE}")
    quic = stumbling((b"a", 1), stumble, stumble, (b"b", 1), None)
    assert quic.datagrams_to_send(0.0) == [(b"a", 1)]
    assert quic.has_stumbled
    assert quic.datagrams_to_send(0.0) == []
    assert quic.has_stumbled
    assert quic.datagrams_to_send(0.0) == [(b"b", 1)]
    assert not quic.has_stumbled


def test_a_library_that_only_stumbles_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qh3_private, "MAX_STUMBLES", 3)
    stumble = RuntimeError(qh3_private.STUMBLE)
    quic = stumbling(stumble, stumble, stumble)
    assert quic.datagrams_to_send(0.0) == quic.datagrams_to_send(0.0) == []
    with pytest.raises(RuntimeError):
        quic.datagrams_to_send(0.0)


def test_other_faults_are_not_taken_for_stumbling() -> None:
    with pytest.raises(RuntimeError, match="different"):
        stumbling((b"a", 1), RuntimeError("different")).datagrams_to_send(0.0)


# Over sockets.


@pytest.mark.parametrize("side", [0, 1])
async def test_what_is_ahead_of_an_application_that_consumes_nothing_is_bounded(
    side: int, backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates, client=SMALL, server=SMALL) as ends:
        _, near, far_connection, far = ends.sides()[side]
        far.consume = False
        sent = [bytes([seed]) * (16 * KIB) for seed in range(12)]
        for piece in sent:
            near.put(UNI, piece)
        await far.until(lambda: far.received > 0)
        await round_trips(far, near)
        ahead = sum(map(len, sent)) - near.connection.unsent()
        assert SMALL.max_data // 4 <= far.received <= ahead <= SMALL.max_data
        far.consume = True
        far_connection.consumed(far.received)
        await far.until(lambda: len(far.finished) == len(sent))
        assert [far.data[i] for i in near.opened] == sent


async def test_a_close_is_heard_by_an_application_that_is_behind(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates, server=SMALL) as ends:
        ends.at_server.consume = False
        ends.at_client.put(UNI, bytes(100 * KIB))
        await ends.at_server.until(lambda: ends.at_server.received > 0)
        ends.client.close(9, "enough")
        assert await ends.at_server.until_lost() == ConnectionLost(9, "enough", True, True)


@pytest.mark.parametrize(("kind", "allowed"), [(UNI, 103), (BIDI, 100)])
async def test_the_stream_limits_are_the_librarys(
    kind: int, allowed: int, backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        for _ in range(allowed):
            stream_id = ends.client.open_stream(bidirectional=not kind)
            assert stream_id is not None
            ends.client.send(stream_id, b"x")
        ends.client.flush()
        assert ends.client.open_stream(bidirectional=not kind) is None
        beyond = kind + 4 * allowed
        ends.client.send(beyond, b"no credit")
        ends.client.reset(beyond, 1)
        await ends.at_server.until(lambda: len(ends.at_server.data) == allowed)
        ends.client.send(kind, b"", True)
        ends.server.send(0, b"", True)
        ends.server.flush()
        ends.client.flush()
        await ends.at_client.until(
            lambda: ends.client.open_stream(bidirectional=not kind) == beyond
        )


async def test_a_certificate_nobody_vouches_for(
    backend: Backend, certificates: Path, tmp_path: Path
) -> None:
    make(tmp_path)
    async with join(backend, certificates) as ends:
        port = ends.listener.address[1]
        for tls in (
            ClientTls(ca_file=tmp_path / "ca.pem"),
            ClientTls(ca_file=certificates / "ca.pem", server_name="elsewhere.test"),
            ClientTls(ca_file=certificates / "server.pem"),
        ):
            assert (await refused(port, tls)).kind == "tls"


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_both_families(host: str, backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates, host=host) as ends:
        ends.at_server.echo = True
        ends.at_client.put(BIDI, b"there and back")
        await ends.at_client.until(lambda: ends.at_client.finished == [0])


async def test_files_that_cannot_be_used(certificates: Path, tmp_path: Path) -> None:
    for tls in (server_tls(tmp_path), server_tls(certificates, "none")):
        with pytest.raises(LocalError):
            await qh3.listen(
                "127.0.0.1",
                0,
                alpn=[ALPN],
                tls=tls,
                config=TransportConfig(),
                handler=Accepted(),
            )
    with pytest.raises(LocalError, match="datagram_size is 100"):
        await qh3.listen(
            "127.0.0.1",
            0,
            alpn=[ALPN],
            tls=server_tls(certificates),
            config=TransportConfig(datagram_size=100),
            handler=Accepted(),
        )


@pytest.mark.parametrize(
    ("size", "largest"), [(None, 1472), (1200, 1200), (1400, 1200), (9000, 1472)]
)
async def test_a_client_looks_for_larger_datagrams_where_they_are_allowed(
    size: int | None,
    largest: int,
    backend: Backend,
    certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A size that the system refuses to send is only a probe that was lost."""
    sizes: set[int] = set()
    send = UdpSocket.send

    def narrow(self: UdpSocket, datagrams: Datagrams) -> bool:
        sizes.update(len(data) for data, _ in datagrams)
        fitting = [(data, address) for data, address in datagrams if len(data) <= 1300]
        return send(self, fitting) and len(fitting) == len(datagrams)

    monkeypatch.setattr(UdpSocket, "send", narrow)
    config = TransportConfig(datagram_size=size)
    async with join(backend, certificates, client=config, server=config) as ends:
        for _, near, _, far in ends.sides():
            near.put(UNI, bytes(256 * KIB))
            await far.until(lambda f=far: len(f.finished) == 1)  # type: ignore[misc]
    assert 1150 < max(sizes) <= largest
    assert (max(sizes) > 1200) == (largest > 1200)


async def test_noise_is_ignored(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(ends.listener.address)
            for noise in (
                b"",
                b"\x00",
                b"\xc0",
                bytes(1200),
                b"\xc0" + bytes(1300),
                b"\xff" * 1300,
            ):
                sock.send(noise)
            initial = b"\xc0\x00\x00\x00\x01\x08" + bytes(8) + b"\x00\x00\x44\x00" + bytes(1300)
            for _ in range(3):
                sock.send(initial)
            unknown = b"\xc0\x1a\x2a\x3a\x4a\x08" + b"destined" + b"\x06source" + bytes(1300)
            sock.send(unknown)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(10):
                answer = await loop.sock_recv(sock, 2000)
        assert answer[1:5] == bytes(4), "Version Negotiation"
        assert answer[6:12] == b"source"
        ends.at_server.echo = True
        ends.at_client.put(BIDI, b"still there")
        await ends.at_client.until(lambda: ends.at_client.finished == [0])


async def test_keys_are_updated(
    backend: Backend, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = 0
    update = PacedConnection.request_key_update

    def counted(self: PacedConnection) -> None:
        nonlocal updates
        update(self)
        updates += 1

    monkeypatch.setattr(qh3_private, "KEY_UPDATE_PACKETS", 200)
    monkeypatch.setattr(PacedConnection, "request_key_update", counted)
    sent = bytes(range(256)) * (8 * KIB)
    async with join(backend, certificates) as ends:
        ends.at_client.put(UNI, sent)
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 1)
        assert ends.at_server.data[2] == sent
    assert updates > 1


async def test_a_fault_of_the_library_ends_its_connection_only(
    backend: Backend, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: PacedConnection, now: float) -> Datagrams:
        raise ValueError("unforeseen")

    async with join(backend, certificates) as ends:
        monkeypatch.setattr(PacedConnection, "datagrams_to_send", broken)
        ends.at_client.put(UNI, b"x")
        lost = await ends.at_client.until_lost()
        monkeypatch.undo()
        assert lost.reason == "qh3 failed: ValueError: unforeseen"


async def test_a_silent_peer_is_noticed(backend: Backend, certificates: Path) -> None:
    brief = TransportConfig(idle_timeout=0.3, keep_alive=0)
    async with join(backend, certificates, client=brief, server=brief) as ends:
        for recorder in (ends.at_client, ends.at_server):
            lost = await recorder.until_lost()
            assert (lost.remote, lost.application) == (False, False)


async def test_pings_keep_a_quiet_connection(backend: Backend, certificates: Path) -> None:
    brief = TransportConfig(idle_timeout=0.4, keep_alive=0.1)
    async with join(backend, certificates, client=brief, server=brief) as ends:
        pings = 0
        ping = ends.client._quic.send_ping  # type: ignore[attr-defined]
        enough = asyncio.Event()

        def counted(uid: int) -> None:
            nonlocal pings
            ping(uid)
            pings += 1
            if pings == 8:
                enough.set()

        ends.client._quic.send_ping = counted  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            await enough.wait()
        assert ends.at_client.lost == ends.at_server.lost == []


# With the default backend at the other end.


PAIRS = [("qh3", "aioquic"), ("aioquic", "qh3")]
LIBRARY_FAULT = "reserved stream is missing"
"""What the library may end a connection with when it repairs a loss."""


@pytest.mark.parametrize(("listening", "dialling"), PAIRS)
async def test_both_ways_with_the_default_backend(
    listening: str, dialling: str, certificates: Path
) -> None:
    ends = await connected(named(listening), named(dialling), certificates)
    sent = [bytes([seed]) * (128 * KIB) for seed in range(8)]
    for near, recorder, far_connection, far in ends.sides():
        for piece in sent:
            recorder.put(UNI, piece)
        await far.until(lambda f=far: len(f.finished) == len(sent))  # type: ignore[misc]
        assert [far.data[i] for i in recorder.opened] == sent
        stream_id = near.open_stream(bidirectional=True)
        assert stream_id is not None
        near.send(stream_id, b"x")
        near.flush()
        await far.until(lambda f=far, s=stream_id: s in f.data)  # type: ignore[misc]
        far_connection.stop(stream_id, 7)
        await recorder.until(lambda r=recorder, s=stream_id: (s, 7) in r.stops)  # type: ignore[misc]
        await far.until(lambda f=far, s=stream_id: (s, 7) in f.resets)  # type: ignore[misc]
    ends.client.close(5, "done")
    assert await ends.at_server.until_lost() == ConnectionLost(5, "done", True, True)
    ends.listener.close()
    await ends.client.wait_closed()
    await ends.listener.wait_closed()


@pytest.mark.parametrize(("listening", "dialling"), PAIRS)
async def test_what_is_lost_is_repaired_or_the_connection_tells_why_not(
    listening: str, dialling: str, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one datagram in sixty lost, at which the library is known to stumble, and once in a while to fail."""
    ends = await connected(named(listening), named(dialling), certificates)
    count, send = 0, UdpSocket.send

    def lossy(self: UdpSocket, datagrams: Datagrams) -> bool:
        nonlocal count
        kept = []
        for datagram in datagrams:
            count += 1
            if count % 60:
                kept.append(datagram)
        return send(self, kept)

    monkeypatch.setattr(UdpSocket, "send", lossy)
    sent = [bytes([seed]) * (128 * KIB) for seed in range(8)]
    ended = (ends.at_client.lost, ends.at_server.lost)
    for _, recorder, _, far in ends.sides():
        for piece in sent:
            recorder.put(UNI, piece)
        await far.until(lambda f=far: len(f.finished) == len(sent) or any(ended))  # type: ignore[misc]
        if any(ended):
            break
        assert [far.data[i] for i in recorder.opened] == sent
    assert all(LIBRARY_FAULT in lost.reason or lost.remote for lost in (*ended[0], *ended[1]))
    ends.client.close(0)
    ends.listener.close()
    await ends.client.wait_closed()
    await ends.listener.wait_closed()


# The event loop.


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_either_loop_will_do(certificates: Path, new_loop: Callable[[], Any]) -> None:
    """uvloop's clock goes back, for which the library would end the connection as InvalidTime."""

    async def whole_session() -> None:
        async with join(named("qh3"), certificates) as ends:
            ends.at_server.echo = True
            ends.at_client.put(0, bytes(3000 * KIB))
            await ends.at_client.until(lambda: len(ends.at_client.finished) == 1)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(whole_session())
