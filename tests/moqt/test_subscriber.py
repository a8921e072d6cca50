"""Subscriptions and fetches against publishers of every kind, honest or not."""

from __future__ import annotations

import asyncio

import pytest

from moqt import (
    EndOfRange,
    Location,
    Object,
    RangeKind,
    Session,
    SessionConfig,
    StreamSink,
    Subscription,
    TransportConfig,
)
from moqt.config import KIB
from moqt.errors import (
    DeadlineExceeded,
    LocalError,
    MalformedTrack,
    PublishDoneCode,
    RemoteError,
    RequestRejected,
    SessionClosed,
    SessionErrorCode,
    StreamErrorCode,
    StreamReset,
    TrackAborted,
)
from moqt.model import GroupOrder, ObjectHeader
from moqt.protocol.streams import IncomingStream
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader
from moqt.wire.messages import (
    UNKNOWN_STREAM_COUNT,
    FetchOk,
    Message,
    PublishDone,
    PublishStateNotify,
    RequestError,
    SubscribeOk,
    encode_message,
)
from moqt.wire.parameters import Parameters
from tests.support.cores import Recorder
from tests.support.ends import (
    ALL,
    NAME,
    NEXT,
    RawPeer,
    assert_clean,
    config,
    content,
    ends,
    normal,
    publish,
    quiet,
    raw_server,
    settled,
    until,
)

HASTY = config(SessionConfig(request_timeout=0.02, publish_done_timeout=0.01, fill_timeout=0.02))


def subgroup(alias: int, group: int, *payloads: bytes) -> bytes:
    header = SubgroupHeader(alias, group, 0, 5)
    encoder = SubgroupEncoder(header)
    return header.encode() + b"".join(encoder.object(n, len(p)) + p for n, p in enumerate(payloads))


def fetched(request_id: int, *payloads: bytes) -> bytes:
    encoder = FetchEncoder(request_id)
    return encoder.header + b"".join(
        encoder.object(ObjectHeader(Location(n, 0), len(p), 0, 5)) + p
        for n, p in enumerate(payloads)
    )


async def subscribed(
    peer: RawPeer, session: Session, answer: Message | None = None, **options: object
) -> Subscription:
    """A subscription under alias 7 on stream 0, Request ID 0."""
    task = asyncio.create_task(session.subscribe(*NAME, **options))  # type: ignore[arg-type]
    await until(lambda: 0 in peer.data)
    peer.send(0, encode_message(answer or SubscribeOk(7)))
    return await task


async def fetching(peer: RawPeer, session: Session) -> asyncio.Task[object]:
    task = asyncio.create_task(session.fetch(*NAME))
    await until(lambda: 0 in peer.data)
    return task


async def drained(peer: RawPeer, session: Session) -> None:
    await quiet()
    session.driver.core.data._retired.clear()
    for stream_id in list(session.driver.core.data._streams):
        peer.connection.reset(stream_id, 1)
    await quiet()
    assert_clean(session.driver)


# Iterating


async def test_an_iterator_that_does_not_read_stops_the_sender() -> None:
    """Back-pressure: no more than the connection's window is on its way or held."""
    window = 64 * KIB
    small = config(transport=TransportConfig(max_data=window, max_stream_data=window))
    async with ends(client=small, budget=8 * KIB) as both:
        publish(both.track, range(60), size=4 * KIB)
        both.track.end()
        subscription = await both.session.subscribe(*NAME, location=NEXT, fill=ALL)
        await quiet(500)
        driver = both.session.driver
        assert window - 8 * KIB < driver.held <= window + 64 * 20
        sent = both.network.server._sent
        assert sent <= window
        await quiet(500)
        assert both.network.server._sent == sent
        items = subscription.__aiter__()
        for _ in range(8):
            await anext(items)
        await quiet(500)
        assert sent < both.network.server._sent <= sent + window
        assert len(normal([item async for item in items])) == 240 - 8
        await settled(both)


