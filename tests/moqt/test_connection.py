"""The driver: deadlines, credit to the octet, order of events, and peers that mean no good."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from moqt import (
    Location,
    LocationFilter,
    Parameters,
    Publisher,
    SessionConfig,
    Track,
    TransportConfig,
    connect,
    serve,
)
from moqt.config import KIB
from moqt.connection import Driver
from moqt.errors import LocalError, SessionClosed, SessionErrorCode, StreamErrorCode
from moqt.protocol.requests import RequestState
from moqt.quic.base import ConnectionLost, Octets, Unmeasured
from moqt.quic.memory import MemoryBackend
from moqt.wire.messages import (
    Fetch,
    Goaway,
    PublishNamespace,
    RequestUpdate,
    SetupOptions,
    Subscribe,
    SubscribeNamespace,
    TrackStatus,
    encode_message,
)
from tests.support.cores import Recorder
from tests.support.ends import (
    ALL,
    NAME,
    NEXT,
    NO_FILES,
    SETUP,
    Origin,
    config,
    ends,
    publish,
    quiet,
    raw_client,
    raw_server,
    settled,
    until,
)
from tests.support.octets import mutate, pieces, streams_of_a_client

Code = SessionErrorCode


def origin() -> Origin:
    made = Origin()
    publish(made.add_track(Track(NAME)), range(3))
    return made


# Deadlines


async def test_a_peer_without_setup_is_left() -> None:
    hasty = config(SessionConfig(setup_timeout=0.01))
    async with raw_client(origin(), server=hasty) as peer:
        async with asyncio.timeout(5):
            await peer.connection.wait_closed()
        assert peer.lost is not None
        assert peer.lost.code == Code.CONTROL_MESSAGE_TIMEOUT
        assert peer.lost.remote


async def test_goaway_with_a_deadline() -> None:
    async with ends() as both:
        subscription = await both.session.subscribe(*NAME)
        both.server.goaway(uri="moqt://elsewhere/", timeout=0.02)
        both.server.goaway(timeout=0.001)
        assert await both.session.driver.goaway == "moqt://elsewhere/"
        with pytest.raises(LocalError):
            await both.session.fetch(*NAME)
        error = await subscription.finished
        assert isinstance(error, SessionClosed)
        assert error.code == Code.GOAWAY_TIMEOUT


async def test_goaway_does_not_hurry_an_idle_session() -> None:
    async with ends() as both:
        both.server.goaway(timeout=0.001)
        await both.session.driver.goaway
        await asyncio.sleep(0.01)
        assert both.session.closed is None
        with pytest.raises(LocalError):
            both.session.goaway(uri="moqt://x/")
        both.session.goaway()


async def test_requests_wait_for_stream_credit() -> None:
    two = config(transport=TransportConfig(max_streams_bidi=2))
    async with ends(server=two) as both:
        held = [await both.session.subscribe_namespace((b"%d" % n,)) for n in range(2)]
        waiting = [asyncio.create_task(both.session.track_status(*NAME)) for _ in range(3)]
        await quiet()
        assert not any(task.done() for task in waiting)
        for watched in held:
            watched.cancel()
        assert await asyncio.gather(*waiting) == [(None, ())] * 3
        await settled(both)


async def test_waiting_for_credit_has_a_deadline() -> None:
    none = config(SessionConfig(request_timeout=0.01), TransportConfig(max_streams_bidi=0))
    async with ends(server=none, client=none) as both:
        before = both.session.driver.core.requests.next_id
        with pytest.raises(Exception, match="no answer"):
            await both.session.track_status(*NAME)
        assert both.session.driver.core.requests.next_id == before


# Order of events


async def test_a_request_that_stays_half_sent_is_given_up() -> None:
    """The others are answered, and the session goes on."""
    served = origin()
    hasty = config(SessionConfig(request_timeout=0.05))
    async with raw_client(served, server=hasty) as peer:
        peer.open(SETUP)
        whole = encode_message(TrackStatus(0, NAME))
        halves = [peer.open(whole[:size], bidirectional=True) for size in (1, 5)]
        await until(lambda: set(halves) <= set(peer.resets) & set(peer.stops))
        stream_id = peer.open(whole, bidirectional=True)
        await until(lambda: stream_id in peer.finished)
        assert peer.lost is None
        late = peer.open(whole[:1], bidirectional=True)
        await until(lambda: late in peer.resets)
        for half in (*halves, late):
            peer.send(half, b"", True)
        await until(lambda: not served.drivers[0].core.requests.openings.waiting)


async def test_a_request_and_its_cancellation_in_one_packet() -> None:
    """The second event is not told while the first is being handled."""
    served = origin()
    async with raw_client(served) as peer:
        peer.open(SETUP)
        await until(lambda: served.drivers)
        stream_id = peer.open(encode_message(Subscribe(0, NAME)), bidirectional=True)
        peer.connection.stop(stream_id, 1)
        await until(lambda: served.drivers[0].core.requests._peer_ids.take(0))
        await quiet()
        assert served.active == 0
        assert served.tracks[NAME]._listeners == []


class Nesting(Publisher):
    """Notes whether it is called while it is being called."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.deepest = 0
        self.calls = 0

    def _enter(self, call: Callable[[], None]) -> None:
        self.calls += 1
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        call()
        self.depth -= 1

    def request_received(self, driver: Driver, request: RequestState) -> None:
        self._enter(lambda: Publisher.request_received(self, driver, request))

    def update_received(
        self, driver: Driver, request: RequestState, update: RequestUpdate, fault: str | None
    ) -> None:
        self._enter(lambda: Publisher.update_received(self, driver, request, update, fault))

    def request_ended(self, driver: Driver, request: RequestState) -> None:
        self._enter(lambda: Publisher.request_ended(self, driver, request))


