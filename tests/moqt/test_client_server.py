"""`connect` and `serve` over memory and over real sockets: whole retrievals, errors, and a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moqt import (
    Backend,
    ClientTls,
    Config,
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    Publisher,
    Server,
    Session,
    SessionConfig,
    Track,
    TransportConfig,
    connect,
    serve,
)
from moqt.config import KIB
from moqt.errors import (
    ConnectError,
    DeadlineExceeded,
    LocalError,
    SessionClosed,
    SessionErrorCode,
)
from moqt.protocol.session import SessionCore
from moqt.quic.memory import MemoryBackend
from tests.support.cores import Recorder
from tests.support.ends import (
    ALL,
    NAME,
    NEXT,
    assert_clean,
    config,
    content,
    eventually,
    grid,
    normal,
    once,
    publish,
)
from tests.support.quic import server_tls

PATIENCE = 20.0


@asynccontextmanager
async def serving(
    backend: Backend,
    certificates: Path,
    origin: Publisher,
    *,
    client: Config | None = None,
    server: Config | None = None,
) -> AsyncIterator[tuple[Server, Session]]:
    """A server on a free port and a session with it; afterwards no task is left."""
    before = asyncio.all_tasks()
    async with asyncio.timeout(PATIENCE):
        tls = server_tls(certificates)
        async with await serve(
            "127.0.0.1", 0, origin, tls=tls, config=server, backend=backend
        ) as listening:
            session = await connect(
                listening.url,
                tls=ClientTls(ca_file=certificates / "ca.pem"),
                config=client,
                backend=backend,
            )
            async with session:
                yield listening, session
    assert asyncio.all_tasks() == before


def origin_with(*names: bytes) -> tuple[Publisher, list[Track]]:
    origin = Publisher()
    origin.add_namespace(NAME.namespace)
    return origin, [origin.add_track(Track(FullTrackName(NAME.namespace, name))) for name in names]


async def test_live_and_history_over_every_backend(backend: Backend, certificates: Path) -> None:
    origin, (track,) = origin_with(b"t")
    publish(track, range(4), size=3000)
    async with serving(backend, certificates, origin) as (_, session):
        assert session.driver.transport.alpn == "moqt-22"
        receiver = Recorder()
        subscription = await session.subscribe(
            *track.name, location=NEXT, fill=ALL, receiver=receiver
        )
        publish(track, range(4, 8), size=3000)
        track.end()
        assert await subscription.finished is None
        found = [(at, data) for at, data in receiver.objects if data]
        assert once(at for at, _ in found) == set(grid(range(8)))
        assert all(data == content(at, 3000) for at, data in found)
        fetch = await session.fetch(
            *track.name,
            location=LocationFilter.absolute_groups(Location(1, 0), 2),
            group_order=GroupOrder.DESCENDING,
        )
        assert normal([item async for item in fetch]) == grid([2]) + grid([1])
        assert await session.track_status(*track.name) == (Location(7, 3), ())
        watched = await session.subscribe_namespace((b"kv",))
        assert (await anext(watched.__aiter__())).namespace == NAME.namespace
        watched.cancel()


async def test_few_streams_are_enough(backend: Backend, certificates: Path) -> None:
    """Two tracks of 80 groups over eight unidirectional streams, the control stream among them."""
    few = config(transport=TransportConfig(max_streams_uni=8))
    origin, tracks = origin_with(b"k", b"v")
    async with serving(backend, certificates, origin, client=few, server=few) as (_, session):
        subscriptions = [
            await session.subscribe(*track.name, location=NEXT, fill=ALL) for track in tracks
        ]

        async def produce() -> None:
            for group in range(80):
                for track in tracks:
                    publish(track, [group], 2, size=4000)
                if group % 8 == 0:
                    await asyncio.sleep(0)
            for track in tracks:
                track.end()

        async def consume(n: int) -> None:
            items = [item async for item in subscriptions[n]]
            assert once(normal(items)) == set(grid(range(80), 2))

        await asyncio.gather(produce(), consume(0), consume(1))


async def test_a_hundred_quick_cycles_leave_nothing(backend: Backend, certificates: Path) -> None:
    origin, (track,) = origin_with(b"t")
    publish(track, range(2))
    async with serving(backend, certificates, origin) as (listening, session):
        for n in range(100):
            subscription = await session.subscribe(*track.name, location=NEXT, fill=ALL)
            if n % 3:
                await subscription.filled
            subscription.cancel()
        fetch = await session.fetch(*track.name)
        assert len([item async for item in fetch]) == 8
        await origin.wait_idle()
        (far,) = listening.sessions
        for driver in (session.driver, far.driver):
            await eventually(lambda core=driver.core: not _busy(core))  # type: ignore[misc]
            assert_clean(driver)


def _busy(core: SessionCore) -> bool:
    return bool(core.requests.open or core.requests.openings.waiting or core.data._streams)


async def test_an_idle_reader_stops_the_sender(backend: Backend, certificates: Path) -> None:
    window = 128 * KIB
    small = config(transport=TransportConfig(max_data=window, max_stream_data=window))
    origin, (track,) = origin_with(b"t")
    publish(track, range(50), size=8 * KIB)
    track.end()
    async with serving(backend, certificates, origin, client=small) as (_, session):
        subscription = await session.subscribe(*track.name, location=NEXT, fill=ALL)
        items = subscription.__aiter__()
        first = await anext(items)
        driver = session.driver
        await eventually(lambda: driver.held >= window - 40 * KIB)
        assert driver.core.data.taken <= window + 16 * KIB
        rest = [item async for item in items]
        assert once(normal([first, *rest])) == set(grid(range(50)))
        assert driver.held == 0


async def test_both_ends_publish(backend: Backend, certificates: Path) -> None:
    origin, (track,) = origin_with(b"t")
    publish(track, [0])
    mine, (other,) = origin_with(b"mine")
    publish(other, [5])
    before = asyncio.all_tasks()
    async with (
        asyncio.timeout(PATIENCE),
        await serve(
            "127.0.0.1", 0, origin, tls=server_tls(certificates), backend=backend
        ) as listening,
        await connect(
            listening.url,
            tls=ClientTls(ca_file=certificates / "ca.pem"),
            responder=mine,
            backend=backend,
        ) as session,
    ):
        await session.peer_options()
        await eventually(lambda: listening.sessions)
        (far,) = listening.sessions
        near_fetch, far_fetch = await asyncio.gather(
            session.fetch(*track.name), far.fetch(*other.name)
        )
        assert normal([item async for item in near_fetch]) == grid([0])
        assert normal([item async for item in far_fetch]) == grid([5])
    assert asyncio.all_tasks() == before


async def test_a_server_that_closes(backend: Backend, certificates: Path) -> None:
    origin, (track,) = origin_with(b"t")
    async with serving(backend, certificates, origin) as (listening, session):
        subscription = await session.subscribe(*track.name)
        await listening.close()
        with pytest.raises(SessionClosed) as caught:
            [item async for item in subscription]
        assert caught.value.code == SessionErrorCode.NO_ERROR
        assert caught.value.remote
        assert listening.sessions == []
        await listening.close()


async def test_a_client_that_leaves(backend: Backend, certificates: Path) -> None:
    origin, (track,) = origin_with(b"t")
    async with serving(backend, certificates, origin) as (listening, session):
        await session.subscribe(*track.name)
        (far,) = listening.sessions
        await session.close(SessionErrorCode.INTERNAL_ERROR, "tired")
        error = await far.wait_closed()
        assert (error.code, error.reason, error.remote) == (1, "tired", True)
        assert origin.active == 0
        assert track._listeners == []


async def test_a_broken_rule_is_told_to_the_other_side(
    backend: Backend, certificates: Path
) -> None:
    origin, _ = origin_with()
    async with serving(backend, certificates, origin) as (_, session):
        await session.peer_options()
        transport = session.driver.transport
        stream_id = transport.open_stream(bidirectional=True)
        assert stream_id is not None
        transport.send(stream_id, b"\x40\x00\x00")
        transport.flush()
        error = await session.wait_closed()
        assert error.code == SessionErrorCode.PROTOCOL_VIOLATION
        assert error.remote
        assert "0x40" in error.reason


async def test_a_silent_peer_meets_the_deadline(backend: Backend, certificates: Path) -> None:
    class Silent(Publisher):
        def request_received(self, driver: object, request: object) -> None:
            """Says nothing."""

    hasty = config(SessionConfig(request_timeout=0.05))
    async with serving(backend, certificates, Silent(), client=hasty) as (_, session):
        await session.peer_options()
        with pytest.raises(DeadlineExceeded):
            await session.subscribe(*NAME)
        assert not session.driver.core.requests.open
        assert session.closed is None


@pytest.mark.parametrize("url", ["http://x/", "moqt://"])
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(LocalError):
        await connect(url, backend=MemoryBackend())


async def test_nobody_there() -> None:
    with pytest.raises(ConnectError):
        await connect("moqt://localhost:5", backend=MemoryBackend())


async def test_a_peer_of_another_version() -> None:
    backend = MemoryBackend()
    listener = await backend.listen(
        "x",
        0,
        alpn=["moqt-18"],
        tls=server_tls(Path("none")),
        config=TransportConfig(),
        handler=lambda connection: pytest.fail("no session may come of it"),
    )
    with pytest.raises(ConnectError) as caught:
        await connect(f"moqt://x:{listener.address[1]}", backend=backend)
    assert caught.value.kind == "alpn"
    listener.close()


async def test_path_and_authority_reach_the_server(certificates: Path) -> None:
    backend = MemoryBackend()
    origin, _ = origin_with()
    async with await serve("x", 0, origin, tls=server_tls(certificates), backend=backend) as server:
        url = f"moqt://x:{server.address[1]}/a b?c"
        async with await connect(url, backend=backend) as session:
            await session.peer_options()
            await eventually(lambda: server.sessions)
            (far,) = server.sessions
            options = await far.peer_options()
            assert options.path == "/a%20b?c"
            assert options.authority == f"x:{server.address[1]}"
            assert session.url == f"moqt://x:{server.address[1]}/a%20b?c"


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_close_that_is_interrupted_leaves_nothing(
    backend: Backend, certificates: Path, side: str
) -> None:
    """Sockets go with it: a second Ctrl-C does not wait for a closing period."""
    before = asyncio.all_tasks()
    origin, _ = origin_with(b"t")
    tls = server_tls(certificates)
    server = await serve("127.0.0.1", 0, origin, tls=tls, backend=backend)
    trust = ClientTls(ca_file=certificates / "ca.pem")
    session = await connect(server.url, tls=trust, backend=backend)
    await eventually(lambda: len(server.sessions) == 1)
    (accepted,) = server.sessions
    end, transport = (server, accepted) if side == "server" else (session, session)
    closing = asyncio.create_task(end.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gone = asyncio.create_task(transport.driver.transport.wait_closed())
    await asyncio.sleep(0)
    assert gone.done()
    await session.close()
    await server.close()
    await eventually(lambda: asyncio.all_tasks() == before)
