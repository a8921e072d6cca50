"""The aioquic backend over real sockets: certificates, addresses, silence, hostile peers, what is left behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop
from aioquic.asyncio.client import connect as raw_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from kvcs.certs import make
from moqt.config import KIB, TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic import aioquic as backend
from moqt.quic import aioquic_path
from moqt.quic.aioquic_connection import AioquicConnection
from moqt.quic.aioquic_private import CreditConnection
from moqt.quic.aioquic_server import AioquicListener
from moqt.quic.base import ClientTls, Connection, ConnectionLost, ServerTls
from moqt.quic.datagram_size import SMALLEST_DATAGRAM
from moqt.quic.udp import Datagrams, UdpSocket
from tests.support.keys import SHORT_ED448, as_pem, odd_certificate
from tests.support.quic import ALPN, LOOPBACKS, PATIENCE, Accepted, Recorder, join, server_tls

UNI = 2
IDLE = TransportConfig(idle_timeout=0.5, keep_alive=0.1)
PROTECTED = generate_private_key(SECP256R1()).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
)


@pytest.fixture(autouse=True)
async def nothing_raises_in_the_loop() -> AsyncIterator[None]:
    """Whatever a peer does, no callback of the loop may raise."""
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    yield
    assert raised == []


@asynccontextmanager
async def listening(
    certificates: Path,
    host: str = "127.0.0.1",
    *,
    name: str = "server",
    config: TransportConfig = TransportConfig(),  # noqa: B008 - frozen
) -> AsyncIterator[tuple[AioquicListener, Accepted]]:
    accepted = Accepted()
    listener = await backend.listen(
        host, 0, alpn=[ALPN], tls=server_tls(certificates, name), config=config, handler=accepted
    )
    try:
        yield listener, accepted
    finally:
        listener.close()
        await listener.wait_closed()


async def dial(
    host: str,
    port: int,
    tls: ClientTls,
    config: TransportConfig = TransportConfig(),  # noqa: B008 - frozen
) -> AioquicConnection:
    return await backend.connect(
        host, port, alpn=[ALPN], tls=tls, config=config, handler=Accepted()
    )


async def refusal(host: str, port: int, tls: ClientTls) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        await dial(host, port, tls)
    return caught.value


# Certificates.


async def test_an_untrusted_certificate(certificates: Path, tmp_path: Path) -> None:
    make(tmp_path)
    async with listening(certificates) as (listener, accepted):
        error = await refusal(*listener.address, ClientTls(ca_file=tmp_path / "ca.pem"))
        assert error.kind == "tls"
        assert "certificate" in error.reason
        assert accepted.recorders == []


async def test_the_system_does_not_trust_a_throw_away_certificate(certificates: Path) -> None:
    async with listening(certificates) as (listener, _):
        assert (await refusal(*listener.address, ClientTls())).kind == "tls"


async def test_a_certificate_for_another_name(certificates: Path) -> None:
    tls = ClientTls(ca_file=certificates / "ca.pem", server_name="elsewhere.example")
    async with listening(certificates) as (listener, _):
        error = await refusal(*listener.address, tls)
        assert error.kind == "tls"
        assert "elsewhere.example" in error.reason


async def test_an_expired_certificate(tmp_path: Path) -> None:
    make(tmp_path, now=datetime.now(UTC) - timedelta(days=30))
    async with listening(tmp_path) as (listener, _):
        error = await refusal(*listener.address, ClientTls(ca_file=tmp_path / "ca.pem"))
        assert error.kind == "tls"
        assert "no longer valid" in error.reason


async def test_a_certificate_with_more_names_than_fit_a_close(tmp_path: Path) -> None:
    """The library puts all of them into the reason, which then fits no packet."""
    make(tmp_path, [f"host-{number}.example" for number in range(200)])
    async with listening(tmp_path) as (listener, _):
        error = await refusal(*listener.address, ClientTls(ca_file=tmp_path / "ca.pem"))
        assert error.kind == "tls"


async def test_the_name_can_be_another_than_the_host(certificates: Path) -> None:
    tls = ClientTls(ca_file=certificates / "ca.pem", server_name="localhost")
    async with listening(certificates) as (listener, _):
        client = await dial(*listener.address, tls)
        client.close(0)
        await client.wait_closed()


async def test_any_certificate_without_verification(tmp_path: Path) -> None:
    make(tmp_path, ["elsewhere.example"], now=datetime.now(UTC) - timedelta(days=30))
    async with listening(tmp_path) as (listener, _):
        client = await dial(*listener.address, ClientTls(verify=False))
        client.close(0)
        await client.wait_closed()


async def test_a_certificate_without_names(tmp_path: Path) -> None:
    make(tmp_path, [])
    async with listening(tmp_path) as (listener, _):
        error = await refusal(*listener.address, ClientTls(ca_file=tmp_path / "ca.pem"))
        assert error.kind == "tls"


@pytest.mark.parametrize(
    ("certificate", "key", "complaint"),
    [
        ("missing.pem", "server-key.pem", "missing.pem.*No such file"),
        ("empty.pem", "server-key.pem", "cannot use the certificates in .*empty.pem"),
        ("server.pem", "missing.pem", "cannot use the private key in .*missing.pem"),
        ("server.pem", "server.pem", "cannot use the private key"),
        ("server.pem", "client-key.pem", "client-key.pem is not that of .*server.pem"),
        ("server.pem", "odd-key.pem", "cannot use the private key in .*odd-key.pem"),
        ("server.pem", "protected.pem", "protected.pem: Password was not given"),
        ("version.pem", "server-key.pem", "cannot use the certificates in .*version.pem"),
        ("curve.pem", "server-key.pem", "cannot use the key that .*curve.pem certifies"),
        ("point.pem", "server-key.pem", "cannot use the key that .*point.pem certifies"),
        ("late.pem", "server-key.pem", "expected the certificates in .*late.pem before its key"),
    ],
)
async def test_files_that_are_no_certificate_and_key(
    certificates: Path, tmp_path: Path, certificate: str, key: str, complaint: str
) -> None:
    """One line that names the file, whichever way `cryptography` or OpenSSL fails at it."""
    files = tmp_path
    shutil.copytree(certificates, files, dirs_exist_ok=True)
    good, own = (files / name for name in ("server.pem", "server-key.pem"))
    (files / "empty.pem").write_bytes(b"")
    (files / "odd-key.pem").write_bytes(SHORT_ED448)
    (files / "protected.pem").write_bytes(PROTECTED)
    (files / "late.pem").write_bytes(b"\n" + own.read_bytes() + good.read_bytes())
    for kind in ("version", "curve", "point"):
        (files / f"{kind}.pem").write_bytes(as_pem(odd_certificate(good, kind)))
    tls = ServerTls(certificate=files / certificate, private_key=files / key)
    with pytest.raises(LocalError, match=complaint) as caught:
        await backend.listen(
            "127.0.0.1",
            0,
            alpn=[ALPN],
            tls=tls,
            config=TransportConfig(),
            handler=Accepted(),
        )
    assert "\n" not in str(caught.value)


async def test_a_ca_file_that_is_none(certificates: Path) -> None:
    with pytest.raises(LocalError, match=r"cannot use the certificates in .*ca-key\.pem"):
        await dial("127.0.0.1", 1, ClientTls(ca_file=certificates / "ca-key.pem"))


@pytest.mark.parametrize("size", [1199, 16384])
async def test_datagram_sizes_that_cannot_be(size: int) -> None:
    with pytest.raises(LocalError, match=f"datagram_size is {size}"):
        await dial("127.0.0.1", 1, ClientTls(), TransportConfig(datagram_size=size))


# Addresses.


@pytest.mark.parametrize("bound", [*LOOPBACKS, ""])
async def test_every_address_of_a_name_is_tried(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    async with listening(certificates, bound) as (listener, _):
        port = listener.address[1]
        resolve_to(monkeypatch, [(host, port) for host in LOOPBACKS])
        client = await dial("localhost", port, ClientTls(ca_file=certificates / "ca.pem"))
        client.close(0)
        await client.wait_closed()


async def test_a_silent_address_gets_its_share_of_the_time_only(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    async with listening(certificates) as (listener, _):
        resolve_to(monkeypatch, [("127.0.0.1", silent_port), listener.address])
        tls = ClientTls(ca_file=certificates / "ca.pem")
        client = await dial("localhost", 1, tls, TransportConfig(handshake_timeout=1.0))
        client.close(0)
        await client.wait_closed()


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_a_wildcard_takes_both_families(certificates: Path, host: str) -> None:
    async with listening(certificates, "") as (listener, _):
        client = await dial(host, listener.address[1], ClientTls(ca_file=certificates / "ca.pem"))
        client.close(0)
        await client.wait_closed()


@pytest.fixture
def silent_port() -> object:
    """A bound socket that never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