async def test_events_are_not_nested() -> None:
    served = Nesting()
    publish(served.add_track(Track(NAME)), range(3))
    async with raw_client(served) as peer:
        peer.open(SETUP)
        updates = b"".join(
            encode_message(RequestUpdate(2 + 2 * n, Parameters(forward=bool(n % 2))), Subscribe)
            for n in range(12)
        )
        peer.open(encode_message(Subscribe(0, NAME)) + updates, bidirectional=True)
        await until(lambda: served.calls == 13)
        assert served.deepest == 1
        # All were answered, in order: SUBSCRIBE_OK and twelve REQUEST_OK.
        await quiet()
        assert peer.data[0].count(b"\x07\x00") == 12


async def test_after_a_violation_nothing_more_is_told() -> None:
    served = Nesting()
    async with raw_client(served) as peer:
        peer.open(SETUP)
        octets = encode_message(Subscribe(0, NAME)) + encode_message(Goaway("moqt://x/"))
        peer.open(octets, bidirectional=True)
        await until(lambda: peer.lost)
        assert served.calls == 0
        assert served._peers == {}


# Credit


@pytest.mark.parametrize("seed", range(6))
async def test_credit_comes_back_to_the_octet(seed: int) -> None:
    """Whatever is read, refused, cut, cancelled or stopped: in the end all was consumed, once."""
    choose = random.Random(seed)
    small = config(transport=TransportConfig(max_data=40 * KIB, max_stream_data=16 * KIB))
    async with ends(client=small, budget=3000, rechunk=seed) as both:
        other = Track(NAME._replace(name=b"live"))
        both.origin.add_track(other)
        publish(both.track, range(8), size=1500)

        async def retrieve(n: int) -> None:
            live = n % 3 == 0
            name = other.name if live else NAME
            ask = both.session.subscribe if live else both.session.fetch
            receiver = Recorder(accept=n % 4 != 1) if n % 2 else None
            request = await ask(*name, receiver=receiver)
            if receiver is None:
                items = request.__aiter__()
                for _ in range(choose.randrange(0, 6) if not live else 2):
                    await anext(items)
            else:
                await quiet(choose.randrange(100))
            request.cancel()

        tasks = [asyncio.create_task(retrieve(n)) for n in range(24)]
        for group in range(20):
            publish(other, [group], 2, size=900)
            await quiet(choose.randrange(20))
        await asyncio.gather(*tasks)
        await until(lambda: both.origin.active == 0)
        await settled(both)
        network = both.network
        await quiet(200)
        assert network.client._consumed == network.server._sent
        assert network.server._consumed == network.client._sent


