"""What is particular to aiopquic. Runs only where that backend is asked for, since it imports the library."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from kvcs.certs import make
from moqt.config import KIB, MIB, TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic import aiopquic, aiopquic_connection, aiopquic_engine, aiopquic_private, dialling
from moqt.quic import backend as named
from moqt.quic.aiopquic_private import Peer, missing
from moqt.quic.base import Backend, ClientTls, Connection, ConnectionHandler, ConnectionLost
from tests.support.quic import ALPN, LOOPBACKS, Accepted, Recorder, join, server_tls
from tests.support.two_backends import connected, round_trips

BIDI, UNI = 0, 2
SMALL = TransportConfig(max_streams_uni=8, max_data=64 * KIB, max_stream_data=16 * KIB)
WINDOW = 8 * KIB
"""What aiopquic makes of SMALL's stream window."""


@pytest.fixture
def backend() -> Backend:
    return named("aiopquic")


async def refused(port: int, tls: ClientTls) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        await aiopquic.connect(
            "127.0.0.1", port, alpn=[ALPN], tls=tls, config=TransportConfig(), handler=Accepted()
        )
    return caught.value


async def listening(certificates: Path, host: str = "127.0.0.1", name: str = "server") -> None:
    listener = await aiopquic.listen(
        host,
        0,
        alpn=[ALPN],
        tls=server_tls(certificates, name),
        config=TransportConfig(),
        handler=Accepted(),
    )
    listener.close()
    await listener.wait_closed()


# The library's private side.


def test_the_installed_version_has_everything() -> None:
    assert missing() == ()


async def test_a_version_that_lacks_something_is_refused(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiopquic, "missing", lambda: ("QuicConnection._events",))
    with pytest.raises(LocalError, match=r"is not supported: it has no QuicConnection\._events"):
        await listening(certificates)


# Where it listens.


@pytest.mark.parametrize("host", [*LOOPBACKS, "localhost", "0.0.0.0", ""])  # noqa: S104
async def test_it_listens_on_loopback_and_on_the_wildcard(host: str, certificates: Path) -> None:
    await listening(certificates, host)


