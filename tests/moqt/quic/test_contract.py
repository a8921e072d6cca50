"""What base.py promises, of every backend."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from moqt.config import KIB, TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic import backend as named
from moqt.quic.base import Backend, ClientTls, Connection, ConnectionLost
from tests.support.quic import ALPN, Accepted, Recorder, join, server_tls

BIDI, UNI = 0, 2
SMALL = TransportConfig(
    max_streams_uni=8, max_streams_bidi=3, max_data=64 * KIB, max_stream_data=16 * KIB
)


def content(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def started(connection: Connection, *, bidirectional: bool, data: bytes = b"header") -> int:
    stream_id = connection.open_stream(bidirectional=bidirectional)
    assert stream_id is not None
    connection.send(stream_id, data)
    connection.flush()
    return stream_id


async def test_a_handshake_tells_both_ends_the_protocol(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        assert (ends.client.is_client, ends.server.is_client) == (True, False)
        assert ends.client.alpn == ends.server.alpn == ALPN
        assert ends.listener.address[0] == "127.0.0.1"
        assert ends.listener.address[1] > 0


async def test_streams_have_the_ids_of_quic(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        for connection, bidi, uni in ((ends.client, 0, 2), (ends.server, 1, 3)):
            assert connection.open_stream(bidirectional=True) == bidi
            assert connection.open_stream(bidirectional=True) == bidi
            assert started(connection, bidirectional=True) == bidi
            assert connection.open_stream(bidirectional=True) == bidi + 4
            assert started(connection, bidirectional=False) == uni
            assert connection.open_stream(bidirectional=False) == uni + 4


async def test_an_echo_comes_back_on_the_same_stream(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        for _, near, _, far in ends.sides():
            sent = content(1, 100_000)
            far.echo = True
            near.put(BIDI, sent)
            stream_id = near.opened[-1]
            await near.until(lambda n=near, s=stream_id: s in n.finished)  # type: ignore[misc]
            assert near.data[stream_id] == far.data[stream_id] == sent
            far.echo = False


async def test_24_streams_arrive_whole(backend: Backend, certificates: Path) -> None:
    sent = [content(seed, 256 * KIB) for seed in range(24)]
    async with join(backend, certificates) as ends:
        for piece in sent:
            ends.at_client.put(UNI, piece)
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 24)
        assert [ends.at_server.data[i] for i in ends.at_client.opened] == sent
        await ends.at_client.until(lambda: ends.client.unsent() == 0)


async def test_an_empty_stream_is_only_its_end(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        stream_id = ends.client.open_stream(bidirectional=False)
        assert stream_id is not None
        ends.client.send(stream_id, b"", True)
        ends.client.flush()
        await ends.at_server.until(lambda: ends.at_server.finished == [stream_id])
        assert ends.at_server.data == {stream_id: b""}


async def test_a_bytearray_that_is_handed_over_may_change(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        stream_id = ends.client.open_stream(bidirectional=False)
        assert stream_id is not None
        buffer = bytearray(b"before")
        ends.client.send(stream_id, buffer, True)
        buffer[:] = b"after!!"
        ends.client.flush()
        await ends.at_server.until(lambda: ends.at_server.finished == [stream_id])
        assert ends.at_server.data[stream_id] == b"before"


async def test_a_reset_carries_its_code(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        for near, _, _, far in ends.sides():
            for bidirectional in (True, False):
                stream_id = started(near, bidirectional=bidirectional)
                await far.until(lambda f=far, s=stream_id: f.data[s] == b"header")  # type: ignore[misc]
                near.reset(stream_id, 0x13)
                near.reset(stream_id, 0x14)
                await far.until(lambda f=far, s=stream_id: (s, 0x13) in f.resets)  # type: ignore[misc]
                near.send(stream_id, b"too late", True)
                near.flush()
            assert near.unsent() == 0


async def test_a_stream_can_be_reset_before_anything_was_sent(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        stream_id = ends.client.open_stream(bidirectional=False)
        assert stream_id is not None
        ends.client.reset(stream_id, 9)
        assert ends.client.open_stream(bidirectional=False) == stream_id + 4
        await ends.at_server.until(lambda: ends.at_server.resets == [(stream_id, 9)])


async def test_a_reset_gives_back_what_was_not_sent(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates, server=SMALL) as ends:
        ends.at_server.consume = False
        stream_id = started(ends.client, bidirectional=False, data=content(2, 100 * KIB))
        await ends.at_server.until(lambda: ends.at_server.received == SMALL.max_data)
        assert ends.client.unsent() == 100 * KIB - SMALL.max_data
        ends.client.reset(stream_id, 1)
        assert ends.client.unsent() == 0
        ends.client.reset(stream_id, 1)
        assert ends.client.unsent() == 0
        await ends.at_server.until(lambda: ends.at_server.resets == [(stream_id, 1)])
        assert ends.client.unsent() == 0


async def test_stop_is_heard_and_answered_with_a_reset(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        for near, teller, far, listener in ends.sides():
            for bidirectional in (True, False):
                stream_id = started(near, bidirectional=bidirectional)
                await listener.until(lambda r=listener, s=stream_id: r.data[s] == b"header")  # type: ignore[misc]
                far.stop(stream_id, 0x1234)
                far.stop(stream_id, 0x1235)
                await teller.until(lambda r=teller, s=stream_id: (s, 0x1234) in r.stops)  # type: ignore[misc]
                near.send(stream_id, b"unwanted", True)
                near.flush()
                await listener.until(lambda r=listener, s=stream_id: (s, 0x1234) in r.resets)  # type: ignore[misc]
                assert listener.data[stream_id] == b"header"
            assert near.unsent() == 0


async def test_after_stop_an_end_counts_as_a_reset(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        stream_id = started(ends.client, bidirectional=False)
        await ends.at_server.until(lambda: ends.at_server.data[stream_id] == b"header")
        ends.client.send(stream_id, b"the rest", True)
        ends.client.flush()
        ends.server.stop(stream_id, 7)
        await ends.at_server.until(lambda: bool(ends.at_server.resets))
        assert ends.at_server.resets == [(stream_id, 7)]
        assert ends.at_server.data[stream_id] == b"header"
        assert ends.at_server.finished == []


async def test_stopped_streams_return_their_credit(backend: Backend, certificates: Path) -> None:
    """Otherwise a subscriber that skips groups would stop its publisher for good."""
    async with join(backend, certificates, server=SMALL) as ends:
        for number in range(1, 41):
            stream_id = started(ends.client, bidirectional=False, data=bytes(10 * KIB))
            await ends.at_server.until(lambda s=stream_id: s in ends.at_server.data)  # type: ignore[misc]
            ends.server.stop(stream_id, 1)
            await ends.at_server.until(lambda n=number: len(ends.at_server.resets) == n)  # type: ignore[misc]
            await ends.at_client.until(
                lambda: ends.client.open_stream(bidirectional=False) is not None
            )
        assert ends.client.unsent() == 0


@pytest.mark.parametrize("code", [0, 0x3, 0x3FFFFFFF])
async def test_close_carries_code_and_reason_to_the_peer(
    backend: Backend, certificates: Path, code: int
) -> None:
    async with join(backend, certificates) as ends:
        ends.server.close(code, "no more")
        ends.server.close(1, "again")
        assert ends.at_server.lost == []
        assert await ends.at_client.until_lost() == ConnectionLost(code, "no more", True, True)
        assert await ends.at_server.until_lost() == ConnectionLost(code, "no more", False, True)
        await ends.server.wait_closed()
        await ends.client.wait_closed()


async def test_what_is_due_goes_out_before_a_close(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        started(ends.client, bidirectional=False, data=b"last words")
        ends.client.close(0)
        await ends.at_server.until_lost()
        assert ends.at_server.data[2] == b"last words"


async def test_a_lost_connection_takes_calls_and_does_nothing(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        stream_id = started(ends.client, bidirectional=True)
        ends.client.close(0)
        for moment in range(2):
            assert ends.client.open_stream(bidirectional=True) is None
            ends.client.send(stream_id, b"more", True)
            ends.client.reset(stream_id, 1)
            ends.client.stop(stream_id, 1)
            ends.client.consumed(10)
            ends.client.flush()
            ends.client.close(5)
            assert ends.client.unsent() == 0
            if not moment:
                await ends.client.wait_closed()
        assert ends.at_client.lost == [ConnectionLost(0, "", False, True)]


@pytest.mark.parametrize("kind", [UNI, BIDI])
async def test_stream_credit_runs_out_and_comes_back(
    backend: Backend, certificates: Path, kind: int
) -> None:
    allowed = SMALL.max_streams_uni if kind == UNI else SMALL.max_streams_bidi
    async with join(backend, certificates, server=SMALL) as ends:
        streams = [started(ends.client, bidirectional=not kind) for _ in range(allowed)]
        assert ends.client.open_stream(bidirectional=not kind) is None
        assert ends.client.open_stream(bidirectional=bool(kind)) is not None
        for stream_id in streams:
            ends.client.send(stream_id, b"", True)
        ends.client.flush()
        await ends.at_server.until(lambda: sorted(ends.at_server.finished) == streams)
        if kind == BIDI:
            assert ends.client.open_stream(bidirectional=True) is None
            for stream_id in streams:
                ends.server.send(stream_id, b"answer", True)
            ends.server.flush()
        await ends.at_client.until(
            lambda: ends.client.open_stream(bidirectional=not kind) is not None
        )


async def test_many_more_streams_than_are_allowed_at_once(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates, server=SMALL) as ends:
        for number in range(100):
            ends.at_client.put(UNI, b"stream %d" % number)
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 100)
        assert ends.at_server.data == {
            2 + 4 * number: b"stream %d" % number for number in range(100)
        }


async def test_a_receiver_that_consumes_nothing_stops_the_sender(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates, server=SMALL) as ends:
        at_server = ends.at_server
        at_server.consume = False
        sent = [content(seed, 16 * KIB) for seed in range(8)]
        for piece in sent:
            ends.at_client.put(UNI, piece)
        await at_server.until(lambda: at_server.received == SMALL.max_data)
        assert ends.client.unsent() == sum(map(len, sent)) - SMALL.max_data
        at_server.consume = True
        ends.server.consumed(SMALL.max_data // 4)
        await at_server.until(lambda: at_server.received >= SMALL.max_data * 5 // 4)
        ends.server.consumed(SMALL.max_data * 3 // 4)
        await at_server.until(lambda: len(at_server.finished) == len(sent))
        assert [at_server.data[i] for i in ends.at_client.opened] == sent
        assert ends.client.unsent() == 0


async def test_one_stream_may_be_longer_than_both_windows(
    backend: Backend, certificates: Path
) -> None:
    sent = content(3, 1024 * KIB)
    async with join(backend, certificates, client=SMALL, server=SMALL) as ends:
        for near, recorder, _, far in ends.sides():
            recorder.put(UNI, sent)
            await far.until(lambda f=far: len(f.finished) == 1)  # type: ignore[misc]
            assert far.data[recorder.opened[0]] == sent
            assert near.unsent() == 0


async def test_what_makes_no_sense_is_ignored(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        ours = started(ends.client, bidirectional=False)
        await ends.at_server.until(lambda: ours in ends.at_server.data)
        ends.client.stop(ours, 1)  # we are its sender
        ends.server.send(ours, b"theirs", True)
        ends.server.reset(ours, 1)
        for unknown in (42, 43, 1001, 1002):
            ends.client.reset(unknown, 1)
            ends.client.stop(unknown, 1)
        ends.client.send(43, b"not ours")
        ends.client.send(ours, b"", True)
        ends.client.send(ours, b"after the end", True)
        ends.client.flush()
        await ends.at_server.until(lambda: ends.at_server.finished == [ours])
        ends.server.stop(ours, 1)
        for recorder in (ends.at_client, ends.at_server):
            assert [recorder.resets, recorder.stops, recorder.lost] == [[], [], []]
        assert ends.client.unsent() == ends.server.unsent() == 0
        assert ends.client.open_stream(bidirectional=False) == ours + 4


async def test_no_call_reaches_the_handler_before_it_returns(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        before = ends.at_client.calls
        stream_id = started(ends.client, bidirectional=True)
        ends.client.consumed(1 << 30)
        ends.client.stop(stream_id, 1)
        ends.client.reset(stream_id, 1)
        ends.client.close(0)
        assert ends.at_client.calls == before
        await ends.at_client.until_lost()


class Hasty(Recorder):
    """Does everything at once in its first call."""

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        super().stream_data(stream_id, data, fin)
        answer = self.connection.open_stream(bidirectional=False)
        assert answer is not None
        self.connection.send(answer, b"answer", True)
        self.connection.flush()
        self.connection.stop(stream_id, 3)
        self.connection.close(4, "from within")
        self.connection.flush()


async def test_a_handler_may_send_and_close_from_within_a_call(
    backend: Backend, certificates: Path
) -> None:
    hasty: list[Hasty] = []
    near = Accepted()

    def accept(connection: Connection) -> Hasty:
        hasty.append(Hasty(connection))
        return hasty[-1]

    listener = await backend.listen(
        "127.0.0.1",
        0,
        alpn=[ALPN],
        tls=server_tls(certificates),
        config=TransportConfig(),
        handler=accept,
    )
    client = await backend.connect(
        "127.0.0.1",
        listener.address[1],
        alpn=[ALPN],
        tls=ClientTls(ca_file=certificates / "ca.pem"),
        config=TransportConfig(),
        handler=near,
    )
    at_client = near.recorders[0]
    for _ in range(3):
        started(client, bidirectional=False)
    assert (await at_client.until_lost()).code == 4
    assert bytes(at_client.data[3]) == b"answer"
    assert len(hasty[0].data) == 1, "nothing is delivered after close"
    assert len(hasty[0].lost) == 1
    listener.close()
    await listener.wait_closed()
    await client.wait_closed()


async def test_a_closing_listener_closes_its_connections(
    backend: Backend, certificates: Path
) -> None:
    async with join(backend, certificates) as ends:
        ends.listener.close()
        ends.listener.close()
        assert await ends.at_client.until_lost() == ConnectionLost(0, "", True, True)
        await ends.listener.wait_closed()
        assert len(ends.at_server.lost) == 1


async def test_a_dropped_connection_waits_for_nothing(backend: Backend, certificates: Path) -> None:
    """With a close under way or without, both sides; twice is once."""
    async with join(backend, certificates) as ends:
        ends.at_client.put(UNI, bytes(100 * KIB))
        ends.server.close(7, "enough")
        for connection in (ends.server, ends.client):
            connection.drop()
            connection.drop()
            waiting = asyncio.create_task(connection.wait_closed())
            await asyncio.sleep(0)
            assert waiting.done()
        assert ends.at_server.lost == [ConnectionLost(7, "enough", False, True)]
        assert len(ends.at_client.lost) == 1


async def test_no_common_protocol(backend: Backend, certificates: Path) -> None:
    far = Accepted()
    listener = await backend.listen(
        "127.0.0.1",
        0,
        alpn=["moqt-22"],
        tls=server_tls(certificates),
        config=TransportConfig(),
        handler=far,
    )
    with pytest.raises(ConnectError) as caught:
        await backend.connect(
            "127.0.0.1",
            listener.address[1],
            alpn=["moqt-21"],
            tls=ClientTls(ca_file=certificates / "ca.pem"),
            config=TransportConfig(),
            handler=Accepted(),
        )
    assert caught.value.kind == "alpn"
    assert str(listener.address[1]) in str(caught.value)
    assert far.recorders == []
    listener.close()
    await listener.wait_closed()


async def test_nobody_listens_where_a_listener_was(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        port = ends.listener.address[1]
    with pytest.raises(ConnectError, match=f"127.0.0.1:{port}") as caught:
        await backend.connect(
            "127.0.0.1",
            port,
            alpn=[ALPN],
            tls=ClientTls(verify=False),
            config=TransportConfig(handshake_timeout=0.5),
            handler=Accepted(),
        )
    assert caught.value.kind == "unreachable"


async def test_a_port_is_listened_on_once(backend: Backend, certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        with pytest.raises(LocalError, match="cannot listen on"):
            await backend.listen(
                *ends.listener.address,
                alpn=[ALPN],
                tls=server_tls(certificates),
                config=TransportConfig(),
                handler=Accepted(),
            )


async def test_nothing_is_left_behind(backend: Backend, certificates: Path) -> None:
    """Requirement of design rule 6: a closed session leaves no task, timer or socket."""
    async with join(backend, certificates) as ends:
        ends.at_client.put(UNI, bytes(100 * KIB))
        await ends.at_server.until(lambda: len(ends.at_server.finished) == 1)
    loop = asyncio.get_running_loop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    timers = getattr(loop, "_scheduled", [])
    assert [timer for timer in timers if not timer.cancelled()] == []


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(LocalError, match=r"'carrier-pigeon'.*aioquic"):
        named("carrier-pigeon")