async def test_credit_for_what_waits_for_its_alias() -> None:
    async with raw_server() as (peer, session):
        task = asyncio.create_task(session.subscribe(*NAME))
        await until(lambda: 0 in peer.data)
        peer.open(bytes.fromhex("50070005") + bytes(500))
        await until(lambda: session.driver.core.data.held == 504)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert session.driver.core.data.held == 0
        assert session.driver._balance == 0


# Wary of the peer


async def test_every_kind_of_request_at_once_is_bounded() -> None:
    few = config(SessionConfig(max_requests=5), TransportConfig(max_streams_bidi=50))
    served = origin()
    async with raw_client(served, server=few) as peer:
        peer.open(SETUP)
        for n in range(40):
            peer.open(encode_message(SubscribeNamespace(2 * n, (b"%d" % n,))), bidirectional=True)
        await until(lambda: len(peer.finished) == 35)
        driver = served.drivers[0]
        assert len(driver.core.requests.open) == 5
        assert len(served._peers[driver].watchers) == 5
        assert peer.lost is None


async def test_a_peer_that_asks_and_does_not_read_is_left() -> None:
    few = config(SessionConfig(max_backlog=20_000))
    served = origin()
    deaf = TransportConfig(max_data=1000, max_stream_data=1000)
    async with raw_client(served, server=few, client=deaf) as peer:
        peer.consume = False
        peer.open(SETUP)
        stream_id = peer.open(encode_message(Subscribe(0, NAME)), bidirectional=True)
        for n in range(8000):
            if peer.lost is not None:
                break
            peer.send(stream_id, encode_message(RequestUpdate(2 + 2 * n), Subscribe))
            await quiet(3)
        await until(lambda: peer.lost)
        assert peer.lost is not None
        assert peer.lost.code == Code.INTERNAL_ERROR


async def test_fills_by_update_are_bounded() -> None:
    few = config(SessionConfig(max_fetches=3))
    served = origin()
    async with raw_client(served, server=few, client=TransportConfig(max_streams_uni=1)) as peer:
        peer.open(SETUP)
        fill = Parameters(fill=Parameters(location_filter=ALL))
        stream_id = peer.open(encode_message(Subscribe(0, NAME)), bidirectional=True)
        for n in range(4):
            peer.send(stream_id, encode_message(RequestUpdate(2 + 2 * n, fill), Subscribe))
        await until(lambda: stream_id in peer.finished)
        assert served.active == 0
        assert peer.lost is None


class Stub(Unmeasured):
    """A transport that only counts."""

    is_client = False
    alpn = "moqt-22"

    def __init__(self) -> None:
        self.credit = 0
        self.closed: int | None = None
        self.handler: Driver | None = None
        self._opened = {True: 0, False: 0}

    def open_stream(self, *, bidirectional: bool) -> int | None:
        if self.closed is not None:
            return None
        return self._opened[bidirectional] * 4 + 1 + 2 * (not bidirectional)

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        bidirectional = not stream_id & 2
        if stream_id == self.open_stream(bidirectional=bidirectional):
            self._opened[bidirectional] += 1

    def flush(self) -> None:
        return None

    def unsent(self) -> int:
        return 0

    def data_credit(self) -> int:
        return 1 << 62

    def stream_credit(self, stream_id: int) -> int:
        return 1 << 62

    def reset(self, stream_id: int, code: int) -> None:
        return None

    def stop(self, stream_id: int, code: int) -> None:
        return None

    def consumed(self, octets: int) -> None:
        assert octets > 0
        self.credit += octets

    def close(self, code: int, reason: str = "") -> None:
        self.closed = code

    def drop(self) -> None:
        return None

    async def wait_closed(self) -> None:
        return None


