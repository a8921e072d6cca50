"""Publications offered to a relay, scripted: taken, refused, taken back, and offered again after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import moqt
from kvcs import relay_link
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from moqt import (
    AuthorizationToken,
    ClientTls,
    Server,
    Session,
    Token,
    TrackNamespace,
    serve,
)
from moqt import (
    Publisher as Origin,
)
from moqt.connection import Driver
from moqt.errors import ConnectError, RequestErrorCode, RequestRejected, StreamErrorCode
from moqt.protocol.requests import RequestState
from moqt.quic.memory import MemoryBackend
from moqt.wire.messages import PublishNamespace, RequestError, RequestOk
from moqt.wire.parameters import Parameters
from moqt.wire.tokens import AliasType
from tests.support.world import NO_TLS, PATIENCE, Cache, small, until

CACHE = Cache(small(), 16)


class Relay(Origin):
    """Takes namespaces, or refuses them with `code`; sessions are kept to subscribe back."""

    def __init__(self) -> None:
        super().__init__()
        self.code: RequestErrorCode | None = None
        self.offered: dict[RequestState, TrackNamespace] = {}
        self.seen: list[PublishNamespace] = []
        self.drivers: list[Driver] = []

    def session_opened(self, driver: Driver) -> None:
        self.drivers.append(driver)

    def request_received(self, driver: Driver, request: RequestState) -> None:
        message = request.message
        if not isinstance(message, PublishNamespace):
            super().request_received(driver, request)
            return
        self.seen.append(message)
        if self.code is not None:
            driver.send(request, RequestError(self.code, 0, "no", None), fin=True)
        else:
            self.offered[request] = message.namespace
            driver.send(request, RequestOk(Parameters()))

    def request_ended(self, driver: Driver, request: RequestState) -> None:
        self.offered.pop(request, None)
        super().request_ended(driver, request)

    def session_closed(self, driver: Driver) -> None:
        self.drivers.remove(driver)
        self.offered.clear()
        super().session_closed(driver)


class Scene:
    """A relay that listens, and a publisher."""

    def __init__(self, backend: MemoryBackend, relay: Relay, server: Server) -> None:
        self.backend = backend
        self.relay = relay
        self.server = server
        self.publisher = Publisher(backend=backend)

    @property
    def offered(self) -> set[TrackNamespace]:
        return set(self.relay.offered.values())


@pytest.fixture(name="scene")
async def _scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(relay_link, "RETRY_FIRST", 0.001)
    backend, relay = MemoryBackend(), Relay()
    server = await serve("memory", 0, relay, tls=NO_TLS, backend=backend)
    scene = Scene(backend, relay, server)
    yield scene
    await scene.publisher.close(0.0)
    await server.close()


async def test_every_publication_is_offered_and_taken_back(scene: Scene) -> None:
    """P1: PUBLISH_NAMESPACE of all five fields, for what there is and what comes later, until withdrawn."""
    first = CACHE.publish(scene.publisher)
    await scene.publisher.announce(scene.server.url)
    assert scene.offered == {first.name.namespace}
    assert len(scene.relay.seen[0].namespace) == 5
    second = CACHE.publish(scene.publisher)
    await until(lambda: len(scene.offered) == 2)
    scene.publisher.withdraw(first)
    await until(lambda: scene.offered == {second.name.namespace})
    second.stop(ValueError("an error"))
    await until(lambda: not scene.offered)


async def test_the_authorisation_that_the_relay_requires(scene: Scene) -> None:
    """P1: AUTHORIZATION_TOKEN goes with every PUBLISH_NAMESPACE."""
    token = AuthorizationToken(AliasType.USE_VALUE, token_type=0, value=b"let me in")
    await scene.publisher.announce(scene.server.url, tokens=(token,))
    CACHE.publish(scene.publisher)
    await until(lambda: bool(scene.relay.seen))
    assert scene.relay.seen[0].parameters.authorization_tokens == (token,)


async def test_an_offer_that_ends_with_its_token_is_made_again(scene: Scene) -> None:
    """P1: the credential may give a fresh token by then; it goes with the offer, and not with the others."""
    held = [Token(1, b"old")]
    publication = CACHE.publish(scene.publisher)
    await scene.publisher.announce(scene.server.url, credential=lambda: held[0])
    assert scene.relay.drivers[0].core.peer_tokens == (Token(1, b"old"),)
    assert scene.relay.seen[0].parameters.authorization_tokens == ()
    held[0] = Token(1, b"fresh")
    (request,) = scene.relay.offered
    scene.relay.offered.clear()
    scene.relay.drivers[0].cancel(request, StreamErrorCode.EXPIRED_AUTH_TOKEN)
    await until(lambda: scene.offered == {publication.name.namespace})
    (again,) = scene.relay.offered
    assert again.tokens == (Token(1, b"fresh"),)


async def test_a_relay_gets_the_tracks_over_the_same_session(scene: Scene) -> None:
    """P1, C5: what a relay asks for under the namespace is served on the session that offered it."""
    publication = CACHE.publish(scene.publisher)
    await scene.publisher.announce(scene.server.url)
    await until(lambda: bool(scene.relay.drivers))
    session = Session(scene.relay.drivers[0])
    fetch = await session.fetch(publication.name.namespace, b"k.raw.s0")
    assert len([item async for item in fetch]) == 16


async def test_a_lost_session_is_opened_again(scene: Scene) -> None:
    """P1: with all offers, those included that were made while there was none."""
    first = CACHE.publish(scene.publisher)
    await scene.publisher.announce(scene.server.url)
    scene.backend.networks[-1].cut()
    second = CACHE.publish(scene.publisher)
    await until(lambda: scene.offered == {first.name.namespace, second.name.namespace})
    third = CACHE.publish(scene.publisher)
    scene.publisher.withdraw(first)
    await until(lambda: scene.offered == {second.name.namespace, third.name.namespace})
    assert len(scene.backend.networks) == 2


async def test_attempts_go_on_until_the_relay_is_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: with pauses that double up to a limit."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await sleep(0)

    link = await scene.publisher.announce(scene.server.url)
    publication = CACHE.publish(scene.publisher)
    await until(lambda: bool(scene.offered))
    port = scene.server.address[1]
    monkeypatch.setattr(relay_link, "RETRY_MOST", 0.004)
    monkeypatch.setattr("kvcs.relay_link.asyncio.sleep", pause)
    try:
        await scene.server.close()
        await until(lambda: len(pauses) >= 5)
    finally:
        monkeypatch.undo()
    assert pauses[:5] == [0.001, 0.002, 0.004, 0.004, 0.004]
    scene.server = await serve("memory", port, scene.relay, tls=NO_TLS, backend=scene.backend)
    async with asyncio.timeout(PATIENCE):
        await until(lambda: scene.offered == {publication.name.namespace})
    assert link.error is None
    await scene.publisher.close(0.0)
    await scene.server.close()


async def test_refusals(scene: Scene) -> None:
    """P1: of what there is at the start they are raised, and no session is left; later ones are kept."""
    CACHE.publish(scene.publisher)
    scene.relay.code = RequestErrorCode.UNAUTHORIZED
    with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
        await scene.publisher.announce(scene.server.url)
    await until(lambda: not scene.relay.drivers)
    assert not scene.publisher._links
    scene.relay.code = None
    link = await scene.publisher.announce(scene.server.url)
    scene.relay.code = RequestErrorCode.NOT_SUPPORTED
    CACHE.publish(scene.publisher)
    await until(lambda: link.error is not None)
    assert isinstance(link.error, RequestRejected)


async def test_an_offer_that_the_relay_takes_back(scene: Scene) -> None:
    """P1: is told by the link; the session goes on."""
    CACHE.publish(scene.publisher)
    link = await scene.publisher.announce(scene.server.url)
    (request,) = scene.relay.offered
    scene.relay.drivers[0].cancel(request)
    await until(lambda: link.error is not None)
    assert len(scene.relay.drivers) == 1


async def test_nobody_there(scene: Scene) -> None:
    """P1: the first attempt fails as such."""
    with pytest.raises(ConnectError):
        await scene.publisher.announce("moqt://memory:1", tls=ClientTls())
    assert not scene.publisher._links


async def test_nobody_there_yet(scene: Scene) -> None:
    """P1: with `retry` the relay gets everything once it is there."""
    port = scene.server.address[1]
    await scene.server.close()
    link = await scene.publisher.announce(f"moqt://memory:{port}", tls=ClientTls(), retry=True)
    publication = CACHE.publish(scene.publisher)
    assert not link.connected
    scene.server = await serve("memory", port, scene.relay, tls=NO_TLS, backend=scene.backend)
    async with asyncio.timeout(PATIENCE):
        await until(lambda: scene.offered == {publication.name.namespace})
    assert link.connected
    await scene.publisher.close(0.0)
    await scene.server.close()
    assert not link.connected


async def test_publications_that_come_and_go_during_the_first_offers(scene: Scene) -> None:
    """P1: none is forgotten, none is left behind."""
    first, second = CACHE.publish(scene.publisher), CACHE.publish(scene.publisher)
    announcing = asyncio.create_task(scene.publisher.announce(scene.server.url))
    for _ in range(3):
        await asyncio.sleep(0)
    third = CACHE.publish(scene.publisher)
    scene.publisher.withdraw(second)
    await announcing
    await until(lambda: scene.offered == {first.name.namespace, third.name.namespace})


async def test_a_publication_is_offered_once_though_it_comes_as_the_session_opens(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: it is among those that there are, and has come since; taken back, it is gone."""
    connect = moqt.connect
    publications: list[Publication] = []

    async def connected(*args: Any, **options: Any) -> Session:
        session = await connect(*args, **options)
        publications.append(CACHE.publish(scene.publisher))
        return session

    monkeypatch.setattr(relay_link, "connect", connected)
    await scene.publisher.announce(scene.server.url)
    await until(lambda: len(scene.relay.seen) == 2 and len(scene.relay.offered) == 1)
    scene.publisher.withdraw(publications[0])
    await until(lambda: not scene.offered)


