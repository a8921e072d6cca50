"""The policy hook: what it is asked, with which tokens, and what becomes of its answer (R2)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moqt import (
    Action,
    AllowAll,
    AuthorizationToken,
    Config,
    NamespaceEvent,
    Query,
    Recheck,
    Refusal,
    Token,
    Track,
    TransportConfig,
)
from moqt.errors import (
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    StreamErrorCode,
    StreamReset,
    TrackAborted,
)
from moqt.protocol.requests import Phase
from moqt.wire.messages import (
    Publish,
    PublishNamespace,
    SubscribeNamespace,
    SubscribeTracks,
)
from moqt.wire.parameters import AliasType, Parameters
from tests.support.ends import NAME, publish, until
from tests.support.relays import Taker, join_noted, net

TOKEN = AuthorizationToken(AliasType.USE_VALUE, None, 5, b"secret")


class Asked:
    """Notes what it is asked; refuses with what a test says."""

    def __init__(self, refusal: Refusal | None) -> None:
        self.refusal = refusal
        self.queries: list[Query] = []

    def decide(self, query: Query) -> Refusal | None:
        self.queries.append(query)
        return self.refusal


def test_allow_all_allows_all() -> None:
    for action in Action:
        query = Query(action=action, namespace=(), track=None, tokens=())
        assert AllowAll().decide(query) is None
        assert action.publishes is (action in {Action.PUBLISH, Action.PUBLISH_NAMESPACE})


async def test_it_is_asked_for_every_kind_of_request() -> None:
    """R2: with the request's tokens, and a refusal reaches the peer with its code and reason."""
    policy = Asked(Refusal("not today", RequestErrorCode.EXPIRED_AUTH_TOKEN))
    async with net() as world:
        relay = await world.relay(policy=policy)
        session = await world.session(relay)
        prefix, tokens = NAME.namespace, (TOKEN,)
        parameters = Parameters(authorization_tokens=tokens)
        asked = [
            session.publish_namespace(prefix, tokens=tokens),
            session.subscribe_namespace(prefix, tokens=tokens),
            session.subscribe(*NAME, tokens=tokens),
            session.fetch(*NAME, tokens=tokens),
            session.track_status(*NAME),
            session.driver.ask(lambda n: SubscribeTracks(n, prefix, parameters)),
            session.driver.ask(lambda n: Publish(n, NAME, 1, parameters)),
        ]
        for one in asked:
            with pytest.raises(RequestRejected) as refused:
                await one
            assert refused.value.code is RequestErrorCode.EXPIRED_AUTH_TOKEN
            assert refused.value.reason == "not today"
        assert [query.action for query in policy.queries] == [
            Action.PUBLISH_NAMESPACE,
            Action.SUBSCRIBE_NAMESPACE,
            Action.SUBSCRIBE,
            Action.FETCH,
            Action.TRACK_STATUS,
            Action.SUBSCRIBE_TRACKS,
            Action.PUBLISH,
        ]
        for query in policy.queries:
            assert query.namespace == prefix
            on_track = query.action not in {
                Action.PUBLISH_NAMESPACE,
                Action.SUBSCRIBE_NAMESPACE,
                Action.SUBSCRIBE_TRACKS,
            }
            assert query.track == (NAME.name if on_track else None)
            if query.action is not Action.TRACK_STATUS:
                assert query.tokens == (Token(5, b"secret"),)
        assert not relay.tracks
        assert not relay.sources.count


async def test_without_a_refusal_requests_go_on() -> None:
    policy = Asked(None)
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, Track(NAME))
        session = await world.session(relay)
        subscription = await session.subscribe(*NAME)
        subscription.cancel()
        assert [q.action for q in policy.queries] == [Action.PUBLISH_NAMESPACE, Action.SUBSCRIBE]


class Failing:
    """Fails on some queries, with a token in what it says; grants the others for a moment."""

    def __init__(self, *, on: Action | None = None) -> None:
        self.on = on
        self.asked = 0

    def decide(self, query: Query) -> Recheck:
        self.asked += 1
        if query.action is self.on:
            raise TypeError(f"cannot use {[token.value for token in query.tokens]}")
        return Recheck(0.01)


