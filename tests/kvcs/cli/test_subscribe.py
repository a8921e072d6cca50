"""kvcs.cli.subscribe: caches that arrive, and what is told when they do not."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
from pathlib import Path

import pytest

from kvcs.cli.main import main
from kvcs.cli.subscribe import parse_layers
from kvcs.cli.verify import compare
from kvcs.errors import UsageError
from kvcs.formats.safetensors import KvFile
from kvcs.payload import Component
from tests.support.caches import fail_to_parse, names
from tests.support.cli import Files, Out, kvcs, program
from tests.support.peers import alter, overwritten, serving

REPORT = [
    "status",
    "publication",
    "source",
    "layers",
    "blocks",
    "bytes",
    "objects",
    "discarded",
    "recovered",
    "seconds",
    "first_layer_seconds",
    "missing",
    "error",
    "not_guaranteed",
]


def ca(certificates: Path) -> list[str]:
    return ["--ca", str(certificates / "ca.pem")]


@pytest.fixture
def free_port() -> int:
    """A UDP port that nobody answers on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize("components", ["k+v", "kv"])
async def test_a_cache_arrives(
    files: Files, certificates: Path, capsys: Out, components: str
) -> None:
    """C2, C5, C7: complete, identical, one JSON object on stdout, a line for each layer on stderr."""
    async with serving(certificates, files.identity, components=components) as (
        url,
        _,
        publication,
    ):
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates)))
    assert ended.status == 0
    report = ended.json
    assert list(report) == REPORT
    assert report["status"] == "complete"
    assert report["publication"] == publication.name.publication_id.hex()
    assert report["source"] == url
    assert (report["layers"], report["blocks"], report["bytes"]) == (3, 2, 3 * 2 * 128)
    assert report["objects"] == (12 if components == "k+v" else 6)
    assert (report["discarded"], report["recovered"]) == (0, 0)
    assert 0 < report["first_layer_seconds"] <= report["seconds"]
    assert (report["missing"], report["error"]) == ([], None)
    lines = ended.err.splitlines()
    assert lines[0] == f"connected to {url}"
    assert [line.split()[:3] for line in lines[1:]] == [
        ["layer", str(n), "usable"] for n in range(3)
    ]
    assert lines[-1].endswith(" s  0 to come")
    with KvFile(files.cache) as sent, KvFile(files.output) as received:
        assert compare(sent, received).identical
        assert received.token_ids() == list(range(8))
    assert names(files.output.parent) == ["output"]


async def test_people_get_a_summary(files: Files, certificates: Path, capsys: Out) -> None:
    async with serving(certificates, files.identity) as (url, _, _):
        args = [word for word in files.subscribe(url, *ca(certificates)) if word != "--json"]
        ended = await kvcs(capsys, *args)
    assert ended.status == 0
    assert f"{files.output}: 3 layers, 2 blocks, 0.8 kB in " in ended.out
    assert ended.out.count("\n") == 1
    assert "kvcs: notice: not guaranteed: confidentiality, integrity against relays, " in ended.err


async def test_parts(files: Files, certificates: Path, capsys: Out) -> None:
    """C6: a range of layers and the first blocks make a file whose metadata say that it is a part."""
    async with serving(certificates, files.identity) as (url, _, _):
        wanted = ["--layers", "1-2", "--blocks", "1"]
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates), *wanted))
    assert ended.status == 0
    assert (ended.json["layers"], ended.json["blocks"], ended.json["objects"]) == (2, 1, 4)
    with KvFile(files.output) as received, KvFile(files.cache) as sent:
        assert received.metadata["layers"] == "1-2"
        assert received.metadata["blocks"] == "0-0"
        assert compare(received, sent).different == ()


