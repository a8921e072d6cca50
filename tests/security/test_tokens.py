"""SECURITY.md on tokens, each sentence by itself: a relay, what it keeps, and a stranger who tries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvcs.access.cwt import seal
from kvcs.access.keys import KeyRing, SharedKey
from kvcs.access.policy import AccessPolicy
from kvcs.naming import PROTOCOL, PublicationName, content_prefix, scope_prefix
from moqt import FullTrackName, Session, Track, connect
from moqt.auth import Terms
from moqt.errors import MoqtError, RequestRejected, TrackAborted
from moqt.wire.messages import Publish, SubscribeTracks
from moqt.wire.parameters import Parameters
from tests.support.ends import publish, until
from tests.support.relays import Net, Noted, Origin, ended, join_noted, net
from tests.support.tokens import NOW, SCOPE, SHARED, as_token, make, shown

THEIRS = b"t" * 16
NAME = FullTrackName(PublicationName(SCOPE, b"c" * 32, b"a" * 32, b"p" * 16).namespace, b"k.raw.s0")


@dataclass
class World:
    """A relay with a publication of SCOPE in its cache, and a clock."""

    net: Net
    policy: AccessPolicy
    track: Track = field(default_factory=lambda: Track(NAME))
    now: float = NOW

    async def session(self, token: bytes | None) -> Session:
        session = await connect(
            self.net.relays[0].servers[0].url,
            backend=self.net.backend,
            responder=Origin(),
            tokens=() if token is None else shown(token),
        )
        return await self.net.stack.enter_async_context(session)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with net() as network:
        made: World
        policy = AccessPolicy(KeyRing([SHARED]), terms=Terms(leeway=0), clock=lambda: made.now)
        made = World(network, policy)
        relay = await network.relay(policy=policy)
        origin = Origin()
        origin.add_track(made.track)
        publish(made.track, range(3))
        producer = await connect(
            relay.servers[0].url,
            backend=network.backend,
            responder=origin,
            credential=lambda: as_token(make(allow=("publish",), expires=NOW + 10**6)),
        )
        await network.stack.enter_async_context(producer)
        await producer.publish_namespace(NAME.namespace)
        reader = await made.session(make())
        await ended(await reader.fetch(*NAME, receiver=Noted()))
        assert relay.cache.size
        yield made


def attempts(session: Session) -> list[Coroutine[Any, Any, object]]:
    """Everything that a peer can ask for, of the scope and around it."""
    ask = session.driver.ask
    return [
        session.fetch(*NAME, receiver=Noted()),
        session.subscribe(*NAME),
        session.track_status(*NAME),
        session.subscribe_namespace(()),
        session.subscribe_namespace((PROTOCOL,)),
        session.subscribe_namespace(scope_prefix(SCOPE)),
        session.subscribe_namespace(content_prefix(SCOPE, b"c" * 32, b"a" * 32)),
        session.publish_namespace(NAME.namespace),
        session.publish_namespace((PROTOCOL,)),
        ask(lambda n: SubscribeTracks(n, scope_prefix(SCOPE), Parameters())),
        ask(lambda n: Publish(n, NAME, 1, Parameters())),
    ]


FORGED = {
    "none": None,
    "of another scope": make(SHARED, ("publish", "subscribe", "fetch"), THEIRS),
    "of a stranger": make(SharedKey(b"x" * 32, b"k1")),
    "cut short": make()[:-1],
    "changed": make().replace(SCOPE[:8], THEIRS[:8]),
    "expired": make(expires=NOW - 1),
    "with a restriction": seal({4: int(NOW) + 9, 312: 5, 327: [[list(range(9))]]}, SHARED),
    "without an end": seal({327: [[list(range(9))]]}, SHARED),
}


@pytest.mark.parametrize("what", FORGED)
async def test_nothing_is_done_for_whom_no_token_grants_it(what: str) -> None:
    """R2: for no kind of request, and not from the cache either."""
    async with world() as made:
        session = await made.session(FORGED[what])
        for attempt in attempts(session):
            with pytest.raises(RequestRejected):
                await attempt
        assert session.closed is None  # it was answered, each time


async def test_a_token_for_one_scope_lists_and_reaches_no_other() -> None:
    """R2: even one that names no scope at all, and so everything."""
    everything = seal({4: int(NOW) + 9, 327: [[list(range(9))]]}, SHARED)
    async with world() as made:
        session = await made.session(everything)
        for prefix in ((), (PROTOCOL,), (PROTOCOL, SCOPE[:8])):
            with pytest.raises(RequestRejected):
                await session.subscribe_namespace(prefix)


@pytest.mark.parametrize("how", ["expired", "retired"])
async def test_what_is_expired_or_retired_opens_nothing_new(how: str) -> None:
    async with world() as made:
        session = await made.session(make(expires=NOW + 10))
        await ended(await session.fetch(*NAME, receiver=Noted()))
        if how == "expired":
            made.now = NOW + 10
        else:
            made.policy.replace_keys(KeyRing([SharedKey(b"n" * 32, b"k2")]))
        for attempt in attempts(session):
            with pytest.raises(RequestRejected):
                await attempt


async def test_tokens_stay_out_of_logs_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with world() as made:
            said = []
            for token in FORGED.values():
                session = await made.session(token)
                for attempt in attempts(session):
                    try:
                        await attempt
                    except MoqtError as error:
                        said.append(f"{error} {error!r}")
    text = caplog.text + " ".join(said)
    assert "refused" in text
    for token in FORGED.values():
        for secret in (token, token[-32:]) if token is not None else ():
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
    assert SHARED.octets.hex() not in text


async def test_what_runs_ends_with_a_token_that_asks_for_it() -> None:
    """On both sides: a consumer gets nothing more, and from a publisher nothing more is taken."""
    later = FullTrackName(NAME.namespace, b"v.raw.s0")
    soon = NOW + 0.05
    async with world() as made:
        consumer, keeper = await made.session(make(expires=soon, revalidate=1)), made.track
        lost, subscription = await join_noted(consumer, NAME)
        brief, origin = Track(later), Origin()
        origin.add_track(brief)
        session = await connect(
            made.net.relays[0].servers[0].url,
            backend=made.net.backend,
            responder=origin,
            tokens=shown(make(allow=("publish",), expires=soon, revalidate=1)),
        )
        await made.net.stack.enter_async_context(session)
        offer = await session.publish_namespace(later.namespace)
        reader = await made.session(make())
        kept, live = await join_noted(reader, later)
        publish(brief, [0])
        await until(lambda: len(kept.live) == 4)
        made.now = soon
        for end in (await ended(subscription), await ended(live)):
            assert isinstance(end, TrackAborted)
        await asyncio.wait_for(asyncio.shield(offer.ended), 10)
        before = len(lost.locations), len(kept.locations)
        publish(keeper, [3])
        publish(brief, [1])
        await ended(await reader.fetch(*NAME, receiver=(seen := Noted())))
        assert len(seen.filled) == 16
        assert (len(lost.locations), len(kept.locations)) == before
