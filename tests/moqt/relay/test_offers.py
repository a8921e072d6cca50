"""What a SUBSCRIBE_TRACKS leads to, and for how long: each PUBLISH of a relay needs a grant of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from moqt import (
    AuthorizationToken,
    Config,
    FullTrackName,
    Query,
    Recheck,
    Refusal,
    Session,
    TransportConfig,
)
from moqt.errors import PublishDoneCode, RequestErrorCode
from moqt.model import TrackNamespace
from moqt.protocol.requests import RequestState
from moqt.relay import Relay
from moqt.wire.messages import Publish, SubscribeTracks
from moqt.wire.parameters import AliasType, Parameters
from tests.support.ends import NAME, until
from tests.support.relays import Net, Taker, net

OTHER = FullTrackName(NAME.namespace, b"other")
ELSEWHERE = FullTrackName((b"elsewhere",), b"layers")
FIRST, FRESH = (AuthorizationToken(AliasType.USE_VALUE, None, 5, v) for v in (b"first", b"fresh"))


class ByToken:
    """Grants for a moment at a time what one of `valid` is shown for; what is published needs none."""

    def __init__(self) -> None:
        self.valid = {b"first", b"fresh"}
        self.hidden: FullTrackName | None = None
        self.asked = 0

    def decide(self, query: Query) -> Refusal | Recheck | None:
        if query.action.publishes:
            return None
        self.asked += 1
        if (query.namespace, query.track) == self.hidden:
            return Refusal("not that one")
        if any(token.value in self.valid for token in query.tokens):
            return Recheck(0.01)
        return Refusal("over", RequestErrorCode.EXPIRED_AUTH_TOKEN)

    async def look(self) -> None:
        """Returns once what runs was looked at again."""
        asked = self.asked
        await until(lambda: self.asked > asked + 6)


async def offer(session: Session, name: FullTrackName, alias: int = 1) -> RequestState:
    return await session.driver.ask(lambda n: Publish(n, name, alias, Parameters()))


async def ask_tracks(
    session: Session, prefix: TrackNamespace, token: AuthorizationToken = FIRST
) -> RequestState:
    parameters = Parameters(authorization_tokens=(token,))
    return await session.driver.ask(lambda n: SubscribeTracks(n, prefix, parameters))


async def test_what_outlives_what_asked_for_it_does_not_outlive_its_grant() -> None:
    """R2: cancelling SUBSCRIBE_TRACKS leaves its PUBLISHes; they are looked at again as any subscription is."""
    policy, taker = ByToken(), Taker()
    async with net() as world:
        relay = await world.relay(policy=policy)
        session = await world.session(relay, responder=taker)
        asked = await ask_tracks(session, NAME.namespace)
        await offer(await world.session(relay), NAME)
        await until(lambda: taker.offered)
        session.driver.cancel(asked)
        await until(lambda: not any(peer.tracks for peer in relay.peers.values()))
        await policy.look()
        assert taker.done == []
        policy.valid.clear()
        await until(lambda: taker.done)
        assert taker.done[0].status == PublishDoneCode.EXPIRED
        assert not any(peer.subscriptions for peer in relay.peers.values())


async def refuse(policy: ByToken, session: Session, asked: RequestState) -> None:
    policy.valid = {b"fresh"}


async def cancel(policy: ByToken, session: Session, asked: RequestState) -> None:
    session.driver.cancel(asked)


@pytest.mark.parametrize("end", [refuse, cancel])
async def test_what_waits_for_credit_ends_with_what_asked_for_it(
    end: Callable[..., Awaitable[None]],
) -> None:
    """A PUBLISH that could not be sent yet is not sent once nobody may have it, or wants it."""
    policy, taker = ByToken(), Taker()
    one_request = Config(transport=TransportConfig(max_streams_bidi=1))
    async with net() as world:
        relay = await world.relay(policy=policy)
        session = await world.session(relay, responder=taker, config=one_request)
        asked = await ask_tracks(session, NAME.namespace)
        publisher = await world.session(relay)
        await offer(publisher, NAME, 1)
        await until(lambda: taker.offered)
        await offer(publisher, OTHER, 2)
        await end(policy, session, asked)
        await until(lambda: not any(peer.tracks for peer in relay.peers.values()))
        await ask_tracks(session, ELSEWHERE.namespace, FRESH)
        await offer(publisher, ELSEWHERE, 3)
        (taken,) = (r for r in session.driver.core.requests.open.values() if not r.is_local)
        session.driver.cancel(taken)
        await until(lambda: len(taker.offered) > 1)
        assert [message.track for message in taker.offered] == [NAME, ELSEWHERE]


async def two_offers(world: Net, policy: ByToken, taker: Taker) -> tuple[Relay, Session]:
    relay = await world.relay(policy=policy)
    publisher = await world.session(relay)
    await offer(publisher, OTHER, 1)
    await offer(publisher, NAME, 2)
    return relay, await world.session(relay, responder=taker)


async def test_a_track_that_a_subscribe_would_be_refused_for_is_not_offered() -> None:
    """Section 9: subscribers are checked per track."""
    policy, taker = ByToken(), Taker()
    policy.hidden = OTHER
    async with net() as world:
        _, session = await two_offers(world, policy, taker)
        await ask_tracks(session, NAME.namespace)
        await until(lambda: taker.offered)
        await policy.look()
        assert [message.track for message in taker.offered] == [NAME]


@pytest.mark.parametrize("renewed", [True, False])
async def test_a_fresh_token_is_for_what_was_offered_as_well(renewed: bool) -> None:
    policy, taker = ByToken(), Taker()
    async with net() as world:
        _, session = await two_offers(world, policy, taker)
        asked = await ask_tracks(session, NAME.namespace)
        await until(lambda: len(taker.offered) == 2)
        if renewed:
            await session.driver.update(asked, Parameters(authorization_tokens=(FRESH,)))
        policy.valid = {b"fresh"}
        if renewed:
            await policy.look()
            assert taker.done == []
        else:
            await until(lambda: len(taker.done) == 2)


async def test_a_fresh_token_that_does_not_grant_what_was_offered_ends_it() -> None:
    policy, taker = ByToken(), Taker()
    async with net() as world:
        _, session = await two_offers(world, policy, taker)
        asked = await ask_tracks(session, NAME.namespace)
        await until(lambda: len(taker.offered) == 2)
        policy.hidden = OTHER
        await session.driver.update(asked, Parameters(authorization_tokens=(FRESH,)))
        await until(lambda: taker.done)
        assert [done.status for done in taker.done] == [PublishDoneCode.UNAUTHORIZED]