async def test_an_object_may_be_larger_than_the_window() -> None:
    small = config(transport=TransportConfig(max_data=32 * KIB, max_stream_data=16 * KIB))
    async with ends(client=small, rechunk=5) as both:
        publish(both.track, range(3), 2, size=100 * KIB)

        async def check() -> None:
            items = [item async for item in await both.session.fetch(*NAME)]
            assert len(items) == 6
            assert all(
                isinstance(i, Object) and i.payload == content(i.location, 100 * KIB) for i in items
            )

        await asyncio.gather(*(check() for _ in range(4)))
        await settled(both)


async def test_what_is_not_read_is_let_go_when_cancelled() -> None:
    async with ends() as both:
        publish(both.track, range(9), size=2000)
        subscription = await both.session.subscribe(*NAME, location=NEXT, fill=ALL)
        await until(lambda: both.session.driver.held > 60_000)
        subscription.cancel()
        assert both.session.driver.held == 0
        assert [item async for item in subscription] == []
        await settled(both)


async def test_a_receiver_takes_the_place_of_iterating() -> None:
    async with ends() as both:
        publish(both.track, [0])
        receiver = Recorder()
        fetch = await both.session.fetch(*NAME, receiver=receiver)
        with pytest.raises(LocalError):
            [item async for item in fetch]
        assert await fetch.finished is None
        assert len(receiver.objects) == 4


async def test_end_of_range_markers_are_passed_on() -> None:
    async with raw_server() as (peer, session):
        task = await fetching(peer, session)
        encoder = FetchEncoder(0)
        marker = EndOfRange(RangeKind.TIMED_OUT, Location(0, 9))
        peer.open(encoder.header + encoder.end_of_range(marker), fin=True)
        peer.send(0, encode_message(FetchOk(True, Location(0, 9))), True)
        fetch = await task
        assert [item async for item in fetch] == [marker]  # type: ignore[attr-defined]
        assert fetch.end_of_track  # type: ignore[attr-defined]
        await drained(peer, session)


# How subscriptions end


async def test_publish_done_waits_for_the_streams_it_counts() -> None:
    async with raw_server() as (peer, session):
        subscription = await subscribed(peer, session)
        peer.send(0, encode_message(PublishDone(2, 2)), True)
        peer.open(subgroup(7, 0, b"a"), fin=True)
        late = peer.open(subgroup(7, 1, b"b"))
        await quiet()
        assert not subscription.finished.done()
        peer.send(late, b"\0\1c", True)
        assert len([item async for item in subscription]) == 3
        assert subscription.resets == 0
        assert subscription._timers == []
        await drained(peer, session)


@pytest.mark.parametrize("count", [5, UNKNOWN_STREAM_COUNT])
async def test_a_count_that_is_never_met_ends_by_the_clock(count: int) -> None:
    async with raw_server(client=HASTY) as (peer, session):
        subscription = await subscribed(peer, session)
        peer.open(subgroup(7, 0, b"a"), fin=True)
        peer.send(0, encode_message(PublishDone(2, count)), True)
        assert len([item async for item in subscription]) == 1
        assert subscription.resets == (4 if count == 5 else 0)
        await drained(peer, session)


async def test_the_clock_waits_for_what_still_comes() -> None:
    """PUBLISH_DONE overtakes data: a slow link is no lost header."""
    async with raw_server(client=HASTY) as (peer, session):
        subscription = await subscribed(peer, session)
        peer.send(0, encode_message(PublishDone(2, 2)), True)
        stream = peer.open(subgroup(7, 0, b"a"))
        for _ in range(10):
            await asyncio.sleep(0.004)
            peer.send(stream, b"\0\1b")
        peer.send(stream, b"", True)
        peer.open(subgroup(7, 1, b"c"), fin=True)
        assert len([item async for item in subscription]) == 12


async def test_the_clock_waits_for_a_reader_that_holds_the_credit() -> None:
    async with raw_server(client=HASTY) as (peer, session):
        subscription = await subscribed(peer, session)
        peer.send(0, encode_message(PublishDone(2, 2)), True)
        peer.open(subgroup(7, 0, b"a"), fin=True)
        await asyncio.sleep(0.05)
        assert not subscription.finished.done()
        items = subscription.__aiter__()
        await anext(items)
        peer.open(subgroup(7, 1, b"b"), fin=True)
        await anext(items)
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        assert subscription.resets == 0