@pytest.mark.parametrize("seed", range(3))
async def test_mutated_octets_never_raise_out_of_the_handler(seed: int) -> None:
    """With a publisher behind it that answers, and subscriptions of its own on the way."""
    choose = random.Random(seed)
    originals = streams_of_a_client()
    for _ in range(150):
        transport = Stub()
        served = Publisher()
        track = served.add_track(Track(NAME))
        publish(track, range(2), size=10)
        driver = Driver(
            transport,
            options=SetupOptions(max_filter_ranges=8),
            config=SessionConfig(auth_token_cache=64),
            responder=served,
        )
        driver.start()
        session_tasks = [
            asyncio.create_task(driver.ask(lambda n: Subscribe(n, NAME), receiver=Recorder())),
            asyncio.create_task(driver.ask(lambda n: Fetch(n, NAME), receiver=Recorder())),
            asyncio.create_task(driver.ask(lambda n: SubscribeNamespace(n, (b"kv",)))),
        ]
        await asyncio.sleep(0)
        received = 0
        lanes = {
            stream_id: list(
                pieces(mutate(data, choose) if choose.random() < 0.15 else data, choose)
            )
            for stream_id, data in originals.items()
        }
        while lanes:
            stream_id = choose.choice(list(lanes))
            lane = lanes[stream_id]
            data = lane.pop(0) if lane else b""
            if not lane:
                del lanes[stream_id]
            received += len(data)
            match choose.randrange(60):
                case 0:
                    driver.stream_reset(stream_id, choose.randrange(20))
                    received -= len(data)
                    lanes.pop(stream_id, None)
                case 1:
                    driver.stop_sending(stream_id, choose.randrange(20))
                    received -= len(data)
                case _:
                    driver.stream_data(stream_id, data, not lane and choose.random() < 0.3)
            driver.writable()
        driver.datagram(choose.randbytes(9))
        await asyncio.sleep(0)
        if transport.closed is None:
            assert transport.credit + driver.core.data.held == received
        driver.close()
        assert transport.closed is not None
        driver.connection_lost(ConnectionLost(0, "", False, True))
        await asyncio.gather(*session_tasks, return_exceptions=True)
        await driver.wait_closed()
        assert served.active == 0
        assert track._listeners == []
        assert served._peers == {}


async def test_a_session_that_lost_its_connection_takes_no_more_work() -> None:
    async with ends() as both:
        driver = both.session.driver
        both.network.cut()
        await both.session.wait_closed()
        ran = []

        async def work() -> None:
            ran.append(1)

        task = driver.spawn(work())
        await asyncio.gather(task, return_exceptions=True)
        assert ran == []
        for call in (lambda n: TrackStatus(n, NAME), lambda n: PublishNamespace(n, (b"x",))):
            with pytest.raises(SessionClosed):
                await driver.ask(call)
        driver.start()
        driver.stream_data(3, b"late", True)
        driver.stream_reset(3, 1)
        driver.stop_sending(2, 1)
        driver.datagram(b"\x10")
        driver.writable()
        driver.close()
        with pytest.raises(SessionClosed):
            await driver.goaway


async def test_no_credit_for_a_control_stream() -> None:
    none = config(transport=TransportConfig(max_streams_uni=0))
    backend = MemoryBackend()
    async with await serve("x", 0, Publisher(), tls=NO_FILES, backend=backend) as listening:
        session = await connect(listening.url, config=none, backend=backend)
        error = await session.wait_closed()
        assert (error.code, error.remote) == (Code.INTERNAL_ERROR, True)
        await session.close()


async def test_cancel_codes_travel() -> None:
    async with raw_server() as (peer, session):
        task = asyncio.create_task(session.fetch(*NAME, location=LocationFilter.none()))
        await until(lambda: 0 in peer.data)
        (request,) = session.driver.core.requests.open.values()
        session.driver.cancel(request, StreamErrorCode.TOO_FAR_BEHIND)
        with pytest.raises(Exception, match="has ended"):
            await task
        await until(lambda: 0 in peer.resets)
        assert peer.resets[0] == peer.stops[0] == StreamErrorCode.TOO_FAR_BEHIND


async def test_live_and_filled_objects_of_one_location_are_told_apart_by_their_streams() -> None:
    async with ends() as both:
        both.track.add(Location(0, 0), b"before")
        receiver = Recorder()
        subscription = await both.session.subscribe(
            *NAME, location=NEXT, fill=ALL, receiver=receiver
        )
        both.track.add(Location(0, 1), b"after", last=True)
        both.track.end()
        assert await subscription.finished is None
        assert sorted(type(header).__name__ for header in receiver.headers) == [
            "SubgroupHeader",
            "SubgroupHeader",
            "int",
        ]