@pytest.mark.parametrize("action", [Action.SUBSCRIBE, Action.FETCH, Action.PUBLISH_NAMESPACE])
async def test_a_policy_that_fails_grants_nothing(
    action: Action, caplog: pytest.LogCaptureFixture
) -> None:
    """R2: that request is refused, the session goes on, and the log keeps the token to itself."""
    async with net() as world:
        relay = await world.relay(policy=Failing(on=action))
        await world.origin(relay)
        session = await world.session(relay)
        asked: Coroutine[Any, Any, object]
        if action is Action.SUBSCRIBE:
            asked = session.subscribe(*NAME, tokens=(TOKEN,))
        elif action is Action.FETCH:
            asked = session.fetch(*NAME, tokens=(TOKEN,))
        else:
            asked = session.publish_namespace(NAME.namespace, tokens=(TOKEN,))
        with pytest.raises(RequestRejected) as refused:
            await asked
        assert refused.value.code is RequestErrorCode.INTERNAL_ERROR
        await session.subscribe_namespace(NAME.namespace)
        assert not relay.sources.count
    (said,) = [record for record in caplog.records if record.name == "moqt.relay.authority"]
    assert said.getMessage().startswith(f"{action.name} refused: the policy failed with TypeError")
    assert "secret" not in caplog.text


async def test_a_grant_ends_when_the_policy_fails() -> None:
    """R2: looked at again, it is not granted any more."""
    policy, track = Failing(), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, track)
        noted, subscription = await join_noted(await world.session(relay))
        asked = policy.asked
        await until(lambda: policy.asked > asked + 2)
        publish(track, [0])
        await until(lambda: len(noted.live) == 4)
        policy.on = Action.SUBSCRIBE
        error = await asyncio.wait_for(asyncio.shield(subscription.finished), 10)
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.UNAUTHORIZED


class Watching:
    """Grants for a moment at a time, until a test takes that back."""

    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self.spared: Action | None = None
        self.queries: list[Query] = []

    def decide(self, query: Query) -> Refusal | Recheck:
        self.queries.append(query)
        if self.refusal is None or query.action is self.spared:
            return Recheck(0.01)
        return self.refusal

    async def refuse(self, code: RequestErrorCode = RequestErrorCode.EXPIRED_AUTH_TOKEN) -> None:
        """What runs was looked at again, and is refused from now on."""
        asked = len(self.queries)
        await until(lambda: len(self.queries) > asked)
        self.refusal = Refusal("over", code)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (RequestErrorCode.EXPIRED_AUTH_TOKEN, PublishDoneCode.EXPIRED),
        (RequestErrorCode.UNAUTHORIZED, PublishDoneCode.UNAUTHORIZED),
    ],
)
async def test_a_subscription_ends_with_its_grant(
    refused: RequestErrorCode, told: PublishDoneCode
) -> None:
    """R2: PUBLISH_DONE says why; until then it goes on as if nothing were."""
    policy, track = Watching(), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, track)
        session = await world.session(relay)
        noted, subscription = await join_noted(session)
        publish(track, [0])
        await until(lambda: len(noted.live) == 4)
        await policy.refuse(refused)
        error = await asyncio.wait_for(asyncio.shield(subscription.finished), 10)
        assert isinstance(error, TrackAborted)
        assert (error.code, error.reason) == (told, "over")
        assert session.closed is None


async def test_a_fetch_ends_with_its_grant() -> None:
    """R2: its stream is reset with EXPIRED_AUTH_TOKEN."""
    policy, track = Watching(), Track(NAME)
    publish(track, range(8), size=1 << 14)
    small = Config(transport=TransportConfig(max_data=1 << 16))
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, track)
        session = await world.session(relay, config=small)
        fetch = await session.fetch(*NAME)
        await policy.refuse()
        error = await asyncio.wait_for(asyncio.shield(fetch.finished), 10)
        assert isinstance(error, StreamReset)
        assert error.code is StreamErrorCode.EXPIRED_AUTH_TOKEN
        await until(lambda: all(not peer.fetches for peer in relay.peers.values()))