@pytest.mark.parametrize("status", [0, 1, 4, 5, 6, 8, 9, 0x12, 0x777])
async def test_a_track_that_was_not_ended(status: int) -> None:
    async with raw_server(client=HASTY) as (peer, session):
        subscription = await subscribed(peer, session)
        peer.send(0, encode_message(PublishDone(status, 0, "why")), True)
        with pytest.raises(TrackAborted, match="why") as caught:
            [item async for item in subscription]
        assert caught.value.code == (status if status != 0x777 else PublishDoneCode.INTERNAL_ERROR)
        await drained(peer, session)


async def test_a_reset_request_stream_ends_the_subscription() -> None:
    async with raw_server() as (peer, session):
        subscription = await subscribed(peer, session)
        stream = peer.open(subgroup(7, 0, b"a", b"b")[:-1])
        await until(lambda: session.driver.unfinished.octets == 0 and session.driver.held)
        peer.connection.reset(0, StreamErrorCode.GOING_AWAY)
        with pytest.raises(StreamReset) as caught:
            [item async for item in subscription]
        assert caught.value.code is StreamErrorCode.GOING_AWAY
        await until(lambda: stream in peer.stops)
        await drained(peer, session)


async def test_fin_without_publish_done_ends_the_subscription() -> None:
    async with raw_server() as (peer, session):
        subscription = await subscribed(peer, session)
        peer.send(0, b"", True)
        with pytest.raises(RequestRejected):
            [item async for item in subscription]
        await drained(peer, session)


async def test_a_state_notify_moves_largest() -> None:
    async with raw_server() as (peer, session):
        subscription = await subscribed(peer, session)
        notify = PublishStateNotify(Parameters(largest_object=Location(4, 4)))
        peer.send(0, encode_message(notify))
        await until(lambda: subscription.largest == Location(4, 4))
        task = asyncio.create_task(subscription.update(Parameters()))
        await quiet()
        peer.connection.reset(0, 1)
        with pytest.raises(StreamReset):
            await task
        with pytest.raises(LocalError):
            await subscription.update(Parameters())


# Fills


@pytest.mark.parametrize("how", ["fin", "reset", "never", "done"])
async def test_how_a_fill_ended_is_known(how: str) -> None:
    async with raw_server(client=HASTY) as (peer, session):
        answer = SubscribeOk(7, Parameters(largest_object=Location(0, 0)))
        subscription = await subscribed(peer, session, answer, location=NEXT, fill=ALL)
        if how in ("fin", "reset"):
            stream = peer.open(fetched(0, b"a"))
            await until(lambda: session.driver.held)
            assert not subscription.filled.done()
            if how == "fin":
                peer.send(stream, b"", True)
            else:
                peer.connection.reset(stream, 5)
        if how == "done":
            peer.send(0, encode_message(PublishDone(2, 1)), True)
        outcome = await subscription.filled
        expected = {"fin": type(None), "never": DeadlineExceeded}.get(how, StreamReset)
        assert isinstance(outcome, expected)
        assert subscription.resets == (how in ("reset", "done"))
        subscription.cancel()
        await drained(peer, session)


@pytest.mark.parametrize(
    ("largest", "options"),
    [
        (None, {"fill": ALL}),
        (Location(0, 0), {}),
        (Location(0, 0), {"fill": NEXT}),
        (Location(0, 0), {"fill": ALL, "forward": False}),
    ],
)
async def test_a_fill_that_will_not_come_is_not_waited_for(
    largest: Location | None, options: dict[str, object]
) -> None:
    async with raw_server() as (peer, session):
        answer = SubscribeOk(7, Parameters(largest_object=largest))
        subscription = await subscribed(peer, session, answer, **options)
        assert subscription.filled.done()
        assert await subscription.filled is None
        subscription.cancel()


