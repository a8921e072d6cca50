"""kvcs.cli.subscribe against peers that vanish, keep silent, cut streams, lie, or speak something else."""

from __future__ import annotations

import signal
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

import moqt
from kvcs.cli.subscribe import MAX_MOVES
from kvcs.payload import Component
from kvcs.publication import Publication
from moqt import Session, TransportConfig
from moqt.connection import Driver
from moqt.errors import RequestErrorCode
from moqt.quic import backend
from moqt.quic.base import Connection, ConnectionHandler
from moqt.wire.messages import Fetch, Subscribe, SubscribeNamespace
from tests.support.cli import Files, Out, kvcs, program
from tests.support.peers import (
    Change,
    CuttingBackend,
    RefusingOrigin,
    SilentOrigin,
    alter,
    overwritten,
    serving,
)
from tests.support.quic import Recorder, server_tls


def ca(certificates: Path) -> list[str]:
    return ["--ca", str(certificates / "ca.pem")]


def wrong_digest(payload: bytes) -> bytes:
    """Other Data than the digest says."""
    return payload[:-1] + bytes([payload[-1] ^ 1])


ALTERED: dict[str, Change] = {
    "magic": overwritten(0, b"KVO2"),
    "version": overwritten(4, b"\x02"),
    "component": overwritten(5, b"\x02"),
    "unknown component": overwritten(5, b"\x09"),
    "layer": overwritten(8, b"\x00\x00\x00\x02"),
    "block": overwritten(12, b"\x00\x00\x00\x00"),
    "token start": overwritten(23, b"\x05"),
    "token count": overwritten(27, b"\x05"),
    "codec": overwritten(28, b"\x7f"),
    "length": overwritten(35, b"\x3f"),
    "short": lambda payload: payload[:-1],
    "long": lambda payload: payload + b"\x00",
    "header only": lambda payload: payload[:68],
    "no header": lambda payload: payload[:67],
    "empty": lambda _: b"",
    "digest": overwritten(40, b"\x00\x00"),
    "data": wrong_digest,
}


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED.keys())
async def test_a_wrong_object_is_missing(
    files: Files, certificates: Path, capsys: Out, change: Change
) -> None:
    """O2, O8: discarded and counted; reported as missing by layer and block; nothing is written."""
    async with serving(certificates, files.identity) as (url, _, publication):
        alter(publication, Component.K, 1, 1, change)
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates)))
    line = ended.complaint(4)
    report = ended.json
    assert report["status"] == "incomplete"
    assert report["missing"] == [{"track": "k.raw.s0", "layer": 1, "blocks": [[1, 1]]}]
    assert "k.raw.s0 layer 1 blocks 1" in line
    assert report["discarded"] >= 1
    assert (report["objects"], report["layers"]) == (11, 1)
    assert files.nothing_written()


async def test_a_consistent_lie_contradicts_the_manifest(
    files: Files, certificates: Path, capsys: Out
) -> None:
    """M9: Data whose digest fits its header, but not the manifest."""
    async with serving(certificates, files.identity) as (url, _, publication):
        alter(publication, Component.V, 2, 0, lie)
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates)))
    ended.complaint(4)
    assert ended.json["missing"] == [{"track": "v.raw.s0", "layer": 2, "blocks": [[0, 0]]}]
    assert ended.json["discarded"] >= 1
    assert files.nothing_written()


def lie(payload: bytes) -> bytes:
    """Other Data with its own digest."""
    data = bytes(len(payload) - 68)
    return payload[:36] + sha256(data).digest() + data


@pytest.mark.parametrize("after", [0, 30, 68, 100])
async def test_a_fin_in_the_middle_of_an_object(
    files: Files, certificates: Path, capsys: Out, after: int
) -> None:
    """What was received of it is not used, wherever it ends."""
    async with serving(certificates, files.identity, quic=CuttingBackend(after)) as (url, _, _):
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates)))
    ended.complaint(4)
    assert ended.json["status"] == "incomplete"
    assert [gap["layer"] for gap in ended.json["missing"]] == [0, 0, 1, 1, 2, 2]
    assert files.nothing_written()


@pytest.mark.parametrize(
    ("ignored", "until"),
    [
        ((SubscribeNamespace,), None),
        ((Subscribe,), None),
        ((Fetch,), None),
        ((Subscribe, Fetch), 1),
    ],
    ids=["SUBSCRIBE_NAMESPACE", "SUBSCRIBE", "FETCH", "SUBSCRIBE of data"],
)
async def test_a_peer_that_does_not_answer(
    files: Files,
    certificates: Path,
    capsys: Out,
    ignored: tuple[type[object], ...],
    until: int | None,
) -> None:
    """Bounded by --deadline; incomplete, for nobody knows what it has."""
    origin = SilentOrigin(
        *ignored, ignores=lambda name: until is None or not name.startswith(b"manifest")
    )
    async with serving(certificates, files.identity, origin=origin, until=until) as (url, _, _):
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates), "--deadline", "0.6"))
        assert origin.asked.is_set()
    assert "deadline" in ended.complaint(4)
    assert ended.json["status"] == "incomplete"
    assert files.nothing_written()


