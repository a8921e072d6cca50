"""kvcs.cli.publish: what is offered, for how long, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from kvcs.cli.main import main
from kvcs.cli.verify import compare
from kvcs.formats.safetensors import KvFile
from moqt import serve
from tests.support.caches import (
    SCOPE_KEY,
    descriptor_json,
    names,
    raw_safetensors,
    write_cache,
)
from tests.support.cli import Files, Out, kvcs, program
from tests.support.peers import AcceptingOrigin
from tests.support.quic import server_tls

LISTEN = ["--listen", "127.0.0.1:0"]


def publish(files: Files, *args: str, cache: str | None = None) -> list[str]:
    return ["publish", files.cache if cache is None else cache, *files.key, *args]


@pytest.mark.usefixtures("either_loop")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_until_a_signal(files: Files, number: signal.Signals, capsys: Out) -> None:
    """The ready file tells where; a subscriber gets everything; then withdrawal and exit status 0."""
    ready = files.directory / "here" / "ready.json"
    ready.parent.mkdir()
    args = publish(files, *LISTEN, "--ready-file", str(ready), "--json", "--live-rate", "100")
    async with program(*args) as publisher:
        await publisher.until("publication ")
        told = json.loads(ready.read_text("utf-8"))
        assert list(told) == ["url", "ca", "namespace", "publication"]
        assert told["url"].startswith("moqt://127.0.0.1:")
        assert told["ca"] == str(ready.parent / "ca.pem")
        assert told["namespace"][0] == b"kvcs-1".hex()
        assert told["namespace"][1] == files.identity.scope_id.hex()
        assert told["namespace"][-1] == told["publication"]
        assert names(ready.parent) == ["ca.pem", "ready.json"]
        received = await kvcs(capsys, *files.subscribe(told["url"], "--ca", told["ca"]))
        assert received.status == 0
        assert received.json["publication"] == told["publication"]
        publisher.process.send_signal(number)
        ended = await publisher.outcome()
    assert ended.status == 0
    assert ended.json["status"] == "complete"
    assert ended.json["publication"] == told["publication"]
    assert ended.json["source"] == told["url"]
    assert (ended.json["layers"], ended.json["blocks"], ended.json["objects"]) == (3, 2, 12)
    with KvFile(files.cache) as sent, KvFile(files.output) as copy:
        assert compare(sent, copy).identical


async def test_every_start_is_another_publication(files: Files, capsys: Out) -> None:
    """N2: the Publication ID is random; --linger ends it by itself; the CA is gone with its directory."""
    seen = set()
    for _ in range(2):
        ended = await kvcs(capsys, *publish(files, *LISTEN, "--linger", "0", "--json"))
        assert ended.status == 0
        seen.add(ended.json["publication"])
        (ca,) = (line for line in ended.err.splitlines() if line.startswith("throw-away CA"))
        assert not Path(ca.split(": ")[1]).exists()
    assert len(seen) == 2


async def test_notices(files: Files, capsys: Out) -> None:
    """X1, P2: the last tokens are left out where they fill no block; sizes out of the advised range are told."""
    ragged = str(write_cache(files.directory / "ragged", files.descriptor, 10))
    ended = await kvcs(capsys, *publish(files, "--dry-run", cache=ragged))
    assert ended.status == 0
    assert "the last 2 of 10 tokens do not fill a block" in ended.err
    assert "kvcs: warning: objects of 64 octets" in ended.err
    Path("some.json").write_text("[0, 1, 2, 3]", "utf-8")
    ended = await kvcs(capsys, *publish(files, "--dry-run", "--json", "--tokens", "some.json"))
    assert "tokens are known for 1 of 2 blocks" in ended.err
    assert ended.json["blocks"] == 1


def test_dry_run(files: Files, capsys: Out) -> None:
    """The same identifiers as `kvcs keys`, and no secrets."""
    assert main(publish(files, "--dry-run", "--json", "--components", "kv")) == 0
    told = capsys.readouterr()
    shown = json.loads(told.out)
    prompt = ["--descriptor", files.cache, "--tokens", files.cache]
    assert main(["keys", *files.key, *prompt, "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)
    for name in ("scope_id", "compatibility_id", "anchor_key", "namespace_prefix"):
        assert shown[name] == keys[name]
    assert shown["tracks"] == ["manifest", "kv.raw.s0"]
    assert (shown["layers"], shown["blocks"], shown["objects"]) == (3, 2, 6)
    assert shown["object_bytes"] == {"kv": 68 + 128}
    assert shown["bytes"] == 6 * 196
    assert main(publish(files, "--dry-run", "--live-rate", "6", *LISTEN)) == 0
    text = capsys.readouterr()
    assert "production: 0.5" in text.out
    assert SCOPE_KEY.hex() not in text.out + text.err + told.out + told.err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--listen", "x:y"],
        ["--listen", "127.0.0.1:65536"],
        ["--listen", "::1"],
        ["--listen", "0.0.0.0:0"],
        ["--listen", ":0"],
        ["--listen", "192.0.2.1:0"],
        ["--listen", "127.0.0.1:0", "--cert", "cert.pem"],
        ["--listen", "127.0.0.1:0", "--cert", "none", "--key", "none"],
        ["--listen", "127.0.0.1:0", "--cert", "cache", "--key", "cache"],
        ["--relay", "moqt://127.0.0.1", "--cert", "c", "--key", "k"],
        ["--relay", "moqt://192.0.2.1", "--insecure"],
        ["--relay", "http://127.0.0.1"],
        ["--listen", "127.0.0.1:0", "--live-rate", "0"],
        ["--listen", "127.0.0.1:0", "--linger", "-1"],
        ["--listen", "127.0.0.1:0", "--components", "q"],
        ["--listen", "127.0.0.1:0", "--ready-file", "none/ready"],
        ["--listen", "127.0.0.1:0", "--ready-file", "."],
    ],
    ids=" ".join,
)
def test_bad_flags(files: Files, capsys: Out, args: list[str]) -> None:
    assert main(publish(files, *args)) == 2
    told = capsys.readouterr()
    faults = [line for line in told.err.splitlines() if line.startswith("kvcs: ")]
    assert [line for line in faults if "warning" not in line] == faults[-1:]
    assert told.out == ""


FILES = {
    "dtype": {"dtype": "f16"},
    "heads": {"kv_heads": 4},
    "dimensions": {"head_dim": 8},
    "layers": {"layers": 4},
    "blocks": {"block_tokens": 8},
    "model": {"model": "another/model"},
}


@pytest.mark.parametrize("changes", FILES.values(), ids=FILES.keys())
def test_a_file_that_disagrees_with_the_descriptor(
    files: Files, capsys: Out, changes: dict[str, object]
) -> None:
    Path("other.json").write_text(json.dumps(descriptor_json(**changes)), "utf-8")
    assert main(publish(files, *LISTEN, "--descriptor", "other.json")) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "descriptor" in told.err


def test_files_that_cannot_be_published(files: Files, capsys: Out) -> None:
    """Truncated, other safetensors, no safetensors, tokens that do not fit, less than a block, bad keys."""
    whole = Path(files.cache).read_bytes()
    Path("cut").write_bytes(whole[:-1])
    Path("header").write_bytes(whole[:100])
    Path("empty").write_bytes(b"")
    raw_safetensors(
        Path("model"), {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)
    )
    write_cache(Path("small"), files.descriptor, 3)
    write_cache(Path("bare"), files.descriptor, 8, token_ids=False)
    Path("none.json").write_text("[]", "utf-8")
    Path("few.json").write_text("[0, 1, 2]", "utf-8")
    Path("others.json").write_text("[0, 1, 2, 4, 4, 5, 6, 7]", "utf-8")
    Path("short.key").write_bytes(bytes(15))
    for cache in ("cut", "header", "empty", "model", "small", "bare", "scope.key", "missing", "."):
        assert main(publish(files, *LISTEN, cache=cache)) == 2
        assert capsys.readouterr().err.count("\n") == 1
    for flags in (
        ["--tokens", "none.json"],
        ["--tokens", "few.json"],
        ["--tokens", "others.json"],
        ["--tokens", "bare"],
        ["--scope-key", "short.key"],
        ["--descriptor", "few.json"],
    ):
        assert main(publish(files, *LISTEN, *flags, "--json")) == 2
        told = capsys.readouterr()
        assert told.err == f"kvcs: {json.loads(told.out)['error']}\n"


@pytest.mark.parametrize("how", ["truncated", "changed", "touched"])
async def test_a_source_that_changes(files: Files, how: str) -> None:
    """G7: the publication is stopped with one line; a subscriber may use nothing of it."""
    args = publish(files, *LISTEN, "--ready-file", "ready.json", "--live-rate", "0.7", "--json")
    async with program(*args) as publisher:
        url = (await publisher.until("serving at ")).split()[-1]
        await publisher.until("publication ")
        async with program(*files.subscribe(url, "--ca", "ca.pem")) as consumer:
            await consumer.until("layer   0 usable")
            if how == "truncated":
                os.truncate(files.cache, 1000)
            elif how == "changed":
                with Path(files.cache).open("r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    file.write(b"\xff")
            else:
                os.utime(files.cache)
            stopped = await publisher.outcome()
            received = await consumer.outcome()
    assert files.cache in stopped.complaint(1)
    assert stopped.json["status"] == "error"
    received.complaint(4)
    assert files.nothing_written()


async def test_an_address_that_is_taken(files: Files, certificates: Path, capsys: Out) -> None:
    server = await serve("127.0.0.1", 0, AcceptingOrigin(), tls=server_tls(certificates))
    async with server:
        where = f"127.0.0.1:{server.address[1]}"
        ended = await kvcs(capsys, *publish(files, "--listen", where, "--json"))
    assert where in ended.complaint(1)
    assert ended.json["status"] == "error"


@pytest.mark.usefixtures("either_loop")
async def test_a_second_signal_ends_it_at_once(files: Files) -> None:
    """Though a subscriber that says nothing more has five seconds to finish."""
    ready = files.directory / "ready.json"
    args = publish(files, *LISTEN, "--ready-file", str(ready), "--live-rate", "1")
    async with program(*args) as publisher:
        await publisher.until("publication ")
        told = json.loads(ready.read_text("utf-8"))
        async with program(*files.subscribe(told["url"], "--ca", told["ca"])) as consumer:
            await consumer.until("layer ")
            consumer.process.send_signal(signal.SIGSTOP)
            publisher.process.send_signal(signal.SIGINT)
            await publisher.until("withdrawing; ")
            publisher.process.send_signal(signal.SIGINT)
            ended = await publisher.outcome()
    assert ended.complaint(130) == "kvcs: interrupted"


async def test_own_certificates(files: Files, certificates: Path, capsys: Out) -> None:
    pair = [
        "--cert",
        str(certificates / "server.pem"),
        "--key",
        str(certificates / "server-key.pem"),
    ]
    async with program(*publish(files, *LISTEN, *pair)) as publisher:
        url = (await publisher.until("serving at ")).split()[-1]
        ca = ["--ca", str(certificates / "ca.pem")]
        received = await kvcs(capsys, *files.subscribe(url, *ca))
        publisher.process.send_signal(signal.SIGINT)
        ended = await publisher.outcome()
    assert (received.status, ended.status) == (0, 0)
    assert "throw-away" not in ended.err
    wrong = ["--cert", str(certificates / "server.pem"), "--key", str(certificates / "ca-key.pem")]
    ended = await kvcs(capsys, *publish(files, *LISTEN, *wrong))
    ended.complaint(2)


async def test_a_relay(files: Files, certificates: Path) -> None:
    """P1: PUBLISH_NAMESPACE with the five fields; the ready file names the relay."""
    origin = AcceptingOrigin()
    server = await serve("127.0.0.1", 0, origin, tls=server_tls(certificates))
    async with server:
        relay = ["--relay", server.url, "--ca", str(certificates / "ca.pem")]
        async with program(*publish(files, *relay, "--ready-file", "ready.json")) as publisher:
            await publisher.until("publication ")
            told = json.loads(Path("ready.json").read_text("utf-8"))
            assert told["url"] == server.url
            assert [[field.hex() for field in name] for name in origin.offered] == [
                told["namespace"]
            ]
            publisher.process.send_signal(signal.SIGTERM)
            ended = await publisher.outcome()
    assert ended.status == 0


async def test_a_relay_that_refuses(files: Files, certificates: Path, capsys: Out) -> None:
    from moqt import Publisher as NoRelay

    server = await serve("127.0.0.1", 0, NoRelay(), tls=server_tls(certificates))
    async with server:
        relay = ["--relay", server.url, "--ca", str(certificates / "ca.pem")]
        ended = await kvcs(capsys, *publish(files, *relay))
        assert f"{server.url} did not take the publication" in ended.complaint(1)
        ended = await kvcs(capsys, *publish(files, "--relay", server.url))
    assert "--ca FILE" in ended.complaint(1)
