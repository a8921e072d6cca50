"""Who may do what: the table of scopes per token, by itself and at a relay (R2)."""

from __future__ import annotations

import asyncio

import pytest

from kvcs.naming import PROTOCOL, PublicationName, content_prefix, scope_prefix
from kvcs.scopes import Grant, ScopePolicy
from moqt import (
    Action,
    AuthorizationToken,
    FullTrackName,
    Location,
    Query,
    Relay,
    Session,
    Token,
    Track,
    connect,
)
from moqt.errors import RequestErrorCode, RequestRejected
from moqt.quic.memory import MemoryBackend
from moqt.wire.parameters import AliasType
from tests.support.ends import eventually, publish
from tests.support.relays import Noted, Origin, ended, net

MINE, THEIRS = b"m" * 16, b"t" * 16
NAMES = {scope: PublicationName(scope, b"c" * 32, b"a" * 32, b"p" * 16) for scope in (MINE, THEIRS)}
GRANTS = {
    b"producer": [Grant(MINE, publish=True), Grant(THEIRS, publish=True, subscribe=False)],
    b"consumer": [Grant(MINE)],
    b"other": [Grant(THEIRS)],
}


def ask(action: Action, namespace: tuple[bytes, ...], *tokens: bytes) -> bool:
    query = Query(
        action=action,
        namespace=namespace,
        track=b"t",
        tokens=tuple(Token(0, token) for token in tokens),
    )
    return ScopePolicy(GRANTS).decide(query) is None


@pytest.mark.parametrize("action", Action)
def test_a_scope_is_granted_by_token(action: Action) -> None:
    """R2: every request is decided by (kvcs-1, Scope ID)."""
    mine, theirs = scope_prefix(MINE), NAMES[THEIRS].namespace
    if action.publishes:
        mine = NAMES[MINE].namespace
    assert ask(action, mine, b"producer")
    assert ask(action, mine, b"unknown", b"producer")
    assert ask(action, mine, b"consumer") is not action.publishes
    assert not ask(action, theirs, b"consumer")
    assert ask(action, theirs, b"other") is not action.publishes
    assert ask(action, theirs, b"producer") is action.publishes
    assert not ask(action, mine)
    assert not ask(action, mine, b"", b"nobody")


@pytest.mark.parametrize(
    "namespace",
    [(), (PROTOCOL,), (b"kvcs-2", MINE), (MINE, PROTOCOL), (PROTOCOL, MINE[:15]), (PROTOCOL, b"")],
)
def test_what_names_no_scope_is_refused(namespace: tuple[bytes, ...]) -> None:
    """R2: fewer than two fields would list other scopes."""
    assert not any(ask(action, namespace, b"producer", b"consumer", b"other") for action in Action)


@pytest.mark.parametrize("action", [Action.PUBLISH_NAMESPACE, Action.PUBLISH])
@pytest.mark.parametrize("fields", [2, 3, 4, 6])
def test_a_publication_has_five_fields(action: Action, fields: int) -> None:
    """R2: who offers a shorter namespace would get what is asked of other people's publications."""
    namespace = (*NAMES[MINE].namespace, b"more")[:fields]
    assert not ask(action, namespace, b"producer")
    assert ask(action, NAMES[MINE].namespace, b"producer")


def as_token(value: bytes) -> tuple[AuthorizationToken, ...]:
    return (AuthorizationToken(AliasType.USE_VALUE, None, 0, value),)


async def dial(relay: Relay, backend: MemoryBackend, token: bytes, **more: object) -> Session:
    """A session whose SETUP has a token."""
    return await connect(
        relay.servers[0].url,
        backend=backend,
        tokens=as_token(token),
        **more,  # type: ignore[arg-type]
    )


async def refused(asked: object) -> None:
    with pytest.raises(RequestRejected) as rejection:
        await asked  # type: ignore[misc]
    assert rejection.value.code is RequestErrorCode.UNAUTHORIZED