async def test_silence_ends_with_the_handshake_timeout(silent_port: int) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(ConnectError, match=f"127.0.0.1:{silent_port}: no answer") as caught:
        await dial("127.0.0.1", silent_port, ClientTls(), TransportConfig(handshake_timeout=0.3))
    assert caught.value.kind == "unreachable"
    assert asyncio.get_running_loop().time() - started < 2
    assert open_datagram_sockets() == 1, "only the silent one"


@pytest.mark.parametrize(("host", "port"), [("no such host", 4443), ("a" * 70, 1)])
async def test_addresses_that_lead_nowhere(host: str, port: int) -> None:
    error = await refusal(host, port, ClientTls())
    assert error.kind == "unreachable"
    assert host in error.reason


@pytest.mark.parametrize("port", [-1, 0, 65536])
async def test_ports_that_cannot_be_dialled(port: int) -> None:
    with pytest.raises(LocalError, match=f"{port} is no port"):
        await dial("127.0.0.1", port, ClientTls())


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("no such host", 0), ("::1", -1), ("::1", 65536)]
)
async def test_addresses_that_cannot_be_bound(certificates: Path, host: str, port: int) -> None:
    with pytest.raises(LocalError, match=f"cannot listen on {host}|{port} is no port"):
        await backend.listen(
            host,
            port,
            alpn=[ALPN],
            tls=server_tls(certificates),
            config=TransportConfig(),
            handler=Accepted(),
        )


