"""kvcs keygen --ring, publish --encrypt and subscribe --decrypt, end to end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kvcs.cli.main import main
from kvcs.key_ring import KeyRing, RingKey, load_keys, write_keys
from kvcs.publisher import Publisher
from kvcs.secure_objects import LEAST_KEY_ID, Suite
from moqt import ClientTls
from tests.kvcs.cli.test_relay import ca, identical, relaying
from tests.kvcs.cli.test_signatures import publishing
from tests.support.caches import SCOPE_KEY, names
from tests.support.cli import Files, Out, kvcs, program
from tests.support.peers import put_all, serving

RING = Path("ring.json")


@pytest.fixture
def ringed(files: Files, capsys: Out) -> Files:
    """The directory with a key ring, ring.json, and a producer's keys."""
    assert main(["keygen", "--ring", str(RING)]) == 0
    assert main(["keygen", "--output", "producer"]) == 0
    capsys.readouterr()
    return files


def secrets_in(text: str) -> bool:
    """Whether a key of ring.json stands in `text`."""
    listed = json.loads(RING.read_text("ascii"))["keys"]
    return any(jwk["k"] in text for jwk in listed)


def test_keygen_makes_a_ring_and_adds_to_it(files: Files, capsys: Out) -> None:
    """X3: for its owner only; the newest key is used, at once or later; older ones are retired when told."""
    assert main(["keygen", "--ring", str(RING)]) == 0
    (first,) = load_keys(RING)
    told = capsys.readouterr().out
    assert told.splitlines()[0].split() == ["kid", f"{first.key_id:x}"]
    assert "members of the scope only" in told
    assert not secrets_in(told)
    assert (first.suite, first.not_before) == (Suite.AES_128_GCM_SHA256_128, None)
    assert first.key_id >= LEAST_KEY_ID
    assert RING.stat().st_mode & 0o777 == 0o600

    more = ["--suite", "AES_256_GCM_SHA512_128", "--retire", "3600", "--json"]
    assert main(["keygen", "--ring", str(RING), *more]) == 0
    old, second = load_keys(RING)
    assert json.loads(capsys.readouterr().out) == {
        "kid": f"{second.key_id:x}",
        "suite": "AES_256_GCM_SHA512_128",
        "key_ring": "ring.json",
        "keys": 2,
    }
    assert (old.key_id, old.secret) == (first.key_id, first.secret)
    assert old.retire_after is not None
    assert abs(old.retire_after - time.time() - 3600) < 60
    assert KeyRing([old, second]).current == second

    assert main(["keygen", "--ring", str(RING), "--after", "600", "--retire", "9999"]) == 0
    old, second, third = load_keys(RING)
    assert third.not_before is not None
    assert abs(third.not_before - time.time() - 600) < 60
    assert old.retire_after < 9000 + time.time()  # type: ignore[operator]
    assert KeyRing([old, second, third]).current.key_id == second.key_id
    assert KeyRing([old, second, third], lambda: time.time() + 700).current == third


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--ring", "a", "--output", "b"],
        ["--ring", "none/ring"],
        ["--ring", "scope.key"],
        ["--ring", "new", "--suite", "AES"],
        ["--ring", "new", "--after", "1e30"],
    ],
)
def test_keygen_refuses(files: Files, capsys: Out, args: list[str]) -> None:
    """X3: exit status 2, one line, and nothing is written."""
    before = names(files.directory)
    assert main(["keygen", *args]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert names(files.directory) == before


async def test_encrypted_and_signed(ringed: Files, capsys: Out) -> None:
    """X3, M9: with both required nothing is left open; without the ring, or with another one, status 5."""
    protect = ["--encrypt", "ring.json", "--sign", "producer"]
    (key,) = load_keys(RING)
    write_keys(Path("other.json"), [replace(key, secret=bytes(32))])
    write_keys(Path("lacks.json"), [RingKey.generate(Suite(5))])
    write_keys(Path("retired.json"), [replace(key, retire_after=1), RingKey.generate(Suite(4))])
    async with publishing(ringed, *protect) as subscribe:
        trust = ["--decrypt", "ring.json", "--require-signature", "producer.pub"]
        ended = await kvcs(capsys, *subscribe, *trust)
        assert ended.status == 0, ended.err
        assert (ended.json["not_guaranteed"], ended.json["discarded"]) == ([], 0)
        assert identical(ringed)
        ringed.output.unlink()
        for ring, reason in {
            "other.json": f"does not open with key {key.key_id:x}",
            "lacks.json": f"protected with key {key.key_id:x}, which the key ring lacks",
            "retired.json": f"protected with key {key.key_id:x}, which is retired",
            None: "is encrypted: the key ring of its scope is needed",
        }.items():
            ended = await kvcs(capsys, *subscribe, *(["--decrypt", ring] if ring else []))
            assert reason in ended.complaint(5)
            assert ended.json["status"] == "conflict"
            assert ringed.nothing_written()
            assert not secrets_in(ended.err + ended.out)


async def test_not_encrypted(ringed: Files, certificates: Path, capsys: Out) -> None:
    """X3, X5: status 5 and nothing is written; one elsewhere that is encrypted is taken."""
    required = ["--decrypt", "ring.json", "--wait", "0"]
    keys = KeyRing.load(RING)
    async with (
        serving(certificates, ringed.identity) as (plain, _, _),
        serving(certificates, ringed.identity, key_ring=keys) as (sealed, _, _),
    ):
        trust = ["--ca", str(certificates / "ca.pem"), *required]
        ended = await kvcs(capsys, *ringed.subscribe(plain, *trust))
        assert "is not encrypted, as is required here" in ended.complaint(5)
        assert ringed.nothing_written()
        ended = await kvcs(capsys, *ringed.subscribe(plain, sealed, *trust))
        assert ended.status == 0, ended.err
        assert ended.json["source"] == sealed


BAD: dict[str, Callable[[], object]] = {
    "cannot read": lambda: RING.unlink(),
    "not JSON": lambda: RING.write_text("{", "ascii"),
    "a key is the scope key": lambda: write_keys(RING, [RingKey(LEAST_KEY_ID, SCOPE_KEY)]),
}


@pytest.mark.parametrize("reason", BAD)
async def test_rings_that_cannot_be_used(ringed: Files, capsys: Out, reason: str) -> None:
    """X3: status 2 before anything is opened."""
    BAD[reason]()
    place = ["--listen", "127.0.0.1:0"]
    ended = await kvcs(
        capsys, "publish", ringed.cache, *ringed.key, *place, "--encrypt", "ring.json"
    )
    assert reason in ended.complaint(2)
    ended = await kvcs(
        capsys, *ringed.subscribe("moqt://127.0.0.1:1", "--insecure", "--decrypt", "ring.json")
    )
    assert reason in ended.complaint(2)


async def test_a_publisher_without_a_usable_key(ringed: Files, capsys: Out) -> None:
    """X3: status 2."""
    (key,) = load_keys(RING)
    write_keys(RING, [replace(key, retire_after=1)])
    place = ["--listen", "127.0.0.1:0", "--encrypt", "ring.json"]
    ended = await kvcs(capsys, "publish", ringed.cache, *ringed.key, *place)
    assert "no key of it may be used now; add one" in ended.complaint(2)


def test_a_plan_counts_what_sealing_adds(ringed: Files, capsys: Out) -> None:
    """X3: a length of two octets and a tag of sixteen."""
    sizes = []
    for more in ([], ["--encrypt", "ring.json"]):
        assert main(["publish", ringed.cache, *ringed.key, "--dry-run", "--json", *more]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["object_bytes"])
    assert {k: v - sizes[0][k] for k, v in sizes[1].items()} == {"k": 18, "v": 18}


async def test_a_publisher_reads_its_ring_again(ringed: Files) -> None:
    """X3: at SIGHUP, as often as it comes; one that cannot be read changes nothing, and it goes on serving."""
    (old,) = load_keys(RING)
    place = ["--listen", "127.0.0.1:0", "--encrypt", "ring.json"]
    async with program("publish", ringed.cache, *ringed.key, *place) as publisher:
        await publisher.until(f"encrypted, current key {old.key_id:x} of 1")
        await publisher.until("all 3 layers are published")
        RING.write_text("{", "ascii")
        publisher.process.send_signal(signal.SIGHUP)
        line = await publisher.until("key ring: ring.json: JWK Set: not JSON")
        assert line.endswith("its keys stay as they were; SIGHUP again once that is put right")
        write_keys(RING, [old, RingKey(LEAST_KEY_ID, SCOPE_KEY)])
        publisher.process.send_signal(signal.SIGHUP)
        line = await publisher.until("key ring: ring.json: a key is the scope key")
        assert "its keys stay as they were" in line
        new = RingKey.generate(Suite(5))
        write_keys(RING, [old, new])
        publisher.process.send_signal(signal.SIGHUP)
        line = await publisher.until("key ring read again; ")
        assert line.endswith(f"current key {new.key_id:x} of 2")
        publisher.process.send_signal(signal.SIGINT)
        assert (await publisher.outcome()).status == 0


async def test_rotation_through_a_relay(ringed: Files, certificates: Path, capsys: Out) -> None:
    """X3, R4: the ring gets another key while a transfer runs, which goes on; once the old one is gone from the ring
    it opens nothing.
    """
    for path in certificates.glob("*.pem"):
        (ringed.directory / path.name).write_bytes(path.read_bytes())
    keys = KeyRing.load(RING)
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(relaying(ringed.directory, "a"))
        publisher = await stack.enter_async_context(Publisher())
        publication = publisher.publish(ringed.identity, key_ring=keys)
        put_all(publication, until=1)
        await publisher.announce(url, tls=ClientTls(ca_file=Path("ca.pem")))
        words = ringed.subscribe(url, *ca(ringed), "--decrypt", "ring.json")
        consumer = await stack.enter_async_context(program(*words))
        await consumer.until("layer   0 usable")
        assert main(["keygen", "--ring", str(RING)]) == 0
        capsys.readouterr()
        consumer.process.send_signal(signal.SIGHUP)
        await consumer.until("key ring read again; ")
        keys.reload()
        put_all(publication, start=1)
        ended = await consumer.outcome()
        assert ended.status == 0, ended.err
        assert (ended.json["status"], ended.json["discarded"]) == ("complete", 0)
        assert identical(ringed)
        ringed.output.unlink()
        write_keys(RING, load_keys(RING)[1:])
        ended = await kvcs(capsys, *words)
        assert "Objects were encrypted with keys that the key ring lacks" in ended.complaint(4)
        assert ended.json["discarded"] >= 4
        assert ringed.nothing_written()
