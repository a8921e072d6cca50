"""kvcs.suitability: peers that close the session over a binary namespace, told in one line."""

from __future__ import annotations

import asyncio

import pytest

from kvcs.consumer import Consumer
from kvcs.errors import Incomplete, PeerUnsuitable
from kvcs.publisher import Publisher
from kvcs.suitability import unsuitable
from moqt import Publisher as Origin
from moqt import Server, serve
from moqt.connection import Driver
from moqt.errors import MoqtError, SessionClosed, SessionErrorCode, StreamReset
from moqt.protocol.requests import RequestState
from moqt.quic.memory import MemoryBackend
from moqt.wire.messages import PublishNamespace, SubscribeNamespace
from tests.support.world import NO_TLS, Cache, Target, small, until

CACHE = Cache(small(), 8)
URL = "moqt://relay.example:4443"
VIOLATION = SessionErrorCode.PROTOCOL_VIOLATION


class TextOnly(Origin):
    """Closes the session at the first namespace, as implementations do that take only text there."""

    def __init__(self, code: SessionErrorCode = VIOLATION) -> None:
        super().__init__()
        self.opened = 0
        self._code = code

    def session_opened(self, driver: Driver) -> None:
        self.opened += 1
        super().session_opened(driver)

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if isinstance(request.message, PublishNamespace | SubscribeNamespace):
            driver.close(self._code, "invalid string")


async def listening(origin: Origin, backend: MemoryBackend) -> Server:
    return await serve("memory", 0, origin, tls=NO_TLS, backend=backend)


def test_what_it_tells() -> None:
    told = unsuitable(SessionClosed(VIOLATION, "invalid string", remote=True), URL)
    assert isinstance(told, PeerUnsuitable)
    assert str(told).startswith(
        f"{URL} closed the session with PROTOCOL_VIOLATION (invalid string)"
    )
    assert "\n" not in str(told)
    assert told.exit_status == 1
    nameless = unsuitable(SessionClosed(VIOLATION, "", remote=True), "")
    assert str(nameless).startswith("the peer closed the session with PROTOCOL_VIOLATION when")


@pytest.mark.parametrize(
    "error",
    [
        SessionClosed(VIOLATION, "ours", remote=False),
        SessionClosed(SessionErrorCode.NO_ERROR, "", remote=True),
        StreamReset(0),
        Incomplete("incomplete"),
    ],
)
def test_other_errors_are_left_alone(error: MoqtError) -> None:
    assert unsuitable(error, URL) is None


async def test_a_publisher_is_told() -> None:
    """P1, R4: the first offer fails with what to do; the relay is let go."""
    backend = MemoryBackend()
    async with (
        await listening(TextOnly(), backend) as relay,
        Publisher(backend=backend) as publisher,
    ):
        CACHE.publish(publisher)
        with pytest.raises(PeerUnsuitable, match="binary"):
            await publisher.announce(relay.url)


async def test_a_consumer_is_told() -> None:
    """C1, R4: with other reasons for the end of the session it stays incomplete."""
    for code, kind in ((VIOLATION, PeerUnsuitable), (SessionErrorCode.GOAWAY_TIMEOUT, Incomplete)):
        backend = MemoryBackend()
        async with (
            await listening(TextOnly(code), backend) as relay,
            await Consumer.connect(relay.url, backend=backend) as consumer,
        ):
            retrieval = consumer.retrieve(CACHE.identity, Target(CACHE).sink)
            with pytest.raises(kind):
                await retrieval.finish()
            assert retrieval.report.status == ("error" if kind is PeerUnsuitable else "incomplete")


async def test_a_relay_that_always_closes_is_not_asked_all_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P1: what is offered later fails each time; the pauses grow although connecting succeeds."""
    delays: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay: float) -> None:
        if delay > 0:
            delays.append(delay)
        await sleep(0)

    origin, backend = TextOnly(), MemoryBackend()
    async with await listening(origin, backend) as relay, Publisher(backend=backend) as publisher:
        link = await publisher.announce(relay.url)
        monkeypatch.setattr(asyncio, "sleep", noted)
        CACHE.publish(publisher)
        await until(lambda: origin.opened > 7)
        monkeypatch.undo()
        assert isinstance(link.error, SessionClosed)
    assert delays[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert "binary" in caplog.text
