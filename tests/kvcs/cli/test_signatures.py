"""kvcs keygen, publish --sign and subscribe --require-signature, end to end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvcs.cli.main import main
from kvcs.cli.verify import compare
from kvcs.formats.safetensors import KvFile
from kvcs.keyfiles import load_private_key, load_public_keys
from kvcs.signing import Signer
from tests.kvcs.test_keyfiles import forms
from tests.support.caches import names
from tests.support.cli import Files, Out, kvcs, program
from tests.support.peers import serving

OTHER_FORMS = ["jwk", "jwk set", "cose", "cose set"]


def ca(certificates: Path) -> list[str]:
    return ["--ca", str(certificates / "ca.pem")]


@pytest.fixture
def keys(files: Files, capsys: Out) -> Files:
    """The directory with two producers' keys, producer and other."""
    for name, algorithm in (("producer", "EdDSA"), ("other", "es256")):
        assert main(["keygen", "--output", name, "--alg", algorithm]) == 0
    capsys.readouterr()
    return files


def test_keygen(files: Files, capsys: Out) -> None:
    """M8: a private key for its owner only and a public one; the kid is said."""
    assert main(["keygen", "--output", "key"]) == 0
    told = capsys.readouterr().out.splitlines()
    key = load_private_key(Path("key"))
    assert told[0].split() == ["kid", key.key_id.hex()]
    assert told[1].split() == ["algorithm", "EdDSA"]
    assert load_public_keys([Path("key.pub")]) == [key.public]
    assert Path("key").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in "".join(told)
    assert main(["keygen", "--output", "second", "--alg", "ES256", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "kid": load_private_key(Path("second")).key_id.hex(),
        "algorithm": "ES256",
        "private_key": "second",
        "public_key": "second.pub",
    }


@pytest.mark.parametrize(
    "args", [["--output", "key"], ["--output", "none/key"], ["--output", "new", "--alg", "RS256"]]
)
def test_keygen_refuses(files: Files, capsys: Out, args: list[str]) -> None:
    """M8: an existing key, among others: exit status 2 and one line."""
    Path("key").write_text("mine")
    before = names(files.directory)
    assert main(["keygen", *args]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert names(files.directory) == before


@asynccontextmanager
async def publishing(files: Files, *args: str) -> AsyncIterator[list[str]]:
    """`kvcs publish` in a process of its own; the words of a subscriber that finds it."""
    place = ["--listen", "127.0.0.1:0", "--ready-file", "ready.json"]
    async with program("publish", files.cache, *files.key, *place, *args) as publisher:
        await publisher.until("publication ")
        ready = json.loads(Path("ready.json").read_text("utf-8"))
        yield files.subscribe(ready["url"], "--ca", ready["ca"], "--wait", "0")


async def test_signed_and_required(keys: Files, capsys: Out) -> None:
    """M8, M9: several keys may be trusted; a wrong one is status 5 and leaves nothing."""
    async with publishing(keys, "--sign", "producer", "--live-rate", "50") as subscribe:
        trusted = ["--require-signature", "other.pub", "--require-signature", "producer.pub"]
        ended = await kvcs(capsys, *subscribe, *trusted)
        assert ended.status == 0, ended.err
        assert ended.json["status"] == "complete"
        assert ended.json["not_guaranteed"] == ["confidentiality"]
        with KvFile(keys.cache) as sent, KvFile(keys.output) as received:
            assert compare(sent, received).identical
        keys.output.unlink()
        ended = await kvcs(capsys, *subscribe, "--require-signature", "other.pub")
        assert "which is not trusted" in ended.complaint(5)
        assert ended.json["status"] == "conflict"
        assert ended.json["publication"] is None
        assert keys.nothing_written()
        assert (await kvcs(capsys, *subscribe)).status == 0


@pytest.mark.parametrize("form", OTHER_FORMS)
async def test_other_forms_of_keys(files: Files, capsys: Out, form: str) -> None:
    """M8: JWK and COSE_Key, alone and in sets, with their own kid."""
    Path("private").write_bytes(forms("es256", "private")[form])
    Path("public").write_bytes(forms("es256", "public")[form])
    async with publishing(files, "--sign", "private") as subscribe:
        ended = await kvcs(capsys, *subscribe, "--require-signature", "public")
        assert ended.status == 0, ended.err


async def test_unsigned_and_required(keys: Files, certificates: Path, capsys: Out) -> None:
    """M9, C3: there is one, but it is not signed: status 5; where nobody publishes any it stays 3."""
    required = ["--require-signature", "producer.pub", "--wait", "0"]
    async with serving(certificates, keys.identity) as (url, publisher, publication):
        subscribe = keys.subscribe(url, *ca(certificates), *required)
        ended = await kvcs(capsys, *subscribe)
        assert "has no manifest.cose: it is not signed" in ended.complaint(5)
        assert keys.nothing_written()
        publisher.withdraw(publication)
        (await kvcs(capsys, *subscribe)).complaint(3)


async def test_the_peer_that_has_a_signed_one(keys: Files, certificates: Path, capsys: Out) -> None:
    """M9, C9: an unsigned one elsewhere is passed over."""
    signer = Signer(load_private_key(Path("producer")))
    async with (
        serving(certificates, keys.identity) as (unsigned, _, _),
        serving(certificates, keys.identity, signer=signer) as (signed, _, _),
    ):
        required = ["--require-signature", "producer.pub", "--wait", "0"]
        subscribe = keys.subscribe(unsigned, signed, *ca(certificates), *required)
        ended = await kvcs(capsys, *subscribe)
        assert ended.status == 0, ended.err
        assert ended.json["source"] == signed


@pytest.mark.parametrize(
    "args",
    [
        ["--require-signature", "none"],
        ["--require-signature", "producer"],
        ["--require-signature", "cache"],
        ["--require-signature", "producer.pub", "--require-signature", "same-kid"],
    ],
    ids=" ".join,
)
def test_bad_public_keys(keys: Files, capsys: Out, args: list[str]) -> None:
    """M8: exit status 2, before anything is connected to."""
    kid = load_private_key(Path("producer")).key_id
    cose = forms("es256", "public")["cose"].replace(b"\x4cprod-es256-1", b"\x48" + kid)
    Path("same-kid").write_bytes(cose)
    assert main(keys.subscribe("moqt://127.0.0.1:1", "--insecure", *args)) == 2
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert report["status"] == "error"
    assert told.err.splitlines()[-1] == f"kvcs: {report['error']}"


@pytest.mark.parametrize("key", ["none", "producer.pub", "cache", "empty"])
def test_bad_private_keys(keys: Files, capsys: Out, key: str) -> None:
    """M8: likewise."""
    Path("empty").write_bytes(b"")
    args = ["publish", keys.cache, *keys.key, "--listen", "127.0.0.1:0", "--sign", key]
    assert main(args) == 2
    assert capsys.readouterr().err.startswith("kvcs: ")


def test_dry_runs_tell_the_track(keys: Files, capsys: Out) -> None:
    """M1: manifest.cose takes the place of manifest."""
    publish = ["publish", keys.cache, *keys.key, "--dry-run", "--json"]
    subscribe = keys.subscribe("moqt://relay.invalid", "--dry-run")
    for words, flags in (
        (publish, ["--sign", "producer"]),
        (subscribe, ["--require-signature", "producer.pub"]),
    ):
        for more, track in ((flags, "manifest.cose"), ([], "manifest")):
            assert main([*words, *more]) == 0
            assert json.loads(capsys.readouterr().out)["tracks"][0] == track
