"""Each promise of SECURITY.md, shown from outside: what somebody tries, and what it comes to."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvcs import track_retrieval
from kvcs.cli.main import main
from kvcs.cose import payload_of_cose
from kvcs.errors import KvcsError
from kvcs.key_ring import KeyRing
from kvcs.kvsp.identity import Identity
from kvcs.naming import scope_prefix
from kvcs.payload import DiscardReason
from kvcs.producer_keys import Algorithm, generate
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.report import Guarantee
from kvcs.retrieval import Options, Retrieval
from kvcs.signing import Signer, TrustedKeys
from moqt import ClientTls, Location, connect
from moqt.auth import Action, Query, Refusal
from moqt.errors import ConnectError
from tests.hostile.behaviours import ForgeManifest, Withhold, with_data_of
from tests.hostile.relay import Ask, Behaviour, HostileRelay, Item
from tests.hostile.test_hostile import CASES, check, hostile
from tests.kvcs.access.test_policy import NAMES, OTHER, policy
from tests.moqt.quic.test_aioquic_clients import client_tls, listening, refused, server_tls
from tests.support.cli import Files
from tests.support.rings import A, B, ring, ring_key
from tests.support.tokens import NOW, SCOPE, as_token, make
from tests.support.world import PATIENCE, Cache, Target, World, small, world

CACHE = Cache(small(), 12)
PRODUCER = generate(Algorithm.EDDSA)
SIGNER, TRUSTED = Signer(PRODUCER), TrustedKeys([PRODUCER.public])


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_retrieval, "FILL_WAIT", 0.05)
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.05)


class FlipBit(Behaviour):
    """One bit of one Object of each data track is another."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        found = list(items)
        if ask.is_manifest:
            return found
        return [
            replace(i, payload=i.payload[:-1] + bytes((i.payload[-1] ^ 1,)))
            if i.location == (1, 1)
            else i
            for i in found
        ]


class Twice(Behaviour):
    """One Object of each data track comes again at the end, with other Data and a digest that fits."""

    def streams(self, ask: Ask, streams: list[Sequence[Item]]) -> list[Sequence[Item]]:
        found = {item.location: item for stream in streams for item in stream}
        if ask.is_manifest or not {(0, 1), (1, 1)} <= found.keys():
            return streams
        return [*streams, [with_data_of(found[Location(0, 1)], found[Location(1, 1)])]]


def in_production(*members: str) -> Behaviour:
    """The producer's own signed manifest, of a segment that is not complete, without some members."""

    def change(octets: bytes) -> bytes:
        document = json.loads(payload_of_cose(octets))
        for segment in document["segments"]:
            segment["complete"] = False
            for name in members:
                del segment[name]
        return SIGNER.sign(json.dumps(document).encode())

    return ForgeManifest(change)


@asynccontextmanager
async def relayed(*behaviours: Behaviour) -> AsyncIterator[World]:
    """A publisher behind a relay with these behaviours."""
    publisher = Publisher()
    publisher.origin = HostileRelay(*behaviours)
    async with world(publisher=publisher) as joined:
        yield joined


def put(joined: World, cache: Cache = CACHE, **options: object) -> Publication:
    publication = joined.publisher.publish(cache.identity, **options)  # type: ignore[arg-type]
    cache.put(publication.segments[0])
    publication.end()
    return publication


async def retrieve(
    joined: World,
    target: Target,
    *,
    signed_by: TrustedKeys | None = None,
    key_ring: KeyRing | None = None,
) -> Retrieval:
    """A retrieval that is over, however it ended."""
    consumer = await joined.consumer()
    options = Options(wait=0.0, signed_by=signed_by, key_ring=key_ring)
    retrieval = consumer.retrieve(target.cache.identity, target.sink, options)
    async with asyncio.timeout(PATIENCE):
        try:
            await retrieval.finish()
        except KvcsError as error:
            assert retrieval.report.error == str(error)
    return retrieval


# Promised