async def test_offers_and_watches_end_with_their_grants() -> None:
    policy, taker = Watching(), Taker()
    async with net() as world:
        relay = await world.relay(policy=policy)
        session = await world.session(relay, responder=taker)
        prefix = NAME.namespace[:1]
        offer = await session.publish_namespace((b"kv", b"n"))
        watch = await session.subscribe_namespace(prefix)
        await session.driver.ask(lambda n: SubscribeTracks(n, prefix, Parameters()))
        other = await world.session(relay)
        published = await other.driver.ask(lambda n: Publish(n, NAME, 3, Parameters()))
        await until(lambda: taker.offered)
        policy.spared = Action.PUBLISH
        await policy.refuse()
        assert [event async for event in watch][-1:] == [NamespaceEvent((b"kv", b"n"), False)]
        ended = await asyncio.wait_for(asyncio.shield(offer.ended), 10)
        assert isinstance(ended, StreamReset)
        assert ended.code is StreamErrorCode.EXPIRED_AUTH_TOKEN
        await until(lambda: taker.done)
        assert taker.done[0].status == PublishDoneCode.EXPIRED
        policy.spared = None
        await until(lambda: published.phase is Phase.ENDED)
        peers = relay.peers.values()
        await until(
            lambda: not any(p.offers or p.watched or p.tracks or p.published for p in peers)
        )
        assert session.closed is None


async def test_what_is_not_answered_yet_is_refused() -> None:
    policy = Watching()
    async with net() as world:
        relay = await world.relay(policy=policy)
        session = await world.session(relay)
        asked = asyncio.create_task(session.subscribe(*NAME, rendezvous_timeout=60_000))
        await until(lambda: policy.queries)
        await policy.refuse()
        with pytest.raises(RequestRejected) as refused:
            await asyncio.wait_for(asked, 10)
        assert refused.value.code is RequestErrorCode.EXPIRED_AUTH_TOKEN
        await until(lambda: all(peer.is_idle for peer in relay.peers.values()))


async def test_what_is_over_is_not_looked_at_again() -> None:
    policy, track = Watching(), Track(NAME)
    publish(track, [0])
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, track)
        session = await world.session(relay)
        subscription = await session.subscribe(*NAME)
        subscription.cancel()
        async for _ in await session.fetch(*NAME):
            pass
        kinds = (Action.SUBSCRIBE, Action.FETCH)
        await until(lambda: all(peer.is_idle for peer in relay.peers.values()))
        policy.queries.clear()
        await until(lambda: len(policy.queries) >= 3)  # the publisher's offer runs on
        assert not [query for query in policy.queries if query.action in kinds]


async def test_an_update_is_an_action_of_its_own() -> None:
    """R2: it is decided for the request's names; a token that it brings has to grant the request."""
    policy, track = Asked(None), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, track)
        session = await world.session(relay)
        subscription = await session.subscribe(*NAME, tokens=(TOKEN,))
        policy.queries.clear()
        await subscription.update(Parameters(subscriber_priority=3))
        fresh = AuthorizationToken(AliasType.USE_VALUE, None, 5, b"fresh")
        await subscription.update(Parameters(authorization_tokens=(fresh,)))
        both = Parameters(authorization_tokens=(fresh,), subscriber_priority=4)
        await subscription.update(both)
        wanted = [Action.REQUEST_UPDATE, Action.SUBSCRIBE, Action.REQUEST_UPDATE, Action.SUBSCRIBE]
        assert [query.action for query in policy.queries] == wanted
        assert {query.of for query in policy.queries} == {Action.SUBSCRIBE}
        assert {(query.namespace, query.track) for query in policy.queries} == {tuple(NAME)}
        values = [query.tokens[0].value for query in policy.queries]
        assert values == [b"secret", b"fresh", b"fresh", b"fresh"]
        policy.refusal = Refusal("not that")
        with pytest.raises(RequestRejected) as refused:
            await subscription.update(Parameters(subscriber_priority=5))
        assert refused.value.code is RequestErrorCode.UNAUTHORIZED
        error = await asyncio.wait_for(asyncio.shield(subscription.finished), 10)
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.UPDATE_FAILED