async def test_a_fill_may_come_before_subscribe_ok() -> None:
    async with raw_server() as (peer, session):
        task = asyncio.create_task(session.subscribe(*NAME, location=NEXT, fill=ALL))
        await until(lambda: 0 in peer.data)
        peer.open(fetched(0, b"a", b"b"), fin=True)
        peer.open(subgroup(7, 9, b"live"))
        await quiet()
        peer.send(0, encode_message(SubscribeOk(7, Parameters(largest_object=Location(1, 0)))))
        subscription = await task
        assert await subscription.filled is None
        items = subscription.__aiter__()
        found = [(await anext(items)).location for _ in range(3)]
        assert found == [Location(0, 0), Location(1, 0), Location(9, 0)]
        subscription.cancel()
        await drained(peer, session)


# How fetches end


@pytest.mark.parametrize("answer_first", [True, False])
async def test_data_and_answer_of_a_fetch_in_either_order(answer_first: bool) -> None:
    async with raw_server() as (peer, session):
        task = await fetching(peer, session)
        answer = encode_message(FetchOk(False, Location(1, 0)))
        if answer_first:
            peer.send(0, answer, True)
            await task
        peer.open(fetched(0, b"a", b"b"), fin=True)
        await quiet()
        if not answer_first:
            peer.send(0, answer, True)
        fetch = await task
        assert len([item async for item in fetch]) == 2  # type: ignore[attr-defined]
        assert fetch.end == Location(1, 0)  # type: ignore[attr-defined]
        await drained(peer, session)


async def test_a_reset_before_the_answer_fails_the_fetch_at_once() -> None:
    async with raw_server() as (peer, session):
        task = await fetching(peer, session)
        stream = peer.open(fetched(0, b"a"))
        await until(lambda: session.driver.held)
        peer.connection.reset(stream, StreamErrorCode.UNKNOWN_OBJECT_STATUS)
        with pytest.raises(StreamReset) as caught:
            await task
        assert caught.value.code is StreamErrorCode.UNKNOWN_OBJECT_STATUS
        await until(lambda: 0 in peer.stops)
        await drained(peer, session)


async def test_a_reset_after_the_answer_is_raised_when_read() -> None:
    async with raw_server() as (peer, session):
        task = await fetching(peer, session)
        peer.send(0, encode_message(FetchOk(False, Location(1, 0))), True)
        fetch = await task
        stream = peer.open(fetched(0, b"a", b"b")[:-1])
        await until(lambda: session.driver.unfinished.octets == 0 and session.driver.held)
        peer.connection.reset(stream, 0x52E4A40FA8DB)
        items = fetch.__aiter__()  # type: ignore[attr-defined]
        await anext(items)
        with pytest.raises(StreamReset) as caught:
            await anext(items)
        assert caught.value.code is StreamErrorCode.INTERNAL_ERROR
        await drained(peer, session)


async def test_a_fetch_whose_stream_never_comes_ends_by_the_clock() -> None:
    async with raw_server(client=HASTY) as (peer, session):
        task = await fetching(peer, session)
        peer.send(0, encode_message(FetchOk(False, Location(1, 0))), True)
        fetch = await task
        with pytest.raises(DeadlineExceeded):
            [item async for item in fetch]  # type: ignore[attr-defined]
        await drained(peer, session)


async def test_one_fetch_has_one_stream() -> None:
    async with raw_server() as (peer, session):
        task = await fetching(peer, session)
        first = peer.open(fetched(0, b"a"))
        second = peer.open(fetched(0, b"z"))
        peer.send(0, encode_message(FetchOk(False, Location(1, 0))), True)
        fetch = await task
        await until(lambda: second in peer.stops)
        peer.send(first, b"", True)
        assert len([item async for item in fetch]) == 1  # type: ignore[attr-defined]
        await drained(peer, session)


async def test_a_fetch_refused_after_data_leaves_nothing() -> None:
    async with raw_server() as (peer, session):
        task = await fetching(peer, session)
        peer.open(fetched(0, b"a", b"b")[:-1])
        await until(lambda: session.driver.held)
        peer.send(0, encode_message(RequestError(0x11)), True)
        with pytest.raises(RequestRejected):
            await task
        await until(lambda: peer.stops)
        await drained(peer, session)


# Deadlines