async def test_an_altered_object_is_missing_not_used() -> None:
    """S1: one bit in one Object: that place is reported and counts for nothing; all others are right."""
    async with relayed(FlipBit()) as joined:
        put(joined)
        target = Target(CACHE)
        report = (await retrieve(joined, target)).report
    assert report.status == "incomplete"
    assert [(gap.track, gap.layer, gap.blocks) for gap in report.missing] == [
        ("k.raw.s0", 1, ((1, 1),)),
        ("v.raw.s0", 1, ((1, 1),)),
    ]
    assert report.layers == 1
    assert report.discarded >= 2


@pytest.mark.parametrize(
    ("unlisted", "trusted", "layers", "missing"),
    [
        ((), None, 3, None),
        (("object_digests",), None, 3, ((1, 1),)),
        (("object_digests",), TRUSTED, 0, ((0, 2),)),
    ],
    ids=["listed", "not listed", "not listed and a signature required"],
)
async def test_of_two_payloads_for_one_place_the_manifest_decides(
    unlisted: tuple[str, ...],
    trusted: TrustedKeys | None,
    layers: int,
    missing: tuple[tuple[int, int], ...] | None,
) -> None:
    """S1: where it lists none the place is missing. A layer that was handed over before that stays so; where a
    signature is required none is.
    """
    withhold = Withhold(lambda location: location.group == 3)
    async with relayed(Twice(), withhold, in_production(*unlisted)) as joined:
        put(joined, signer=SIGNER)
        target = Target(CACHE)
        report = (await retrieve(joined, target, signed_by=trusted)).report
    assert report.status == "incomplete"
    assert report.discarded_by_reason == {DiscardReason.CONFLICT: 2}
    assert report.layers == layers
    gaps = {gap.track: gap.blocks for gap in report.missing if gap.layer == 0}
    assert gaps == (dict.fromkeys(("k.raw.s0", "v.raw.s0"), missing) if missing else {})
    if layers:
        assert target.k[0].tobytes() == CACHE.k[0]


async def test_a_file_that_is_not_whole_is_not_there(tmp_path: Path) -> None:
    """S1: nothing is written under the output's name, or any other, by a retrieval that found nothing."""
    files = Files.make(tmp_path)
    words = files.subscribe("moqt://127.0.0.1:1", "--insecure", "--deadline", "5")
    assert await asyncio.to_thread(main, words) == 1
    assert files.nothing_written()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda o: o.replace(b"test/model", b"test/mxdel"), "Compatibility ID"),
        (lambda o: re.sub(rb'"block_keys":\["..', b'"block_keys":["00', o), "block_keys"),
    ],
    ids=["another model", "another prompt"],
)
async def test_another_cache_is_not_accepted(change: Callable[[bytes], bytes], reason: str) -> None:
    """S2: under the right name, with the right sizes."""
    async with relayed(ForgeManifest(change)) as joined:
        put(joined)
        target = Target(CACHE)
        report = (await retrieve(joined, target)).report
    assert (report.status, report.objects) == ("conflict", 0)
    assert reason in (report.error or "")


@pytest.mark.parametrize("signer", [None, Signer(generate(Algorithm.EDDSA))])
async def test_another_members_cache_is_not_used(signer: Signer | None) -> None:
    """S3: not signed, or signed with a key of their own, where the producer's is required."""
    poisoned = Cache(small(), 12, seed=9)
    async with relayed() as joined:
        put(joined, poisoned, signer=signer)
        report = (await retrieve(joined, Target(CACHE), signed_by=TRUSTED)).report
    assert (report.status, report.objects, report.publication) == ("conflict", 0, None)


def test_tokens_reach_no_other_scope_and_no_other_time() -> None:
    """S4: neither a request nor a list; an expired one opens nothing; without one nothing goes at all."""

    def asks(scope: bytes, action: Action, token: bytes | None, now: float = NOW) -> bool:
        is_list = action is Action.SUBSCRIBE_NAMESPACE
        query = Query(
            action=action,
            namespace=scope_prefix(scope) if is_list else NAMES[scope],
            track=None if is_list else b"t",
            tokens=() if token is None else (as_token(token),),
        )
        return not isinstance(policy(now=now).decide(query), Refusal)

    token = make()
    for action in (Action.SUBSCRIBE, Action.FETCH, Action.SUBSCRIBE_NAMESPACE):
        assert asks(SCOPE, action, token)
        assert not asks(OTHER, action, token)
        assert not asks(SCOPE, action, None)
        assert not asks(SCOPE, action, token[:-1] + bytes((token[-1] ^ 1,)))
        assert not asks(SCOPE, action, token, now=NOW + 10 * 365 * 86400)