async def test_the_first_url_that_has_it(
    files: Files, certificates: Path, capsys: Out, free_port: int, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = Files.make(other, model="another/model")
    async with (
        serving(certificates, elsewhere.identity) as (without, _, _),
        serving(certificates, files.identity) as (url, _, _),
    ):
        urls = [f"moqt://127.0.0.1:{free_port}", without, url]
        ended = await kvcs(capsys, *files.subscribe(*urls, *ca(certificates), "--wait", "0"))
        assert ended.status == 0
        assert ended.json["source"] == url
        files.output.unlink()
        urls = urls[:2]
        ended = await kvcs(capsys, *files.subscribe(*urls, *ca(certificates), "--wait", "0"))
    line = ended.complaint(3)
    assert all(tried in line for tried in urls)


async def test_the_next_url_gives_what_the_first_could_not(
    files: Files, certificates: Path, capsys: Out
) -> None:
    """C8, C9: nothing of the first is kept, and the report is of the one that gave it all."""
    async with (
        serving(certificates, files.identity) as (first, _, damaged),
        serving(certificates, files.identity) as (second, _, whole),
    ):
        alter(damaged, Component.K, 1, 0, overwritten(100, b"other octets"))
        ended = await kvcs(capsys, *files.subscribe(first, second, *ca(certificates)))
        assert ended.status == 0
        assert ended.json["source"] == second
        assert ended.json["publication"] == whole.name.publication_id.hex()
        assert [line.split()[1] for line in ended.err.splitlines() if " usable " in line] == [
            "0",
            "1",
            "2",
        ]
        with KvFile(files.output) as received, KvFile(files.cache) as sent:
            assert compare(received, sent).identical
        files.output.unlink()
        ended = await kvcs(capsys, *files.subscribe(first, *ca(certificates)))
    assert "k.raw.s0 layer 1 block" in ended.complaint(4)
    assert files.nothing_written()


async def test_no_retrieval_over_http_yet(files: Files, capsys: Out) -> None:
    """C10 is for later: such a URL is refused before anything is asked, also behind one that can be used."""
    for urls in (["https://127.0.0.1"], ["moqt://127.0.0.1:1", "https://127.0.0.1"]):
        ended = await kvcs(capsys, *files.subscribe(*urls))
        assert "moqt://" in ended.complaint(2)
        assert files.nothing_written()


async def test_a_manifest_at_which_reading_fails_is_no_reason_to_stop(
    files: Files, certificates: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: in a way that nobody foresaw; the next URL is tried, and both are told of."""
    fail_to_parse(monkeypatch, ZeroDivisionError("odd"))
    async with (
        serving(certificates, files.identity) as (first, _, _),
        serving(certificates, files.identity) as (second, _, _),
    ):
        ended = await kvcs(capsys, *files.subscribe(first, second, *ca(certificates)))
    assert ended.status == 0
    assert ended.json["source"] == second
    assert "error: publication" in ended.err
    assert "(ZeroDivisionError: odd)" in ended.err
    assert f"{first}: manifest: reading it failed" in ended.err


async def test_a_peer_that_leaves_for_another_url_is_followed(
    files: Files, certificates: Path
) -> None:
    """GOAWAY with a URI: what is under way is let finish, and what it could not is had there."""
    async with (
        serving(certificates, files.identity) as (second, _, whole),
        serving(certificates, files.identity, until=1) as (first, publisher, _),
        program(*files.subscribe(first, *ca(certificates))) as consumer,
    ):
        await consumer.until("layer   0 usable")
        (server,) = publisher._servers
        server.goaway(uri=second)
        await server.close()
        ended = await consumer.outcome()
    assert ended.status == 0, ended.err
    assert ended.json["source"] == second
    assert ended.json["publication"] == whole.name.publication_id.hex()
    assert f"the peer leaves; going on at {second}" in ended.err
    assert not files.nothing_written()


async def test_not_found(files: Files, certificates: Path, capsys: Out, tmp_path: Path) -> None:
    """C1: exit status 3 once --wait is over, also when --deadline ends the waiting."""
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = Files.make(other, model="another/model")
    soon = ["--wait", "0.1"]
    async with serving(certificates, elsewhere.identity) as (url, _, _):
        for limit in (soon, ["--wait", "100", "--deadline", "0.5"], ["--no-probe", *soon]):
            ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates), *limit))
            ended.complaint(3)
            assert ended.json["status"] == "not_found"
            assert ended.json["publication"] is None
            assert ended.json["error"]
            assert files.nothing_written()


async def test_unreachable(files: Files, capsys: Out, free_port: int) -> None:
    ended = await kvcs(capsys, *files.subscribe(f"moqt://127.0.0.1:{free_port}", "--insecure"))
    assert f"127.0.0.1:{free_port}" in ended.complaint(1)
    assert "see that a publisher or relay listens" in ended.err
    assert ended.json["status"] == "error"
    assert files.nothing_written()


async def test_an_untrusted_certificate(files: Files, certificates: Path, capsys: Out) -> None:
    async with serving(certificates, files.identity) as (url, _, _):
        ended = await kvcs(capsys, *files.subscribe(url))
        assert "--ca FILE" in ended.complaint(1)
        assert ended.err.count("\n") == 1  # told once, and not by the QUIC library as well
        assert ended.json["status"] == "error"
        assert files.nothing_written()
        ended = await kvcs(capsys, *files.subscribe(url, "--insecure"))
    assert ended.status == 0
    assert "kvcs: warning: certificates are not checked" in ended.err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["https://127.0.0.1"],
        ["moqt://"],
        ["moqt://127.0.0.1:99999"],
        ["moqt://relay.example", "--insecure"],
        ["moqt://192.0.2.1", "moqt://127.0.0.1", "--insecure"],
        ["moqt://127.0.0.1", "--ca", "none"],
        ["moqt://127.0.0.1", "--ca", "cache"],
        ["moqt://127.0.0.1", "--ca", "cache", "--insecure"],
        ["moqt://127.0.0.1", "--layers", "2-1"],
        ["moqt://127.0.0.1", "--layers", "1-3"],
        ["moqt://127.0.0.1", "--layers", "x"],
        ["moqt://127.0.0.1", "--blocks", "0"],
        ["moqt://127.0.0.1", "--deadline", "0"],
        ["moqt://127.0.0.1", "--wait", "-1"],
        ["moqt://127.0.0.1", "--wait", "nan"],
        ["moqt://127.0.0.1", "--deadline", "inf"],
        ["moqt://127.0.0.1", "--output", "none/output"],
        ["moqt://127.0.0.1", "--output", "."],
        ["moqt://127.0.0.1", "--scope-key", "none"],
        ["moqt://127.0.0.1", "--scope-key", "short"],
        ["moqt://127.0.0.1", "--scope-key", "long"],
        ["moqt://127.0.0.1", "--tokens", "none"],
        ["moqt://127.0.0.1", "--tokens", "empty.json"],
        ["moqt://127.0.0.1", "--tokens", "few.json"],
        ["moqt://127.0.0.1", "--tokens", "strings.json"],
        ["moqt://127.0.0.1", "--descriptor", "none"],
        ["moqt://127.0.0.1", "--descriptor", "few.json"],
    ],
    ids=" ".join,
)
def test_bad_flags_and_files(files: Files, capsys: Out, args: list[str]) -> None:
    """Nothing is connected to: exit status 2 and one line."""
    Path("short").write_bytes(bytes(15))
    Path("long").write_bytes(bytes(65))
    Path("empty.json").write_text("[]", "utf-8")
    Path("few.json").write_text("[1, 2, 3]", "utf-8")
    Path("strings.json").write_text('["1"]', "utf-8")
    assert main(files.subscribe(*args)) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert told.err.startswith("kvcs: ")
    assert files.nothing_written()
    report = json.loads(told.out)
    assert list(report) == REPORT
    assert report["status"] == "error"
    assert told.err == f"kvcs: {report['error']}\n"


@pytest.mark.parametrize("words", [["--config", "none", "subscribe"], ["subscribe", "--frob"]])
def test_what_keeps_it_from_starting(capsys: Out, words: list[str]) -> None:
    """With --json it is an object on stdout too."""
    assert main([*words, "--json"]) == 2
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert list(report) == REPORT
    assert told.err == f"kvcs: {report['error']}\n"


@pytest.mark.parametrize("name", ["scope.key", "cache", "link"])
def test_nothing_that_is_read_is_replaced(files: Files, capsys: Out, name: str) -> None:
    """A key would be gone: it need not be anywhere else."""
    (files.directory / "link").symlink_to("scope.key")
    before = (files.directory / name).read_bytes()
    output = str(files.directory / name)
    assert main(files.subscribe("moqt://127.0.0.1", "--insecure", "--output", output)) == 2
    told = capsys.readouterr()
    assert "is read as well" in json.loads(told.out)["error"]
    assert (files.directory / name).read_bytes() == before


@pytest.mark.parametrize("function", ["pwrite", "fsync"])
async def test_a_disk_that_fails(
    files: Files, certificates: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """While it writes or at the end: the report does not say complete, and nothing is left."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(f"kvcs.formats.aside.os.{function}", fail)
    async with serving(certificates, files.identity) as (url, _, _):
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates)))
    assert "output: cannot write" in ended.complaint(2)
    assert "the disk fails" in ended.json["error"]
    assert ended.json["status"] == "error"
    assert files.nothing_written()


