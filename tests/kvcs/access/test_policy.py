"""kvcs.access.policy: each action by its token at a relay, cached or not; keys come and go while it runs (R2)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kvcs.access.cwt import seal
from kvcs.access.keys import KeyRing, SharedKey
from kvcs.access.policy import AccessPolicy, TokenReader
from kvcs.naming import PROTOCOL, PublicationName, scope_prefix
from moqt import (
    Action,
    AuthorizationToken,
    Config,
    FullTrackName,
    Query,
    Session,
    SessionConfig,
    Track,
    connect,
)
from moqt.auth import Refusal, Terms
from moqt.errors import (
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    TokenFault,
    TrackAborted,
    UntrustedToken,
)
from moqt.wire.messages import Publish, SubscribeTracks, TrackStatus
from moqt.wire.parameters import AliasType, Parameters
from tests.support.ends import eventually, publish, until
from tests.support.relays import Net, Noted, Origin, ended, join_noted, net
from tests.support.tokens import KEYS, KVCS, NOW, SCOPE, SHARED, as_token, make, shown

OTHER = b"t" * 16
NAMES = {
    scope: PublicationName(scope, b"c" * 32, b"a" * 32, b"p" * 16).namespace
    for scope in (SCOPE, OTHER)
}
SECOND = SharedKey(b"n" * 32, b"k2")


def policy(*keys: SharedKey, now: float = NOW, **terms: Any) -> AccessPolicy:
    return AccessPolicy(KeyRing(keys or [SHARED]), terms=Terms(**terms), clock=lambda: now)


def ask(
    action: Action,
    namespace: tuple[bytes, ...],
    token: bytes,
    track: bytes | None = b"t",
    **terms: Any,
) -> bool:
    query = Query(action=action, namespace=namespace, track=track, tokens=(as_token(token),))
    return not isinstance(policy(**terms).decide(query), Refusal)


@pytest.mark.parametrize("vector", KVCS["authz"])
def test_the_vectors_of_kvcs(vector: Any) -> None:
    """R2: sealed tokens, through the whole policy."""
    numbers = {
        2: Action.PUBLISH_NAMESPACE,
        3: Action.SUBSCRIBE_NAMESPACE,
        4: Action.SUBSCRIBE,
        6: Action.PUBLISH,
        7: Action.FETCH,
    }
    data = next(t["cwt_mac0_tag61"] for t in KVCS["tokens"] if t["name"] == vector["token"])
    namespace = tuple(bytes.fromhex(field) for field in vector["namespace"])
    track = vector["track"].encode() or None
    asked = numbers[vector["action"]], namespace, bytes.fromhex(data), track
    here = frozenset({"relay.kvcs.test"})
    assert ask(*asked, audiences=here) is vector["expected"]
    assert not ask(*asked), "a token for a certain relay is for no other"


@pytest.mark.parametrize("action", Action)
def test_no_token_reaches_beyond_a_scope(action: Action) -> None:
    """R2: neither (kvcs-1) alone nor other protocols, even where a token grants everything."""
    everything = seal({4: int(NOW) + 9, 327: [[list(range(9))]]}, SHARED)
    for namespace in ((), (PROTOCOL,), (b"kvcs-2", SCOPE), (PROTOCOL, SCOPE[:15])):
        assert not ask(action, namespace, everything, None)
    assert ask(action, NAMES[SCOPE], everything, None)
    assert ask(action, scope_prefix(SCOPE), everything, None) is not action.publishes


def test_only_tokens_of_its_type_are_looked_at() -> None:
    reader = TokenReader(KeyRing([SHARED]))
    with pytest.raises(UntrustedToken, match="type 0"):
        reader(as_token(make(), 0))
    with pytest.raises(TokenFault, match="too long"):
        reader(as_token(bytes(20_000)))


def test_a_ring_that_is_replaced_counts_at_once() -> None:
    """R2: also for tokens that were seen before."""
    reader = TokenReader(KeyRing([SHARED, SECOND]))
    old, new = as_token(make()), as_token(make(SECOND))
    assert reader(old) is reader(old)
    reader.replace_keys(KeyRing([SECOND]))
    with pytest.raises(UntrustedToken):
        reader(old)
    assert reader(new)


async def dial(world: Net, token: bytes | None, **more: Any) -> Session:
    session = await connect(
        world.relays[0].servers[0].url,
        backend=world.backend,
        tokens=shown(token) if token is not None else (),
        **more,
    )
    return await world.stack.enter_async_context(session)


async def refused(asked: Coroutine[Any, Any, Any]) -> RequestErrorCode:
    with pytest.raises(RequestRejected) as rejection:
        await asked
    return rejection.value.code


def requests(session: Session, scope: bytes) -> dict[Action, Coroutine[Any, Any, Any]]:
    name = FullTrackName(NAMES[scope], b"k")
    driver = session.driver
    return {
        Action.SUBSCRIBE_NAMESPACE: session.subscribe_namespace(scope_prefix(scope)),
        Action.SUBSCRIBE_TRACKS: driver.ask(
            lambda n: SubscribeTracks(n, scope_prefix(scope), Parameters())
        ),
        Action.SUBSCRIBE: session.subscribe(*name),
        Action.FETCH: session.fetch(*name, receiver=Noted()),
        Action.TRACK_STATUS: session.track_status(*name),
        Action.PUBLISH_NAMESPACE: session.publish_namespace(NAMES[scope]),
        Action.PUBLISH: driver.ask(
            lambda n: Publish(n, FullTrackName(NAMES[scope], b"x"), 1, Parameters())
        ),
    }


async def origin(world: Net, token: bytes) -> Track:
    """A publication of SCOPE at the first relay, complete."""
    track, served = Track(FullTrackName(NAMES[SCOPE], b"k")), Origin()
    served.add_track(track)
    publish(track, range(3))
    producer = await dial(world, token, responder=served)
    await producer.publish_namespace(track.name.namespace)
    return track


READS = {
    Action.SUBSCRIBE_NAMESPACE,
    Action.SUBSCRIBE_TRACKS,
    Action.SUBSCRIBE,
    Action.TRACK_STATUS,
}


@pytest.mark.parametrize(
    ("token", "granted"),
    [
        (make(allow=("publish",), expires=NOW + 9), {Action.PUBLISH_NAMESPACE, Action.PUBLISH}),
        (make(allow=("subscribe",), expires=NOW + 9), READS),
        (make(allow=("fetch",), expires=NOW + 9), {Action.FETCH}),
        (make(SHARED, ("publish", "subscribe", "fetch"), OTHER), set()),
        (None, set()),
    ],
    ids=["publish", "subscribe", "fetch", "another scope", "none"],
)
async def test_each_action_by_its_token_cache_hits_included(
    token: bytes | None, granted: set[Action]
) -> None:
    """R2: what lies in the cache is given to nobody whose token does not grant it."""
    async with net() as world:
        relay = await world.relay(policy=policy())
        track = await origin(world, make(allow=("publish",)))
        full = await dial(world, make())
        await ended(await full.fetch(*track.name, receiver=Noted()))
        assert relay.cache.size
        session = await dial(world, token, responder=Origin())
        for action, asked in requests(session, SCOPE).items():
            if action in granted:
                await asked
            else:
                assert await refused(asked) is RequestErrorCode.UNAUTHORIZED, action
        for asked in requests(session, OTHER).values():
            if token is None or b"\x50" + OTHER not in token:
                assert await refused(asked) is RequestErrorCode.UNAUTHORIZED
            else:
                asked.close()


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (make(expires=NOW - 61), RequestErrorCode.EXPIRED_AUTH_TOKEN),
        (make()[:-1], RequestErrorCode.MALFORMED_AUTH_TOKEN),
        (make(KEYS["EdDSA"]), RequestErrorCode.UNAUTHORIZED),
        (make(not_before=NOW + 100), RequestErrorCode.UNAUTHORIZED),
    ],
    ids=["expired", "cut short", "unknown key", "too early"],
)
async def test_a_bad_token_is_refused_with_its_code(token: bytes, code: RequestErrorCode) -> None:
    async with net() as world:
        await world.relay(policy=policy())
        session = await dial(world, token)
        assert await refused(session.fetch(NAMES[SCOPE], b"k")) is code
        assert session.closed is None


async def test_keys_are_rotated_while_a_transfer_runs() -> None:
    """R2: old and new at once, then the new one alone; what runs goes on, what is new needs the new key."""
    rules = policy(SHARED)
    async with net() as world:
        await world.relay(policy=rules)
        track = await origin(world, make())
        old = await dial(world, make())
        noted, subscription = await join_noted(old, track.name)
        rules.replace_keys(KeyRing([SHARED, SECOND]))
        new = await dial(world, make(SECOND))
        await ended(await new.fetch(*track.name, receiver=Noted()))
        await ended(await old.fetch(*track.name, receiver=Noted()))
        rules.replace_keys(KeyRing([SECOND]))
        publish(track, range(3, 6))
        await until(lambda: len(noted.live) == 12)
        assert not subscription.finished.done()
        assert await refused(old.fetch(*track.name)) is RequestErrorCode.UNAUTHORIZED
        late = await dial(world, make())
        assert await refused(late.fetch(*track.name)) is RequestErrorCode.UNAUTHORIZED
        await ended(await new.fetch(*track.name, receiver=Noted()))
        await ended(await old.fetch(*track.name, receiver=Noted(), tokens=shown(make(SECOND))))
        subscription.cancel()


@pytest.mark.parametrize("expires", [True, False])
async def test_a_grant_ends_what_runs_where_its_token_asks_for_that(expires: bool) -> None:
    """R2: with `moqt-reval`, at its expiry or when its key is retired; without it nothing that runs is ended."""
    times = [NOW]
    rules = AccessPolicy(
        KeyRing([SHARED, SECOND]),
        terms=Terms(leeway=0, least_revalidation=0.01),
        clock=lambda: times[0],
    )
    async with net() as world:
        await world.relay(policy=rules)
        track = await origin(world, make(SECOND, expires=NOW + 10**6))
        watched = await dial(world, make(revalidate=0.02))
        plain = await dial(world, make())
        seen, subscription = await join_noted(watched, track.name)
        noted, lasting = await join_noted(plain, track.name)
        publish(track, [3])
        await eventually(lambda: len(seen.live) == len(noted.live) == 4)
        if expires:
            times[0] = NOW + 1000
        else:
            rules.replace_keys(KeyRing([SECOND]))
        error = await asyncio.wait_for(asyncio.shield(subscription.finished), 10)
        assert isinstance(error, TrackAborted)
        told = PublishDoneCode.EXPIRED if expires else PublishDoneCode.UNAUTHORIZED
        assert error.code is told
        publish(track, [4])
        await until(lambda: len(noted.live) == 8)
        assert not lasting.finished.done()
        lasting.cancel()


async def test_a_fresh_token_takes_over_while_a_transfer_runs() -> None:
    """R2: no interruption; it is registered once and used by its alias; the old key is refused after that."""
    looked: list[float] = []

    def clock() -> float:
        looked.append(NOW)
        return NOW

    rules = AccessPolicy(
        KeyRing([SHARED, SECOND]),
        terms=Terms(leeway=0, least_revalidation=0.01),
        clock=clock,
    )
    room = Config(session=SessionConfig(auth_token_cache=1000))
    async with net() as world:
        await world.relay(policy=rules, config=room)
        track = await origin(world, make(SECOND))
        held = [as_token(make(revalidate=0.02))]
        session = await connect(
            world.relays[0].servers[0].url, backend=world.backend, credential=lambda: held[0]
        )
        await world.stack.enter_async_context(session)
        await session.peer_options()

        async def sent() -> tuple[AuthorizationToken, ...]:
            request = await session.driver.ask(lambda n: TrackStatus(n, track.name, Parameters()))
            session.driver.finish(request)
            return request.message.parameters.authorization_tokens

        noted, subscription = await join_noted(session, track.name)
        assert await sent() == ()  # SETUP carried it
        held[0] = as_token(make(SECOND, revalidate=0.02))
        await session.renew()
        (alias,) = await sent()
        assert alias.alias_type is AliasType.USE_ALIAS
        rules.replace_keys(KeyRing([SECOND]))
        before = len(looked)
        await until(lambda: len(looked) > before + 3)  # it was looked at again meanwhile
        publish(track, [3])
        await until(lambda: len(noted.live) == 4)
        assert not subscription.finished.done()
        await ended(await session.fetch(*track.name, receiver=Noted()))
        late = await dial(world, make())
        assert await refused(late.fetch(*track.name)) is RequestErrorCode.UNAUTHORIZED
        subscription.cancel()