async def test_who_has_no_certificate_stays_out(certificates: Path) -> None:
    """S5: where a server asks for one."""
    async with await listening(server_tls(certificates, certificates)) as server:
        assert "certificate" in await refused(server.url, client_tls(certificates, None))


@pytest.mark.parametrize("name", ["announces huge Objects", "announces huge manifests"])
async def test_what_peers_announce_takes_no_memory(name: str) -> None:
    """S6: 2^62 octets are announced; the bound is that of the hostile relay's tests."""
    case = CASES[name]
    async with hostile(case, live=False, signed=True) as run:
        check(await run(), case, case.signed)


@pytest.mark.parametrize(
    "words",
    [
        ["subscribe", "moqt://192.0.2.1", "--insecure"],
        ["publish", "--relay", "moqt://192.0.2.1", "--insecure"],
        ["publish", "--listen", "192.0.2.1"],
        ["relay", "--listen", "192.0.2.1"],
        ["relay", "--listen", "127.0.0.1:0", "--upstream", "moqt://192.0.2.1", "--insecure"],
    ],
)
def test_insecure_goes_no_further_than_loopback(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S7: refused before anything is sent."""
    files = Files.make(tmp_path)
    name, *flags = words
    rest = {
        "subscribe": files.subscribe()[1:],
        "publish": [files.cache, *files.key],
        "relay": [],
    }[name]
    assert main([name, *rest, *flags]) == 2
    assert re.search("loopback", capsys.readouterr().err)


async def test_certificates_are_checked_by_default(certificates: Path) -> None:
    """S7: a server that only a throw-away CA vouches for is not spoken to."""
    async with await listening(server_tls(certificates, None)) as server:
        with pytest.raises(ConnectError) as caught:
            await connect(server.url, tls=ClientTls())
        assert caught.value.kind == "tls"


def test_names_have_nothing_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S8: the same prompt under two scope keys; and the key is in nothing that is printed."""
    files = Files.make(tmp_path)
    other = Identity.derive(bytes(32), files.descriptor, list(range(8)))
    mine, theirs = ({i.scope_id, i.compat_id, *i.block_keys} for i in (files.identity, other))
    assert not mine & theirs
    key = (files.directory / "scope.key").read_bytes()
    prompt = ["--descriptor", files.cache, "--tokens", files.cache]
    assert main(["keys", *files.key, *prompt, "--json"]) == 0
    assert main(["publish", files.cache, *files.key, "--dry-run", "--json"]) == 0
    told = capsys.readouterr()
    assert key.hex() not in told.out + told.err
    assert repr(key)[2:-1] not in told.out + told.err


async def test_the_report_says_what_is_left_open() -> None:
    """S9: nothing required; a signature; encryption; both."""
    keys = ring(A)
    async with relayed() as joined:
        put(joined, signer=SIGNER)
        bare = (await retrieve(joined, Target(CACHE))).report
        signed = (await retrieve(joined, Target(CACHE), signed_by=TRUSTED)).report
    async with relayed() as joined:
        put(joined, signer=SIGNER, key_ring=keys)
        sealed = (await retrieve(joined, Target(CACHE), key_ring=keys)).report
        both = (await retrieve(joined, Target(CACHE), key_ring=keys, signed_by=TRUSTED)).report
    assert {r.status for r in (bare, signed, sealed, both)} == {"complete"}
    assert bare.not_guaranteed == tuple(Guarantee)
    assert signed.not_guaranteed == (Guarantee.CONFIDENTIALITY,)
    assert sealed.not_guaranteed == (Guarantee.AUTHENTICITY,)
    assert both.not_guaranteed == ()


# What encryption gives


async def test_relays_can_neither_read_nor_alter() -> None:
    """S10: no Data, header or manifest is in what passes; what is altered does not open."""
    keys = ring(A)
    async with relayed(FlipBit()) as joined:
        publication = put(joined, key_ring=keys)
        passed = [
            bytes(o.read())
            for t in publication.tracks
            for g in t.groups.values()
            for o in g.objects
        ]
        report = (await retrieve(joined, Target(CACHE), key_ring=keys)).report
    assert len(passed) > 24
    for known in (b"KVO1", b"kvcs", b"segments", CACHE.k[0][:16], CACHE.v[3][-16:]):
        assert not [octets for octets in passed if known in octets]
    assert {(gap.layer, gap.blocks) for gap in report.missing} == {(1, ((1, 1),))}


async def test_what_is_not_encrypted_is_not_used() -> None:
    """S10: once a key ring is given."""
    async with relayed() as joined:
        put(joined)
        report = (await retrieve(joined, Target(CACHE), key_ring=ring(A))).report
    assert (report.status, report.objects) == ("conflict", 0)


async def test_members_need_signatures_against_each_other() -> None:
    """S11: a member's own cache is believed with encryption alone, and not where signatures are required."""
    keys, poisoned = ring(A), Cache(small(), 12, seed=9)
    async with relayed() as joined:
        put(joined, poisoned, key_ring=keys)
        target = Target(CACHE)
        believed = (await retrieve(joined, target, key_ring=keys)).report
        refused = (await retrieve(joined, Target(CACHE), key_ring=keys, signed_by=TRUSTED)).report
    assert believed.status == "complete"
    assert not target.is_identical()
    assert Guarantee.AUTHENTICITY in believed.not_guaranteed
    assert (refused.status, refused.objects) == ("conflict", 0)


async def test_a_retired_key_opens_nothing() -> None:
    """S12: while the new one does; both are in the ring."""
    old, new = ring_key(A, retire_after=900), ring_key(B)
    async with relayed() as joined:
        put(joined, key_ring=ring(A))
        report = (await retrieve(joined, Target(CACHE), key_ring=ring(old, new))).report
        assert (report.status, report.objects) == ("conflict", 0)
    async with relayed() as joined:
        put(joined, key_ring=ring(B))
        target = Target(CACHE)
        report = (await retrieve(joined, target, key_ring=ring(old, new))).report
        assert report.status == "complete"
        assert target.is_identical()


def test_the_same_content_is_never_sealed_alike() -> None:
    """S13: twice published, every Object is other octets; names, and with them keys, are new each time."""
    publisher, keys = Publisher(), ring(A)
    seen: Counter[bytes] = Counter()
    for _ in range(3):
        publication = publisher.publish(CACHE.identity, key_ring=keys)
        CACHE.put(publication.segments[0])
        publication.end()
        seen.update(
            bytes(o.read())
            for t in publication.tracks
            for g in t.groups.values()
            for o in g.objects
        )
    assert len(seen) >= 3 * 24
    assert set(seen.values()) == {1}


def test_keys_are_for_their_owners_eyes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S14: files of base keys and producers' keys, and what is printed as they are made."""
    path, producer = tmp_path / "ring.json", tmp_path / "producer.pem"
    assert main(["keygen", "--ring", str(path)]) == 0
    assert main(["keygen", "--output", str(producer)]) == 0
    told = capsys.readouterr()
    loaded = KeyRing.load(path)
    for file in (path, producer):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    document = json.dumps(json.loads(path.read_text("ascii")))
    for key in loaded.keys:
        assert key.secret.hex() not in told.out + told.err + repr(loaded) + repr(key)
        assert repr(key.secret) not in repr(key)
    assert "PRIVATE" not in told.out + told.err
    assert document


async def test_what_is_withheld_is_told() -> None:
    """S1: a gap is never filled with anything; no zeros, no other block."""
    async with relayed(Withhold(lambda location: location.group == 2)) as joined:
        put(joined)
        target = Target(CACHE)
        retrieval = await retrieve(joined, target)
    assert {gap.layer for gap in retrieval.report.missing} == {2}
    assert target.k[2].tobytes() == b"\xee" * len(CACHE.k[2])
    assert target.k[3].tobytes() == CACHE.k[3]