async def test_a_publisher_that_does_not_answer() -> None:
    async with raw_server(client=HASTY) as (peer, session):
        for ask in (session.subscribe, session.fetch, session.track_status):
            with pytest.raises(DeadlineExceeded):
                await ask(*NAME)
        with pytest.raises(DeadlineExceeded):
            await session.subscribe_namespace((b"x",), timeout=0.001)
        with pytest.raises(DeadlineExceeded):
            await session.publish_namespace((b"x",))
        await until(lambda: len(peer.stops) == 5)
        assert peer.resets == dict.fromkeys((0, 4, 8, 12, 16), StreamErrorCode.CANCELLED)
        await drained(peer, session)


async def test_an_update_that_is_not_answered() -> None:
    async with raw_server(client=HASTY) as (peer, session):
        subscription = await subscribed(peer, session)
        with pytest.raises(DeadlineExceeded):
            await subscription.update(Parameters(subscriber_priority=1))
        subscription.cancel()
        with pytest.raises(LocalError):
            await subscription.update(Parameters())
        await drained(peer, session)


async def test_an_update_fails_when_its_subscription_ends() -> None:
    async with raw_server() as (peer, session):
        subscription = await subscribed(peer, session)
        task = asyncio.create_task(subscription.update(Parameters(subscriber_priority=1)))
        await quiet()
        peer.send(0, encode_message(PublishDone(2, 0)), True)
        with pytest.raises(RequestRejected):
            await task
        assert [item async for item in subscription] == []
        await drained(peer, session)


# Session loss


@pytest.mark.parametrize("how", ["close", "cut", "violation", "own close"])
async def test_the_end_of_the_session_ends_everything(how: str) -> None:
    async with raw_server() as (peer, session):
        receiver = Recorder()
        subscription = await subscribed(peer, session)
        watched = asyncio.create_task(session.subscribe_namespace((b"kv",)))
        fetch = asyncio.create_task(session.fetch(*NAME, receiver=receiver))
        offered = asyncio.create_task(session.publish_namespace((b"kv",)))
        await until(lambda: 12 in peer.data)
        peer.send(4, bytes.fromhex("07 0002 00 00".replace(" ", ""))[:3] + b"")
        peer.open(fetched(4, b"abc")[:-1])
        peer.open(subgroup(7, 0, b"a"))
        iterating = asyncio.create_task(anext_all(subscription))
        await quiet()
        if how == "close":
            peer.connection.close(SessionErrorCode.GOAWAY_TIMEOUT, "bye")
        elif how == "cut":
            session.driver.transport.lose(lost())  # type: ignore[attr-defined]
        elif how == "violation":
            peer.open(b"\x01")
        else:
            await session.close()
        for task in (watched, fetch, offered, iterating):
            with pytest.raises(SessionClosed):
                await task
        assert receiver.ends in ([StreamErrorCode.SESSION_CLOSED], [])
        error = session.closed
        assert error is not None
        assert isinstance(await subscription.filled, type(None) | SessionClosed)
        with pytest.raises(SessionClosed):
            await session.fetch(*NAME)
        with pytest.raises((SessionClosed, LocalError)):
            await subscription.update(Parameters())
        assert (error.code, error.remote) == {
            "close": (SessionErrorCode.GOAWAY_TIMEOUT, True),
            "cut": (SessionErrorCode.INTERNAL_ERROR, False),
            "violation": (SessionErrorCode.PROTOCOL_VIOLATION, False),
            "own close": (SessionErrorCode.NO_ERROR, False),
        }[how]
        await session.wait_closed()
        assert session.driver._tasks == set()
        assert session.driver.unfinished.octets == 0


def lost() -> object:
    from moqt.quic.base import ConnectionLost

    return ConnectionLost(1, "Idle timeout", False, False)


async def anext_all(subscription: Subscription) -> None:
    async for _ in subscription:
        pass


# Publishers to be wary of


async def test_an_object_too_large_ends_its_request_only() -> None:
    few = config(SessionConfig(max_object_size=1000))
    async with ends(client=few) as both:
        publish(both.track, [0], size=1002)
        fetch = await both.session.fetch(*NAME)
        with pytest.raises(RemoteError, match="1002"):
            [item async for item in fetch]
        assert both.session.closed is None
        await until(lambda: both.origin.active == 0)
        await settled(both)