async def test_a_cancelled_dial_leaves_nothing(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = asyncio.Event()

    def note(self: UdpSocket, datagrams: Datagrams) -> bool:
        sent.set()
        return True

    monkeypatch.setattr(UdpSocket, "send", note)
    dialling = asyncio.create_task(dial("127.0.0.1", silent_port, ClientTls()))
    async with asyncio.timeout(PATIENCE):
        await sent.wait()
    assert open_datagram_sockets() == 2
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling
    assert open_datagram_sockets() == 1


async def test_a_dial_that_is_cancelled_as_it_succeeds_closes_what_it_got(
    certificates: Path,
) -> None:
    joined: list[Recorder] = []

    def cancel(connection: Connection) -> Recorder:
        dialling.cancel()
        joined.append(Recorder(connection))
        return joined[0]

    async with listening(certificates) as (listener, _):
        dialling = asyncio.create_task(
            backend.connect(
                *listener.address,
                alpn=[ALPN],
                tls=ClientTls(verify=False),
                config=TransportConfig(),
                handler=cancel,
            )
        )
        with pytest.raises(asyncio.CancelledError):
            await dialling
        assert await joined[0].until_lost() == ConnectionLost(0, "", False, True)
        await joined[0].connection.wait_closed()


# Time.


async def test_pings_keep_a_quiet_connection_open(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pings, enough = 0, asyncio.Event()
    send_ping = CreditConnection.send_ping

    def count(self: CreditConnection, uid: int) -> None:
        nonlocal pings
        pings += 1
        if pings == 16:  # from both ends, so 0.8 s at the least
            enough.set()
        send_ping(self, uid)

    monkeypatch.setattr(CreditConnection, "send_ping", count)
    async with join(backend, certificates, client=IDLE, server=IDLE) as ends:
        async with asyncio.timeout(PATIENCE):
            await enough.wait()
        assert ends.at_client.lost == ends.at_server.lost == []


async def test_a_vanished_peer_is_noticed(certificates: Path) -> None:
    quiet = TransportConfig(idle_timeout=0.3, keep_alive=0.1)
    async with join(backend, certificates, client=quiet, server=quiet) as ends:
        vanish(ends.client)
        expected = ConnectionLost(QuicErrorCode.INTERNAL_ERROR, "Idle timeout", False, False)
        assert await ends.at_server.until_lost() == expected
        assert await ends.at_client.until_lost() == expected


async def test_a_lost_close_is_said_again(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with join(backend, certificates) as ends:
        lose_datagrams(monkeypatch, lambda number: number == 0)
        ends.client.close(9, "heard the second time")
        await ends.at_client.until_lost()
        ends.at_server.put(UNI, b"are you there?")
        assert (await ends.at_server.until_lost()).code == 9


async def test_a_handshake_that_stops_half_way_is_given_up(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TransportConfig(handshake_timeout=0.2)
    async with listening(certificates, config=config) as (listener, accepted):
        forgotten = asyncio.Event()
        ended = listener.ended

        def note(connection: AioquicConnection) -> None:
            ended(connection)
            forgotten.set()

        monkeypatch.setattr(listener, "ended", note)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(first_flight(), listener.address)
            async with asyncio.timeout(PATIENCE):
                await forgotten.wait()
        assert accepted.recorders == []


# Loss and size.


async def test_content_survives_loss(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(5)
    sent = [dice.randbytes(100 * KIB) for _ in range(10)]
    async with join(backend, certificates) as ends:
        lose_datagrams(monkeypatch, lambda _: dice.random() < 0.03)
        for near, _, far in (
            (ends.at_client, 0, ends.at_server),
            (ends.at_server, 0, ends.at_client),
        ):
            for piece in sent:
                near.put(UNI, piece)
            await far.until(lambda f=far: len(f.finished) == len(sent))  # type: ignore[misc]
            assert [far.data[i] for i in near.opened] == sent


async def test_reset_streams_return_their_credit_under_loss(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in flight when a stream was reset counts against MAX_DATA and is never delivered."""
    config = TransportConfig(max_data=64 * KIB)
    dice = random.Random(6)
    async with join(backend, certificates, server=config) as ends:
        lose_datagrams(monkeypatch, lambda _: dice.random() < 0.1)
        for number in range(1, 21):
            stream_id = ends.client.open_stream(bidirectional=False)
            assert stream_id is not None
            ends.client.send(stream_id, bytes(16 * KIB))
            ends.client.flush()
            await ends.at_client.until(lambda: ends.client.unsent() == 0)
            ends.client.reset(stream_id, 1)
            await ends.at_server.until(lambda n=number: len(ends.at_server.resets) == n)  # type: ignore[misc]
        assert ends.at_server.received < 20 * 16 * KIB, "some was lost"


async def test_datagrams_too_large_for_the_path_become_small(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = UdpSocket.send

    def narrow(self: UdpSocket, datagrams: Datagrams) -> bool:
        small = [(data, address) for data, address in datagrams if len(data) <= 1500]
        return send(self, small) and len(small) == len(datagrams)

    monkeypatch.setattr(UdpSocket, "send", narrow)
    large = TransportConfig(datagram_size=9000)
    async with join(backend, certificates, client=large, server=large) as ends:
        ends.at_client.put(UNI, bytes(200 * KIB))
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 1)


async def test_a_client_is_told_by_the_system_that_datagrams_are_too_large(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aioquic_path, "largest_payload", lambda _: SMALLEST_DATAGRAM)
    large = TransportConfig(datagram_size=9000)
    async with join(backend, certificates, client=large) as ends:
        assert isinstance(ends.client, AioquicConnection)
        ends.client.path_failed(OSError(errno.EMSGSIZE, "Message too long"))
        ends.client.path_failed(OSError(errno.ECONNREFUSED, "from anybody"))
        ends.at_client.put(UNI, bytes(20 * KIB))
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 1)
        assert ends.client._quic._max_datagram_size == SMALLEST_DATAGRAM
        assert ends.at_client.lost == []


async def test_large_datagrams_carry_more(certificates: Path) -> None:
    large = TransportConfig(datagram_size=16000)
    async with join(backend, certificates, client=large, server=large) as ends:
        ends.at_client.put(UNI, bytes(1024 * KIB))
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 1)
        assert max(ends.at_server.pieces) > 8000


async def test_the_handler_is_asked_for_more_whenever_all_was_sent(certificates: Path) -> None:
    """A watermark below the congestion window must not leave the window unused."""
    async with join(backend, certificates) as ends:
        for _ in range(8):
            ends.at_client.put(UNI, bytes(512 * KIB))
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 8)
        assert ends.client.unsent() == 0


# Hostile peers.


class Raw(QuicConnectionProtocol):
    """The library's own client, free to break rules."""

    def quic_event_received(self, event: QuicEvent) -> None:
        """Ignores everything."""


@asynccontextmanager
async def raw_client(listener: AioquicListener) -> AsyncIterator[QuicConnectionProtocol]:
    configuration = QuicConfiguration(
        alpn_protocols=[ALPN], verify_mode=0, max_datagram_frame_size=65536
    )
    host, port = listener.address
    async with raw_connect(
        host, port, configuration=configuration, create_protocol=Raw
    ) as protocol:
        yield protocol


def started(connection: Connection) -> int:
    stream_id = connection.open_stream(bidirectional=True)
    assert stream_id is not None
    connection.send(stream_id, b"hello")
    connection.flush()
    return stream_id


async def arrival(accepted: Accepted) -> Recorder:
    async with asyncio.timeout(PATIENCE):
        await accepted.arrived.wait()
    return accepted.recorders[-1]


async def test_datagram_frames_are_handed_over(certificates: Path) -> None:
    async with listening(certificates) as (listener, accepted), raw_client(listener) as raw:
        raw._quic.send_datagram_frame(b"one frame")
        raw.transmit()
        recorder = await arrival(accepted)
        await recorder.until(lambda: recorder.datagrams == [b"one frame"])


async def test_a_peer_that_opens_too_many_streams_is_closed(certificates: Path) -> None:
    config = TransportConfig(max_streams_uni=8)
    async with listening(certificates, config=config) as (listener, accepted):
        async with raw_client(listener) as raw:
            raw._quic._remote_max_streams_uni = 1 << 20
            raw._quic.send_stream_data(2 + 4 * 8, b"one too many")
            raw.transmit()
            lost = await (await arrival(accepted)).until_lost()
        assert (lost.code, lost.remote, lost.application) == (
            QuicErrorCode.STREAM_LIMIT_ERROR,
            False,
            False,
        )


async def test_a_peer_that_sends_beyond_its_credit_is_closed(certificates: Path) -> None:
    config = TransportConfig(max_data=16 * KIB)
    async with listening(certificates, config=config) as (listener, accepted):
        async with raw_client(listener) as raw:
            recorder = await arrival(accepted)
            recorder.consume = False
            raw._quic._remote_max_data = 1 << 30
            raw._quic.send_stream_data(2, bytes(64 * KIB))
            raw.transmit()
            lost = await recorder.until_lost()
        assert lost.code == QuicErrorCode.FLOW_CONTROL_ERROR


async def test_a_transport_close_of_the_peer_is_told_from_an_application_close(
    certificates: Path,
) -> None:
    async with listening(certificates) as (listener, accepted), raw_client(listener) as raw:
        recorder = await arrival(accepted)
        raw._quic.close(error_code=0xA, frame_type=0, reason_phrase="yours\x1b[2J")
        raw.transmit()
        assert await recorder.until_lost() == ConnectionLost(0xA, "yours?[2J", True, False)


async def test_stop_sending_is_reported_once(certificates: Path) -> None:
    async with listening(certificates) as (listener, accepted), raw_client(listener) as raw:
        recorder = await arrival(accepted)
        stream_id = started(recorder.connection)
        while stream_id not in raw._quic._streams:
            await raw.ping()
        for _ in range(3):
            raw._quic.stop_stream(stream_id, 4)
            await raw.ping()
        await recorder.until(lambda: bool(recorder.stops))
        assert recorder.stops == [(stream_id, 4)]


@pytest.mark.parametrize("seed", range(40))
async def test_frames_of_nonsense_end_their_connection_at_worst(
    certificates: Path, seed: int
) -> None:
    """Packets that decrypt, with frames that no library would write."""
    dice = random.Random(seed)

    def nonsense(builder: QuicPacketBuilder, *_: object, **__: object) -> None:
        buffer = builder.start_frame(QuicFrameType.PING, capacity=600)
        for _frame in range(dice.randrange(1, 12)):
            buffer.push_uint_var(dice.choice([*range(0x1F), 0x30, 0x31]))
            for _field in range(dice.randrange(5)):
                buffer.push_uint_var(
                    dice.choice([0, 1, 2, 3, 4, 7, 63, 300, 1 << 40, (1 << 62) - 1])
                )

    async with listening(certificates) as (listener, accepted), raw_client(listener) as raw:
        recorder = await arrival(accepted)
        stream_id = started(recorder.connection)
        while stream_id not in raw._quic._streams:
            await raw.ping()
        raw._quic._write_ping_frame = nonsense  # type: ignore[method-assign]
        before = recorder.calls
        for uid in range(10):
            raw._quic.send_ping(uid)
            raw.transmit()
        await recorder.until(lambda: recorder.calls > before)
        recorder.connection.close(0)
        await recorder.until_lost()


async def test_garbage_changes_nothing(certificates: Path) -> None:
    dice = random.Random(7)
    async with join(backend, certificates) as ends:
        address = ends.listener.address
        known = next(iter(ends.listener._connections))  # type: ignore[attr-defined]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for number in range(600):
                size = dice.choice([0, 1, 7, 20, 50, 1199, 1200, 1500, 9000])
                data = bytearray(dice.randbytes(size))
                if number % 3 == 0 and size > 20:  # an Initial packet of version 1
                    data[:7] = b"\xc3\0\0\0\1\x08" + data[6:7]
                elif number % 3 == 1 and size > 20:  # a packet for the connection there is
                    data[:9] = b"\x43" + known
                sock.sendto(data, address)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            ends.at_client.put(UNI, bytes(300 * KIB))
            await ends.at_server.until(lambda: len(ends.at_server.finished) == 1)
        assert ends.at_client.lost == ends.at_server.lost == []
        assert list(ends.listener._half_open) == []  # type: ignore[attr-defined]


async def test_an_unknown_version_is_answered_with_those_there_are(certificates: Path) -> None:
    hello = bytearray(first_flight())
    hello[1:5] = b"\x1a\x2a\x3a\x4a"
    loop = asyncio.get_running_loop()
    async with listening(certificates) as (listener, _):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(listener.address)
            sock.send(hello[:1199])  # too small to be answered
            sock.send(hello)
            async with asyncio.timeout(PATIENCE):
                answer = await loop.sock_recv(sock, 2000)
            assert answer[1:5] == bytes(4)
            assert bytes.fromhex("00000001") in answer
            with pytest.raises(BlockingIOError):
                sock.recv(2000)


async def test_handshakes_under_way_are_bounded(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moqt.quic.listening.MAX_HALF_OPEN", 0)
    async with listening(certificates) as (listener, accepted):
        with pytest.raises(ConnectError) as caught:
            await dial(
                *listener.address,
                ClientTls(verify=False),
                TransportConfig(handshake_timeout=0.3),
            )
        assert caught.value.kind == "unreachable"
        assert accepted.recorders == []


@pytest.mark.parametrize("name", ["receive_datagram", "datagrams_to_send", "handle_timer"])
async def test_a_fault_of_the_library_ends_one_connection_only(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with listening(certificates) as (listener, accepted):
        tls = ClientTls(ca_file=certificates / "ca.pem")
        victim = await dial(*listener.address, tls, IDLE)
        at_server = await arrival(accepted)
        accepted.arrived.clear()
        other = await dial(*listener.address, tls, IDLE)
        await arrival(accepted)

        def fault(*_: object, **__: object) -> None:
            raise IndexError("pop from an empty list")

        assert isinstance(at_server.connection, AioquicConnection)
        monkeypatch.setattr(at_server.connection._quic, name, fault)
        started(victim)
        lost = await at_server.until_lost()
        assert (lost.remote, lost.application) == (False, False)
        assert "IndexError" in lost.reason
        await at_server.connection.wait_closed()
        monkeypatch.undo()
        spared = accepted.recorders[-1]
        stream_id = started(other)
        await spared.until(lambda: stream_id in spared.data)
        for client in (victim, other):
            client.close(0)
            await client.wait_closed()


# What is left behind.


def whole_session(certificates: Path) -> object:
    async def run() -> None:
        async with join(backend, certificates) as ends:
            ends.at_server.echo = True
            ends.at_client.put(0, bytes(300 * KIB))
            await ends.at_client.until(lambda: len(ends.at_client.finished) == 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    return run()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_either_loop_will_do(certificates: Path, new_loop: object) -> None:
    with asyncio.Runner(loop_factory=new_loop, debug=True) as runner:  # type: ignore[arg-type]
        runner.run(whole_session(certificates))  # type: ignore[arg-type]
    assert open_datagram_sockets() == 0


def open_datagram_sockets() -> int:
    gc.collect()
    return sum(
        isinstance(thing, socket.socket)
        and thing.type == socket.SOCK_DGRAM
        and thing.fileno() != -1
        for thing in gc.get_objects()
    )


def resolve_to(monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[str, int]]) -> None:
    """Makes every name lead to these."""
    infos = [
        info
        for address in addresses
        for info in socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)
    ]

    async def getaddrinfo(*_: object, **__: object) -> object:
        return infos

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


def vanish(connection: object) -> None:
    """Closes a client's socket behind its back."""
    assert isinstance(connection, AioquicConnection)
    link = connection._link
    link._socket.close()  # type: ignore[attr-defined]


def lose_datagrams(monkeypatch: pytest.MonkeyPatch, unlucky: object) -> None:
    """Drops what is sent from now on where `unlucky(number)` says so."""
    assert callable(unlucky)
    send, number = UdpSocket.send, 0

    def lossy(self: UdpSocket, datagrams: Datagrams) -> bool:
        nonlocal number
        kept = []
        for datagram in datagrams:
            if not unlucky(number):
                kept.append(datagram)
            number += 1
        return send(self, kept)

    monkeypatch.setattr(UdpSocket, "send", lossy)


def first_flight() -> bytes:
    """A client's first datagram."""
    quic = CreditConnection(configuration=QuicConfiguration(alpn_protocols=[ALPN], server_name="x"))
    quic.connect(("127.0.0.1", 1), now=0.0)
    return quic.datagrams_to_send(now=0.0)[0][0]
