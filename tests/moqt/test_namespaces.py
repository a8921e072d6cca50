"""SUBSCRIBE_NAMESPACE and PUBLISH_NAMESPACE over a session (draft-22 sections 3.12 to 3.14)."""

from __future__ import annotations

import asyncio

import pytest

from moqt import NamespaceEvent, NamespaceSubscription, Publisher, Session, SessionConfig
from moqt.connection import Driver
from moqt.errors import (
    LocalError,
    RemoteError,
    RequestErrorCode,
    RequestRejected,
    SessionClosed,
    SessionErrorCode,
    StreamErrorCode,
)
from moqt.protocol.requests import RequestState
from moqt.wire.messages import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    RequestOk,
    SubscribeNamespace,
    encode_message,
)
from tests.support.ends import (
    RawPeer,
    assert_clean,
    config,
    ends,
    quiet,
    raw_server,
    settled,
    until,
)

OK = encode_message(RequestOk(), SubscribeNamespace)


async def watching(peer: RawPeer, session: Session) -> NamespaceSubscription:
    task = asyncio.create_task(session.subscribe_namespace((b"kv",)))
    await until(lambda: 0 in peer.data)
    peer.send(0, OK)
    return await task


async def test_namespaces_now_and_later() -> None:
    async with ends(rechunk=3) as both:
        for namespace in ((b"kv",), (b"kv", b"a"), (b"kvx",), (b"other",)):
            both.origin.add_namespace(namespace)
        watched = await both.session.subscribe_namespace((b"kv",))
        both.origin.add_namespace((b"kv", b"b"))
        both.origin.add_namespace((b"kv", b"b"))
        both.origin.remove_namespace((b"kv", b"a"))
        both.origin.remove_namespace((b"kv", b"a"))
        both.origin.add_namespace((b"kv", b"a"))
        both.origin.add_namespace((b"k",))
        events = watched.__aiter__()
        found = [await anext(events) for _ in range(6)]
        assert found == [
            NamespaceEvent((b"kv",), True),
            NamespaceEvent((b"kv", b"a"), True),
            NamespaceEvent((b"kv", b"m"), True),
            NamespaceEvent((b"kv", b"b"), True),
            NamespaceEvent((b"kv", b"a"), False),
            NamespaceEvent((b"kv", b"a"), True),
        ]
        assert watched.active == {(b"kv",), (b"kv", b"a"), (b"kv", b"b"), (b"kv", b"m")}
        watched.cancel()
        assert [event async for event in events] == []
        await settled(both)
        both.origin.add_namespace((b"kv", b"c"))


async def test_the_empty_prefix_matches_all() -> None:
    async with ends() as both:
        watched = await both.session.subscribe_namespace(())
        assert (await anext(watched.__aiter__())).namespace == (b"kv", b"m")
        watched.cancel()


@pytest.mark.parametrize("second", [(), (b"a",), (b"a", b"b"), (b"a", b"b", b"c")])
async def test_prefixes_may_not_overlap(second: tuple[bytes, ...]) -> None:
    async with ends() as both:
        first = await both.session.subscribe_namespace((b"a", b"b"))
        await both.session.subscribe_namespace((b"a", b"x"))
        with pytest.raises(RequestRejected) as caught:
            await both.session.subscribe_namespace(second)
        assert caught.value.code is RequestErrorCode.PREFIX_OVERLAP
        first.cancel()
        await quiet()
        await both.session.subscribe_namespace((b"a", b"b"))


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_the_publishers_end_takes_all_back(how: str) -> None:
    async with raw_server() as (peer, session):
        watched = await watching(peer, session)
        for suffix in ((b"b",), (b"a",), ()):
            peer.send(0, encode_message(Namespace(suffix)))
        peer.send(0, encode_message(NamespaceDone((b"b",))))
        # A relay may repeat itself.
        peer.send(0, encode_message(NamespaceDone((b"b",))))
        if how == "fin":
            peer.send(0, b"", True)
        else:
            await quiet()
            peer.connection.reset(0, 1)
        events = [(e.namespace, e.active) async for e in watched]
        assert events == [
            ((b"kv", b"b"), True),
            ((b"kv", b"a"), True),
            ((b"kv",), True),
            ((b"kv", b"b"), False),
            ((b"kv",), False),
            ((b"kv", b"a"), False),
        ]
        assert watched.active == set()
        await quiet()
        assert_clean(session.driver)


async def test_the_end_of_the_session_is_raised_after_the_rest() -> None:
    async with raw_server() as (peer, session):
        watched = await watching(peer, session)
        peer.send(0, encode_message(Namespace((b"a",))))
        await quiet()
        peer.connection.close(SessionErrorCode.INTERNAL_ERROR, "gone")
        events = watched.__aiter__()
        assert [(await anext(events)).active for _ in range(2)] == [True, False]
        with pytest.raises(SessionClosed):
            await anext(events)


@pytest.mark.parametrize("churning", [False, True])
async def test_a_flood_of_namespaces_ends_the_request(churning: bool) -> None:
    few = config(SessionConfig(max_namespaces=50))
    async with raw_server(client=few) as (peer, session):
        watched = await watching(peer, session)
        for n in range(200):
            peer.send(0, encode_message(Namespace((b"%d" % n,))))
            if churning:
                peer.send(0, encode_message(NamespaceDone((b"%d" % n,))))
        await until(lambda: 0 in peer.stops)
        assert peer.stops[0] == StreamErrorCode.EXCESSIVE_LOAD
        with pytest.raises(RemoteError, match="50"):
            [event async for event in watched]
        assert session.closed is None
        await quiet()
        assert_clean(session.driver)


class Relay(Publisher):
    """Takes what is offered."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: list[tuple[Driver, RequestState]] = []
        self.over: list[RequestState] = []

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if isinstance(request.message, PublishNamespace):
            self.offers.append((driver, request))
            driver.send(request, RequestOk())
        else:
            super().request_received(driver, request)

    def request_ended(self, driver: Driver, request: RequestState) -> None:
        self.over.append(request)
        super().request_ended(driver, request)


async def test_offering_and_withdrawing() -> None:
    async with ends() as both:
        relay = Relay()
        both.far.responder = relay
        offer = await both.session.publish_namespace((b"a",))
        other = await both.session.publish_namespace((b"b",))
        assert [request.message.request_id for _, request in relay.offers] == [0, 2]
        offer.withdraw()
        offer.withdraw()
        assert await offer.ended is None
        await until(lambda: relay.over)
        driver, request = relay.offers[1]
        driver.cancel(request, StreamErrorCode.EXCESSIVE_LOAD)
        assert await other.ended is not None
        other.withdraw()
        await settled(both)
        both.far.responder = both.origin


async def test_an_offer_that_is_refused() -> None:
    async with ends() as both:
        with pytest.raises(RequestRejected) as caught:
            await both.session.publish_namespace((b"a",))
        assert caught.value.code is RequestErrorCode.UNINTERESTED
        for namespace in ((), (b".session",), (b".x", b"y")):
            with pytest.raises(LocalError):
                await both.session.publish_namespace(namespace)
        await settled(both)