def test_dry_run(files: Files, capsys: Out) -> None:
    args = files.subscribe("moqt://relay.invalid", "--dry-run", "--layers", "0-1", "--blocks", "1")
    assert main(args) == 0
    told = capsys.readouterr()
    assert '"objects": 4' in told.out
    assert told.err == ""
    assert files.nothing_written()


def test_layers() -> None:
    assert parse_layers("0-3") == range(4)
    assert parse_layers("7") == range(7, 8)
    for wrong in ("", "-", "1-", "-1", "3-2", "a-b", "1-2-3", "1234567"):
        with pytest.raises(UsageError):
            parse_layers(wrong)


@pytest.mark.usefixtures("either_loop")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_interrupted(files: Files, certificates: Path, number: signal.Signals) -> None:
    """The retrieval is cancelled, nothing is left, exit status 130."""
    async with serving(certificates, files.identity, until=1) as (url, publisher, _):
        async with program(*files.subscribe(url, *ca(certificates))) as consumer:
            await consumer.until("layer   0 usable")
            consumer.process.send_signal(number)
            ended = await consumer.outcome()
        assert ended.complaint(130) == "kvcs: interrupted"
        assert ended.json["status"] == "incomplete"
        assert ended.json["layers"] == 1
        assert files.nothing_written()
        async with asyncio.timeout(5):
            await publisher.origin.wait_idle()


async def test_verbose_tells_no_secrets(files: Files, certificates: Path, capsys: Out) -> None:
    async with serving(certificates, files.identity) as (url, _, _):
        ended = await kvcs(capsys, *files.subscribe(url, *ca(certificates), "-vv"))
    assert ended.status == 0
    assert "kvcs: debug: " in ended.err
    assert bytes(range(32)).hex() not in ended.err + ended.out