async def test_unfinished_objects_are_bounded() -> None:
    few = config(SessionConfig(max_unfinished=10_000))
    async with raw_server(client=few) as (peer, session):
        subscription = await subscribed(peer, session)
        for group in range(3):
            peer.open(subgroup(7, group, bytes(8000))[:5000])
        with pytest.raises(RemoteError):
            [item async for item in subscription]
        assert session.driver.unfinished.octets == 0
        assert session.closed is None
        await until(lambda: 0 in peer.stops)
        await drained(peer, session)


@pytest.mark.parametrize("what", ["objects", "markers"])
async def test_a_flood_of_small_items_is_bounded(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moqt.collecting.MAX_WAITING", 1000)
    async with raw_server() as (peer, session):
        if what == "objects":
            subscription = await subscribed(peer, session)
            peer.open(subgroup(7, 0, *[b""] * 5000))
            items: object = subscription
        else:
            task = await fetching(peer, session)
            peer.send(0, encode_message(FetchOk(False, Location(1, 0))))
            items = await task
            marker = FetchEncoder(0).end_of_range(EndOfRange(RangeKind.UNKNOWN, Location(0, 0)))
            peer.open(FetchEncoder(0).header + 5000 * marker)
        await until(lambda: items.finished.done())  # type: ignore[attr-defined]
        with pytest.raises(RemoteError, match="too many"):
            [item async for item in items]  # type: ignore[attr-defined]
        await drained(peer, session)


@pytest.mark.parametrize(
    ("properties", "error"),
    [(((0x4000, 1),), RequestRejected), (((0x0B, b"\x80"),), MalformedTrack)],
)
async def test_track_properties_that_cannot_be_taken(
    properties: tuple[tuple[int, int | bytes], ...], error: type[Exception]
) -> None:
    async with raw_server() as (peer, session):
        with pytest.raises(error):
            await subscribed(peer, session, SubscribeOk(7, Parameters(), properties))
        await until(lambda: 0 in peer.stops)
        assert session.closed is None
        await drained(peer, session)


async def test_two_subscriptions_under_one_alias() -> None:
    """Some publishers have one alias a track; each subscription gets every stream, and ends by itself."""
    async with raw_server() as (peer, session):
        first = await subscribed(peer, session)
        task = asyncio.create_task(session.subscribe(*NAME))
        await until(lambda: 4 in peer.data)
        peer.send(4, encode_message(SubscribeOk(7)))
        second = await task
        stream = peer.open(subgroup(7, 0, b"a"))
        await until(lambda: session.driver.held > 66)
        first.cancel()
        await quiet()
        assert stream not in peer.stops
        peer.send(stream, b"\0\1b", True)
        peer.send(4, encode_message(PublishDone(2, 1)), True)
        assert [i.payload async for i in second if isinstance(i, Object)] == [b"a", b"b"]
        await drained(peer, session)


async def test_one_alias_for_two_tracks_closes() -> None:
    async with raw_server() as (peer, session):
        await subscribed(peer, session)
        task = asyncio.create_task(session.subscribe(NAME.namespace, b"other"))
        await until(lambda: 4 in peer.data)
        peer.send(4, encode_message(SubscribeOk(7)))
        with pytest.raises(SessionClosed) as caught:
            await task
        assert caught.value.code == SessionErrorCode.DUPLICATE_TRACK_ALIAS
        await until(lambda: peer.lost is not None)


class Placing(StreamSink):
    """Puts payload into a buffer of its own, as an application with a destination does."""

    group_order = GroupOrder.ASCENDING

    def __init__(self) -> None:
        self.buffer = bytearray()

    def open_stream(self, stream: IncomingStream) -> StreamSink:
        return self

    def payload(self, chunk: memoryview) -> None:
        self.buffer += chunk


async def test_payload_with_a_destination_holds_no_credit() -> None:
    small = config(transport=TransportConfig(max_data=8 * KIB, max_stream_data=8 * KIB))
    async with ends(client=small) as both:
        publish(both.track, range(4), size=20 * KIB)
        sink = Placing()
        fetch = await both.session.fetch(*NAME, receiver=sink)
        assert await fetch.finished is None
        assert len(sink.buffer) == 16 * 20 * KIB
        await settled(both)