async def test_scopes_are_apart_at_a_relay_cache_hits_included() -> None:
    """R2: consumers of one scope neither list, subscribe to nor fetch another's, from the cache neither."""
    async with net() as world:
        relay = await world.relay(policy=ScopePolicy(GRANTS))
        origin = Origin()
        tracks = {scope: Track(FullTrackName(NAMES[scope].namespace, b"k")) for scope in NAMES}
        async with (
            await dial(relay, world.backend, b"producer", responder=origin) as producer,
            await dial(relay, world.backend, b"consumer") as consumer,
            await dial(relay, world.backend, b"other") as other,
        ):
            for track in tracks.values():
                origin.add_track(track)
                publish(track, range(3))
                track.end()
                await producer.publish_namespace(track.name.namespace)
            for session, scope in ((consumer, MINE), (other, THEIRS)):
                listed = await session.subscribe_namespace(scope_prefix(scope))
                await eventually(lambda: listed.active)  # noqa: B023
                assert listed.active == {NAMES[scope].namespace}
                noted = Noted()
                await ended(await session.fetch(*tracks[scope].name, receiver=noted))
                assert len(noted.filled) == 12
            for session, scope in ((consumer, THEIRS), (other, MINE)):
                name = tracks[scope].name
                await refused(session.fetch(*name))  # it lies in the cache
                await refused(session.subscribe(*name))
                await refused(session.track_status(*name))
                await refused(session.subscribe_namespace(scope_prefix(scope)))
                prefix = content_prefix(scope, b"c" * 32, b"a" * 32)
                await refused(session.subscribe_namespace(prefix))
            for session in (consumer, other, producer):
                await refused(session.subscribe_namespace(()))
                await refused(session.subscribe_namespace((PROTOCOL,)))
            await refused(consumer.publish_namespace(NAMES[MINE].namespace))
            await refused(producer.subscribe(*tracks[THEIRS].name))
            assert relay.cache.size


async def test_a_token_may_come_with_the_request() -> None:
    """R2: the request's own token counts, and for that request only."""
    async with net() as world:
        relay = await world.relay(policy=ScopePolicy(GRANTS))
        track = Track(FullTrackName(NAMES[MINE].namespace, b"k"))
        origin = Origin()
        origin.add_track(track)
        publish(track, [0])
        producer = await world.session(relay, responder=origin)
        await refused(producer.publish_namespace(track.name.namespace))
        await producer.publish_namespace(track.name.namespace, tokens=as_token(b"producer"))
        session = await world.session(relay)
        await refused(session.fetch(*track.name))
        fetch = await session.fetch(*track.name, tokens=as_token(b"consumer"))
        async with asyncio.timeout(10):
            assert Location(0, 0) in [item.location async for item in fetch]
        await refused(session.fetch(*track.name))


async def test_a_relay_that_does_not_tell_all_is_asked_for_prefixes() -> None:
    """R2: SUBSCRIBE_NAMESPACE with no field is refused upstream; what is asked for downstream is asked for there."""
    async with net() as world:
        a = await world.relay(policy=ScopePolicy(GRANTS))
        b = await world.relay()
        link = b.add_upstream(a.servers[0].url, tokens=as_token(b"consumer"))
        await asyncio.wait_for(link.connected.wait(), 5)
        origin = Origin()
        track = Track(FullTrackName(NAMES[MINE].namespace, b"k"))
        origin.add_track(track)
        publish(track, [0])
        async with await dial(a, world.backend, b"producer", responder=origin) as producer:
            await producer.publish_namespace(track.name.namespace)
            session = await world.session(b)
            narrow = await session.subscribe_namespace(content_prefix(MINE, b"c" * 32, b"a" * 32))
            await eventually(lambda: narrow.active == {track.name.namespace})
            wide = await (await world.session(b)).subscribe_namespace(scope_prefix(MINE))
            await eventually(lambda: wide.active == {track.name.namespace})
            noted = Noted()
            await ended(await session.fetch(*track.name, receiver=noted))
            assert len(noted.filled) == 4
            wide.cancel()
            narrow.cancel()
            await eventually(lambda: not b.sources.count)