async def test_it_does_not_listen_on_one_address_of_a_network(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bound(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            return "192.0.2.1", 4443

    async def bind(host: str, port: int) -> socket.socket:
        return Bound(socket.AF_INET, socket.SOCK_DGRAM)

    monkeypatch.setattr(dialling, "bind", bind)
    with pytest.raises(LocalError, match=r"cannot listen on 192\.0\.2\.1: .* binds every address"):
        await listening(certificates, "192.0.2.1")


async def test_a_thread_that_does_not_get_its_socket(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: aiopquic_engine.Hub) -> bool:
        return False

    monkeypatch.setattr(aiopquic_engine.Hub, "is_ready", never)
    with pytest.raises(LocalError, match=r"cannot listen on 127\.0\.0\.1:0: the library's thread"):
        await listening(certificates)


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::1", None])
async def test_who_comes_from_elsewhere_to_a_loopback_listener_is_turned_away(
    address: str | None, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Accepted()
    listener = await aiopquic.listen(
        "127.0.0.1",
        0,
        alpn=[ALPN],
        tls=server_tls(certificates),
        config=TransportConfig(),
        handler=far,
    )
    monkeypatch.setattr(Peer, "address", address)
    near = Accepted()
    client = await aiopquic.connect(
        "127.0.0.1",
        listener.address[1],
        alpn=[ALPN],
        tls=ClientTls(ca_file=certificates / "ca.pem"),
        config=TransportConfig(),
        handler=near,
    )
    await near.recorders[0].until_lost()
    assert far.recorders == []
    await client.wait_closed()
    listener.close()
    await listener.wait_closed()


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_both_families(host: str, backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates, host=host) as ends:
        assert ends.listener.address[0] == host
        ends.at_server.echo = True
        ends.at_client.put(BIDI, b"there and back")
        await ends.at_client.until(lambda: ends.at_client.finished == [0])


async def test_files_that_cannot_be_used(certificates: Path, tmp_path: Path) -> None:
    for directory, name in ((tmp_path, "server"), (certificates, "none")):
        with pytest.raises(LocalError):
            await listening(directory, name=name)


async def test_a_certificate_nobody_vouches_for(
    backend: Backend, certificates: Path, tmp_path: Path
) -> None:
    make(tmp_path)
    async with join(backend, certificates) as ends:
        port = ends.listener.address[1]
        for tls in (
            ClientTls(ca_file=tmp_path / "ca.pem"),
            ClientTls(ca_file=certificates / "ca.pem", server_name="elsewhere.test"),
        ):
            error = await refused(port, tls)
            assert error.kind == "tls"
            assert "certificate" in str(error)


async def test_an_address_with_a_zone_cannot_be_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, deadline: float) -> list[tuple[int, tuple[str, int]]]:
        return [(socket.AF_INET, ("fe80::1%lo", port))]

    monkeypatch.setattr(dialling, "resolve", resolve)
    monkeypatch.setattr(
        dialling, "dial_socket", lambda *_: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    )
    error = await refused(1, ClientTls(verify=False))
    assert error.kind == "unreachable"


# What the library does not do by itself.


@pytest.mark.parametrize("code", [0, 0x3, 0x3FFFFFFF])
async def test_close_carries_its_code_to_the_peer(
    code: int, backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        ends.server.close(code, "no more")
        ends.server.close(1, "again")
        assert ends.at_server.lost == []
        assert await ends.at_client.until_lost() == ConnectionLost(code, "", True, True)
        assert await ends.at_server.until_lost() == ConnectionLost(code, "no more", False, True)
        await ends.server.wait_closed()
        await ends.client.wait_closed()


@pytest.mark.parametrize("side", [0, 1])
async def test_what_is_ahead_of_an_application_that_consumes_nothing_is_bounded(
    side: int, backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates, client=SMALL, server=SMALL) as ends:
        _, near, far_connection, far = ends.sides()[side]
        far.consume = False
        sent = [bytes([seed]) * (64 * KIB) for seed in range(8)]
        for piece in sent:
            near.put(UNI, piece)
        await far.until(lambda: far.received > SMALL.max_data // 2)
        await round_trips(far, near, 5)  # its credit for more streams is an event like any other
        waiting = sum(len(content) for _, content in near.queue) - near.reached
        ahead = sum(map(len, sent)) - waiting - near.connection.unsent()
        assert far.received <= SMALL.max_data // 2 + aiopquic_engine.BATCH * WINDOW
        assert ahead <= far.received + SMALL.max_streams_uni * WINDOW
        assert far.lost == []
        far.consume = True
        far_connection.consumed(far.received)
        await far.until(lambda: len(far.finished) == len(sent))
        assert [far.data[i] for i in near.opened[: len(sent)]] == sent


async def test_an_application_of_a_server_that_stays_behind_is_cut_off(
    backend: Backend, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiopquic_engine, "HOLD", 0.05)
    async with join(backend, certificates, server=SMALL) as ends:
        ends.at_server.consume = False
        ends.at_client.put(UNI, bytes(200 * KIB))
        lost = await ends.at_server.until_lost()
        assert (lost.code, lost.remote) == (1, False)
        assert "took nothing" in lost.reason
        assert (await ends.at_client.until_lost()).code == 1


async def test_more_than_the_librarys_ring_takes_can_be_sent_at_once(
    backend: Backend, certificates: Path
) -> None:
    sent = bytes(range(256)) * (20 * KIB)
    async with join(backend, certificates) as ends:
        stream_id = ends.client.open_stream(bidirectional=False)
        assert stream_id is not None
        ends.client.send(stream_id, memoryview(bytearray(sent)), True)
        assert 0 < ends.client.unsent() <= len(sent)
        await ends.at_server.until(lambda: ends.at_server.finished == [stream_id])
        assert ends.at_server.data[stream_id] == sent
        await ends.at_client.until(lambda: ends.client.unsent() == 0)


async def test_more_orders_than_the_librarys_queue_takes(
    backend: Backend, certificates: Path
) -> None:
    small = TransportConfig(max_streams_uni=4096)
    async with join(backend, certificates, server=small) as ends:
        opened = []
        for _ in range(3000):
            stream_id = ends.client.open_stream(bidirectional=False)
            assert stream_id is not None
            ends.client.reset(stream_id, 5)
            opened.append(stream_id)
        await ends.at_server.until(lambda: len(ends.at_server.resets) == 3000)
        assert sorted(ends.at_server.resets) == [(stream_id, 5) for stream_id in opened]


async def test_credit_is_bounded_by_what_is_open(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates, server=SMALL) as ends:
        for number in range(1000):
            ends.at_client.put(UNI, b"stream %d" % number)
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 1000)


async def test_a_fault_of_the_library_ends_its_connection_only(
    backend: Backend, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError("no ring")

    async with join(backend, certificates) as ends:
        monkeypatch.setattr(ends.client.peer._quic, "send_stream_data", broken)  # type: ignore[attr-defined]
        ends.at_client.put(UNI, b"x")
        lost = await ends.at_client.until_lost()
        assert lost == ConnectionLost(1, "aiopquic failed: MemoryError: no ring", False, False)


class Raising(Recorder):
    """Raises in its first call."""

    raised = False

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        super().stream_data(stream_id, data, fin)
        if not self.raised:
            self.raised = True
            raise RuntimeError("of the application")


async def test_a_handler_that_raises_loses_nothing_else(
    backend: Backend, certificates: Path
) -> None:
    made: list[Raising] = []
    seen: list[str] = []
    arrived = asyncio.Event()

    def accept(connection: Connection) -> ConnectionHandler:
        made.append(Raising(connection))
        arrived.set()
        return made[-1]

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(str(context["exception"])))
    listener = await backend.listen(
        "127.0.0.1",
        0,
        alpn=[ALPN],
        tls=server_tls(certificates),
        config=TransportConfig(),
        handler=accept,
    )
    near = Accepted()
    client = await backend.connect(
        "127.0.0.1",
        listener.address[1],
        alpn=[ALPN],
        tls=ClientTls(ca_file=certificates / "ca.pem"),
        config=TransportConfig(),
        handler=near,
    )
    for _ in range(20):
        near.recorders[0].put(UNI, b"x")
    async with asyncio.timeout(20):
        await arrived.wait()
    await made[0].until(lambda: len(made[0].finished) == 20)
    assert seen == ["of the application"]
    client.close(0)
    await client.wait_closed()
    listener.close()
    await listener.wait_closed()


async def test_a_silent_peer_is_noticed(backend: Backend, certificates: Path) -> None:
    brief = TransportConfig(idle_timeout=0.3, keep_alive=0)
    async with join(backend, certificates, client=brief, server=brief) as ends:
        for recorder in (ends.at_client, ends.at_server):
            lost = await recorder.until_lost()
            assert lost == ConnectionLost(1, aiopquic_connection.SILENCE, False, False)


def test_the_pieces_fit_the_ring() -> None:
    assert aiopquic.SEND_RING >= 2 * 64 * KIB
    assert 16 * KIB <= aiopquic.STREAM_WINDOW <= MIB
    assert set(aiopquic_private.EVENTS) >= {"CLOSE", "APP_CLOSE", "READY"}


# With the default backend at the other end.


@pytest.mark.parametrize(("server", "client"), [("aiopquic", "aioquic"), ("aioquic", "aiopquic")])
async def test_both_ways_with_the_default_backend(
    server: str, client: str, certificates: Path
) -> None:
    ends = await connected(named(server), named(client), certificates)
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
    lost = await ends.at_server.until_lost()
    assert (lost.code, lost.remote, lost.application) == (5, True, True)
    ends.listener.close()
    await ends.client.wait_closed()
    await ends.listener.wait_closed()