@pytest.mark.parametrize("kind", [SubscribeNamespace, Subscribe, Fetch])
async def test_a_peer_that_does_not_admit_us(
    files: Files, certificates: Path, capsys: Out, kind: type[object]
) -> None:
    """Exit status 5, whichever request it refuses."""
    origin = RefusingOrigin(kind, RequestErrorCode.UNAUTHORIZED)
    async with serving(certificates, files.identity, origin=origin) as (url, _, _):
        words = files.subscribe(url, *ca(certificates), "--wait", "0.5")
        ended = await kvcs(capsys, *words)
    assert "refused access" in ended.complaint(5)
    assert ended.json["status"] == "unauthorised"
    assert files.nothing_written()


async def test_a_codec_that_nobody_knows(files: Files, certificates: Path, capsys: Out) -> None:
    """N6: the line names what is offered."""
    async with serving(certificates, files.identity) as (url, _, publication):
        rewrite_manifest(publication)
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates)))
    assert "k.zstd.s0" in ended.complaint(4)
    assert files.nothing_written()


def rewrite_manifest(publication: Publication) -> None:
    """Lets every manifest offer tracks of another codec."""
    for group in publication.tracks[0].groups.values():
        stored = group.objects[0]
        text = bytes(stored.read()).replace(b".raw.", b".zstd.")
        group.objects[0] = replace(stored, payload=text)


async def test_a_stopped_publication(files: Files, certificates: Path) -> None:
    """G7: what was received of it may not be used."""
    async with (
        serving(certificates, files.identity, until=1) as (url, _, publication),
        program(*files.subscribe(url, *ca(certificates))) as consumer,
    ):
        await consumer.until("layer   0 usable")
        publication.stop(RuntimeError("an error was found"))
        ended = await consumer.outcome()
    assert "nothing of it may be used" in ended.complaint(4)
    assert files.nothing_written()


async def test_a_publisher_that_vanishes(files: Files) -> None:
    """kill -9 in the middle of production: what is missing is told within the deadline."""
    ready = files.directory / "ready.json"
    listen = ["--listen", "127.0.0.1:0", "--ready-file", str(ready), "--live-rate", "0.2"]
    async with program("publish", files.cache, *files.key, *listen) as publisher:
        url = (await publisher.until("serving at ")).split()[-1]
        await publisher.until("publication ")
        trust = ["--ca", str(files.directory / "ca.pem"), "--deadline", "2"]
        async with program(*files.subscribe(url, *trust)) as consumer:
            await consumer.until("connected ")
            publisher.process.send_signal(signal.SIGKILL)
            ended = await consumer.outcome()
    ended.complaint(4)
    assert ended.json["status"] == "incomplete"
    assert files.nothing_written()


async def test_a_withdrawn_publication(files: Files, certificates: Path) -> None:
    """A publisher that ends in the middle of production leaves the rest missing, and says so at once."""
    async with (
        serving(certificates, files.identity, until=1) as (url, publisher, _),
        program(*files.subscribe(url, *ca(certificates))) as consumer,
    ):
        await consumer.until("layer   0 usable")
        await publisher.close(timeout=2)
        ended = await consumer.outcome()
    ended.complaint(4)
    assert [gap["layer"] for gap in ended.json["missing"]] == [1, 1, 2, 2]
    assert files.nothing_written()


async def test_another_alpn(files: Files, certificates: Path, capsys: Out) -> None:
    """A QUIC server that speaks something else."""

    def handler(connection: Connection) -> ConnectionHandler:
        return Recorder(connection)

    listener = await backend().listen(
        "127.0.0.1",
        0,
        alpn=["h3"],
        tls=server_tls(certificates),
        config=TransportConfig(),
        handler=handler,
    )
    try:
        url = f"moqt://127.0.0.1:{listener.address[1]}"
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates)))
    finally:
        listener.close()
        await listener.wait_closed()
    assert "moqt-22" in ended.complaint(1)
    assert ended.json["status"] == "error"
    assert files.nothing_written()


class Mover(moqt.Publisher):
    """Sends everybody on, each time to a URL of its own that nobody has seen."""

    url = ""
    sessions = 0

    def session_opened(self, driver: Driver) -> None:
        self.sessions += 1
        Session(driver).goaway(uri=f"{self.url}/{self.sessions}")


async def test_a_peer_that_sends_on_for_ever(files: Files, certificates: Path, capsys: Out) -> None:
    """GOAWAY is followed so many times, also without a deadline."""
    origin = Mover()
    async with await moqt.serve("127.0.0.1", 0, origin, tls=server_tls(certificates)) as server:
        origin.url = server.url
        ended = await kvcs(capsys, *files.subscribe(server.url, *ca(certificates)))
    assert ended.status
    assert origin.sessions == 1 + MAX_MOVES
    assert files.nothing_written()