async def test_a_fresh_token_keeps_a_subscription_running() -> None:
    """R2: the grant is looked at with the token that came last."""
    track = Track(NAME)

    class ByToken:
        """Grants by token, for a moment at a time."""

        valid = {b"secret", b"fresh"}  # noqa: RUF012
        asked = 0

        def decide(self, query: Query) -> Refusal | Recheck | None:
            if query.action.publishes:
                return None
            self.asked += 1
            known = any(token.value in self.valid for token in query.tokens)
            return Recheck(0.01) if known else Refusal("unknown")

    policy = ByToken()
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, track)
        session = await world.session(relay)
        noted, subscription = await join_noted(session, tokens=(TOKEN,))
        _, other = await join_noted(await world.session(relay), tokens=(TOKEN,))
        fresh = AuthorizationToken(AliasType.USE_VALUE, None, 5, b"fresh")
        await subscription.update(Parameters(authorization_tokens=(fresh,)))
        policy.valid = {b"fresh"}
        assert isinstance(await asyncio.wait_for(asyncio.shield(other.finished), 10), TrackAborted)
        asked = policy.asked
        await until(lambda: policy.asked > asked + 2)
        publish(track, [0])
        await until(lambda: len(noted.live) == 4)
        assert not subscription.finished.done()
        subscription.cancel()


FRESH = AuthorizationToken(AliasType.USE_VALUE, None, 5, b"fresh")


async def test_updates_are_decided_one_by_one() -> None:
    """R2: what comes behind an update says nothing about it."""
    policy, track = Asked(None), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        await world.origin(relay, track)
        session = await world.session(relay)
        subscription = await session.subscribe(*NAME, tokens=(TOKEN,))
        (request,) = session.driver.core.requests.open.values()
        policy.queries.clear()
        for parameters in (
            Parameters(subscriber_priority=3),
            Parameters(authorization_tokens=(FRESH,)),
        ):
            session.driver.core.requests.update(request, parameters)
        session.driver.act()
        await until(lambda: len(policy.queries) == 2)
        assert [query.tokens[0].value for query in policy.queries] == [b"secret", b"fresh"]
        subscription.cancel()


async def test_a_refused_update_ends_what_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: at once, and not only once the peer ends its side, which it may never do."""

    class NothingFresh:
        def decide(self, query: Query) -> Refusal | Recheck:
            stale = all(token.value != b"fresh" for token in query.tokens)
            return Recheck(3600) if stale else Refusal("not that")

    async with net() as world:
        relay = await world.relay(policy=NothingFresh())
        session = await world.session(relay)
        monkeypatch.setattr(session.driver.core.requests, "finish", lambda request: None)
        prefix, given = NAME.namespace, Parameters(authorization_tokens=(TOKEN,))
        ask = session.driver.ask
        asked = [
            await ask(lambda n: PublishNamespace(n, prefix, given)),
            await ask(lambda n: SubscribeNamespace(n, prefix, given)),
            await ask(lambda n: SubscribeTracks(n, prefix, given)),
            await ask(lambda n: Publish(n, NAME, 1, given)),
        ]
        (peer,) = relay.peers.values()
        assert peer.offers
        assert peer.watched
        assert peer.tracks
        assert peer.published
        for request in asked:
            with pytest.raises(RequestRejected) as refused:
                await session.driver.update(request, Parameters(authorization_tokens=(FRESH,)))
            assert refused.value.code is RequestErrorCode.UNAUTHORIZED
        assert not (peer.offers)
        assert not (peer.watched)
        assert not (peer.tracks)
        assert not (peer.published)
        assert not relay.sources.count
        assert not relay.tracks
        assert session.closed is None
