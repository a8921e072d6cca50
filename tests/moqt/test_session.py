"""The Session API: what it asks, what it refuses by itself, and how it closes."""

from __future__ import annotations

import asyncio

import pytest

from moqt import FullTrackName, GroupOrder, Location, RangeFilter, Session, SessionConfig
from moqt.errors import LocalError, SessionClosed, SessionErrorCode
from moqt.wire.messages import (
    MessageReader,
    RequestOk,
    SetupOptions,
    Subscribe,
    TrackStatus,
    decode_message,
    encode_message,
)
from moqt.wire.parameters import AliasType, AuthorizationToken, Parameters
from tests.support.ends import (
    ALL,
    NAME,
    NEXT,
    config,
    ends,
    publish,
    quiet,
    raw_server,
    settled,
    until,
)


async def test_what_the_peer_offers_is_known() -> None:
    limits = config(SessionConfig(max_filter_ranges=5, max_request_updates=6, auth_token_cache=7))
    async with ends(server=limits) as both:
        options = await both.session.peer_options()
        assert isinstance(options, SetupOptions)
        assert options.max_filter_ranges == 5
        assert options.max_request_updates == 6
        assert options.max_auth_token_cache_size == 7
        assert options.implementation is not None
        assert options.path is None
        theirs = both.far.core.peer_options
        assert theirs is not None
        assert theirs.authority == both.session.url.removeprefix("moqt://")
        assert theirs.path == ""


async def test_everything_asked_is_on_the_wire() -> None:
    async with raw_server() as (peer, session):
        token = AuthorizationToken(AliasType.USE_VALUE, None, 3, b"t")
        task = asyncio.create_task(
            session.subscribe(
                *NAME,
                location=NEXT,
                fill=ALL,
                fill_timeout=4,
                priority=9,
                forward=False,
                tokens=(token,),
                timeout=1,
            )
        )
        await until(lambda: 0 in peer.data)
        reader = MessageReader()
        reader.feed(peer.data[0])
        framed = reader.next()
        assert framed is not None
        assert decode_message(*framed) == Subscribe(
            0,
            NAME,
            Parameters(
                authorization_tokens=(token,),
                forward=False,
                subscriber_priority=9,
                location_filter=NEXT,
                group_order=GroupOrder.ASCENDING,
                fill=Parameters(
                    fill_timeout=4, location_filter=ALL, group_order=GroupOrder.ASCENDING
                ),
            ),
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_names_that_cannot_be_asked_for() -> None:
    async with ends() as both:
        before = both.session.driver.core.requests.next_id
        for namespace, name in (((b"",), b""), ((b"x",) * 33, b""), ((b"x",), bytes(5000))):
            with pytest.raises(LocalError):
                await both.session.subscribe(namespace, name)
        with pytest.raises(LocalError):
            await both.session.subscribe_namespace((b"x" * 5000,))
        assert both.session.driver.core.requests.next_id == before
        await settled(both)


async def test_a_filter_waits_for_the_peers_offer() -> None:
    """Before SETUP nobody knows whether the peer takes range filters."""
    async with ends() as both:
        publish(both.track, [0])
        fetch = await both.session.fetch(*NAME, object_ids=RangeFilter(0, ((1, 1),)))
        assert [item.location async for item in fetch] == [Location(0, 1)]


async def test_an_open_session_has_no_end_yet() -> None:
    async with ends() as both:
        assert both.session.closed is None
        waiting = asyncio.create_task(both.session.wait_closed())
        await quiet()
        assert not waiting.done()
        await both.session.close(SessionErrorCode.UNAUTHORIZED, "no")
        error = await waiting
        assert both.session.closed is error
        assert (error.code, error.reason, error.remote) == (2, "no", False)
        await both.session.close()
        with pytest.raises(SessionClosed):
            await both.session.track_status(*NAME)


async def test_the_other_side_hears_why() -> None:
    async with ends() as both:
        far = Session(both.far)
        await both.session.close(SessionErrorCode.INTERNAL_ERROR, "broken")
        error = await far.wait_closed()
        assert (error.code, error.reason, error.remote) == (1, "broken", True)
        assert "broken" in str(error)


async def test_closing_before_setup_arrived() -> None:
    async with raw_server() as (peer, session):
        task = asyncio.create_task(session.track_status(NAME.namespace, NAME.name))
        await quiet(2)
        await session.close()
        with pytest.raises(SessionClosed):
            await task
        await until(lambda: peer.lost)
        assert await session.peer_options()


async def test_many_questions_in_one_flight() -> None:
    async with raw_server() as (peer, session):
        tasks = [asyncio.create_task(session.track_status((b"n",), b"%d" % n)) for n in range(20)]
        await until(lambda: len([s for s in peer.data if not s & 2]) == 20)
        for n in reversed(range(20)):
            asked = encode_message(TrackStatus(2 * n, FullTrackName((b"n",), b"%d" % n)))
            assert peer.data[4 * n] == asked
            answer = RequestOk(Parameters(largest_object=Location(n, 0)))
            peer.send(4 * n, encode_message(answer, TrackStatus), True)
        found = await asyncio.gather(*tasks)
        assert [largest for largest, _ in found] == [Location(n, 0) for n in range(20)]