async def test_a_namespace_that_leaves_and_comes_back_is_offered_once(scene: Scene) -> None:
    link = await scene.publisher.announce(scene.server.url)
    namespace = (b"kv", b"again")
    link.add(namespace)
    link.remove(namespace)
    link.add(namespace)
    await until(lambda: len(scene.relay.seen) == 2 and len(scene.relay.offered) == 1)
    link.remove(namespace)
    await until(lambda: not scene.offered)


async def test_closing_says_goodbye(scene: Scene) -> None:
    """P1: GOAWAY, offers taken back, and no attempt to come again."""
    CACHE.publish(scene.publisher)
    await scene.publisher.announce(scene.server.url)
    await until(lambda: bool(scene.relay.drivers))
    (driver,) = scene.relay.drivers
    await scene.publisher.close(1.0)
    assert driver.goaway.done()
    assert not scene.relay.drivers
    assert len(scene.backend.networks) == 1


async def test_a_relay_that_leaves_is_followed(scene: Scene) -> None:
    """The offers go to where it says, and what is under way stays on the old session until the relay ends it."""
    publication = CACHE.publish(scene.publisher)
    await scene.publisher.announce(scene.server.url)
    old = scene.relay.drivers[0]
    other = Relay()
    server = await serve("memory", 0, other, tls=NO_TLS, backend=scene.backend)
    async with server:
        scene.server.goaway(uri=server.url, timeout=30)
        await until(lambda: set(other.offered.values()) == {publication.name.namespace})
        assert not old.closed.done()
        subscription = await Session(old).subscribe(publication.name.namespace, b"manifest")
        subscription.cancel()
        # Only one step: where a relay led, the next one leads no further.
        server.goaway(uri="moqt://nowhere", timeout=30)
        await until(lambda: len(scene.relay.drivers) == 2)
        await scene.publisher.close(0.0)
        await until(lambda: not scene.relay.drivers and not other.drivers)


@pytest.mark.parametrize("uri", ["https://elsewhere", "moqt://elsewhere.example"])
async def test_a_relay_leads_nowhere_that_cannot_be_checked(
    scene: Scene, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    CACHE.publish(scene.publisher)
    await scene.publisher.announce(scene.server.url, tls=ClientTls(verify=False))
    (old,) = scene.relay.drivers
    scene.server.goaway(uri=uri, timeout=30)
    await until(lambda: len(scene.relay.drivers) == 2)
    assert scene.relay.drivers[0] is old
    assert "elsewhere cannot be reached" not in caplog.text
