"""Addresses, the trying of one after another, and refusals, as the backends use them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TypeAlias

import pytest

from moqt.config import TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic import dialling
from moqt.quic.base import ConnectionLost
from moqt.quic.dialling import Way

Addresses: TypeAlias = list[tuple[int, tuple[str, int]]]
CONFIG = TransportConfig()


@pytest.mark.parametrize(
    ("port", "listening", "good"),
    [(0, True, True), (0, False, False), (1, False, True), (65535, True, True)]
    + [(65536, listening, False) for listening in (True, False)]
    + [(-1, listening, False) for listening in (True, False)],
)
def test_ports(port: int, listening: bool, good: bool) -> None:
    if good:
        dialling.check_port(port, listening=listening)
    else:
        with pytest.raises(LocalError, match="no port"):
            dialling.check_port(port, listening=listening)


def test_endpoints_are_written_as_people_write_them() -> None:
    assert dialling.endpoint("::1", 4) == "[::1]:4"
    assert dialling.endpoint("localhost", 4) == "localhost:4"


async def test_an_address_resolves_to_itself_once() -> None:
    deadline = asyncio.get_running_loop().time() + 5
    found = await dialling.resolve("127.0.0.1", 9, deadline)
    assert [address for _, address in found] == [("127.0.0.1", 9)]


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\ud800"])
async def test_what_cannot_be_resolved(host: str) -> None:
    deadline = asyncio.get_running_loop().time() + 5
    with pytest.raises(ConnectError) as caught:
        await dialling.resolve(host, 9, deadline)
    assert caught.value.kind == "unreachable"


async def test_a_deadline_in_the_past() -> None:
    with pytest.raises(ConnectError, match="not resolved in time"):
        await dialling.resolve("127.0.0.1", 9, asyncio.get_running_loop().time() - 1)


async def test_a_port_is_bound_once() -> None:
    with await dialling.bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(LocalError, match=f"cannot listen on 127.0.0.1:{port}"):
            await dialling.bind("127.0.0.1", port)
    with pytest.raises(LocalError, match="cannot listen on"):
        await dialling.bind("a..b", 0)


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> Addresses:
    """What every name resolves to."""
    known: Addresses = [(socket.AF_INET, (f"192.0.2.{number}", 9)) for number in (1, 2)]

    async def resolve(*_: object) -> Addresses:
        return known

    monkeypatch.setattr(dialling, "resolve", resolve)
    return known


async def test_the_next_address_has_the_time_that_the_one_before_left(
    addresses: Addresses,
) -> None:
    tried: list[Way] = []

    async def attempt(way: Way) -> str:
        tried.append(way)
        if len(tried) == 1:
            raise ConnectError("unreachable", "nobody there")
        return "open"

    assert await dialling.dial("two.test", 9, CONFIG, attempt) == "open"
    assert [(way.family, way.address) for way in tried] == addresses
    assert {way.where for way in tried} == {"two.test:9"}
    assert tried[0].patience <= CONFIG.handshake_timeout / 2 < tried[1].patience


@pytest.mark.parametrize(("kind", "attempts"), [("unreachable", 2), ("refused", 1), ("tls", 1)])
async def test_who_answers_has_the_last_word(
    kind: str, attempts: int, addresses: Addresses
) -> None:
    tried: list[Way] = []

    async def attempt(way: Way) -> str:
        tried.append(way)
        raise ConnectError(kind, f"number {len(tried)}")

    with pytest.raises(ConnectError, match=f"number {attempts}"):
        await dialling.dial("two.test", 9, CONFIG, attempt)
    assert len(tried) == attempts
    addresses.clear()
    with pytest.raises(ConnectError, match=r"two\.test:9: no address"):
        await dialling.dial("two.test", 9, CONFIG, attempt)


class Awaited:
    """A connection whose handshake ends when told."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self.is_open = False
        self.given_up = 0

    def end(self, *, is_open: bool) -> Awaited:
        self.is_open = is_open
        self.settled.set()
        return self

    def give_up(self) -> None:
        self.given_up += 1


@pytest.mark.parametrize("is_open", [True, False])
async def test_what_does_not_open_is_given_up(is_open: bool) -> None:
    one = Awaited()
    way = Way("h:1", socket.AF_INET, ("192.0.2.1", 1), 10, 10)
    assert await dialling.settle(way, lambda: one.end(is_open=is_open), one.give_up) is one
    assert one.given_up == (not is_open)


async def test_what_does_not_settle_is_given_up() -> None:
    one = Awaited()
    way = Way("h:1", socket.AF_INET, ("192.0.2.1", 1), 0.01, 2.5)
    with pytest.raises(ConnectError, match=r"h:1: no answer within 2\.5 s"):
        await dialling.settle(way, lambda: one, one.give_up)
    assert one.given_up == 1

    def fail() -> Awaited:
        raise ConnectError("unreachable", "no way")

    with pytest.raises(ConnectError, match="no way"):
        await dialling.settle(way, fail, one.give_up)
    assert one.given_up == 2


@pytest.mark.parametrize(
    ("lost", "heard", "kind", "text"),
    [
        (ConnectionLost(1, "Connection refused", False, False), False, "unreachable", "refused"),
        (ConnectionLost(0x178, "", True, False), True, "alpn", "no common ALPN"),
        (ConnectionLost(0x128, "No common ALPN protocols", True, False), True, "alpn", "ALPN"),
        (ConnectionLost(0x128, "", True, False), True, "tls", "handshake failure"),
        (ConnectionLost(0x12A, "self-signed", False, False), True, "tls", "bad certificate: self"),
        (ConnectionLost(0x174, "", True, False), True, "tls", "certificate required"),
        (ConnectionLost(0x1FF, "", True, False), True, "tls", "alert 255"),
        (ConnectionLost(0x2, "busy", True, False), True, "refused", r"busy \(0x2\)"),
        (ConnectionLost(0x178, "", True, True), True, "refused", r"refused \(0x178\)"),
    ],
)
def test_why_a_handshake_failed(lost: ConnectionLost, heard: bool, kind: str, text: str) -> None:
    error = dialling.refusal("h:1", lost, heard=heard)
    assert error.kind == kind
    with pytest.raises(ConnectError, match=f"h:1: .*{text}"):
        raise error


def test_alerts_have_the_numbers_of_tls() -> None:
    assert ssl.AlertDescription.ALERT_DESCRIPTION_HANDSHAKE_FAILURE == dialling.HANDSHAKE_FAILURE


def test_a_peers_words_are_made_printable() -> None:
    assert dialling.printable("a\x1b[31mb\n") == "a?[31mb?"
