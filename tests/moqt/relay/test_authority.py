"""The policy hook: what it is asked, with which tokens, and what becomes of its answer (R2)."""

from __future__ import annotations

import pytest

from moqt import Action, AllowAll, AuthorizationToken, Query, Refusal, Token, Track
from moqt.errors import RequestErrorCode, RequestRejected
from moqt.wire.messages import Publish, SubscribeTracks
from moqt.wire.parameters import AliasType, Parameters
from tests.support.ends import NAME
from tests.support.relays import net

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
