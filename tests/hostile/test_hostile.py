"""What a lying relay achieves: nothing but delay and gaps where a signature is required; where none is, the report says so.

Each behaviour meets a retrieval of a finished cache (FETCH) and one of a cache in production (SUBSCRIBE). In all of them:
what is handed over is what the producer published at that place, what is missing is reported, memory is bounded, and the
end comes within the deadline.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from kvcs import manifest_watch, track_retrieval
from kvcs.errors import KvcsError
from kvcs.payload import Component
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.report import Guarantee, Report
from kvcs.retrieval import Options, Retrieval
from kvcs.signing import Signer, TrustedKeys
from tests.hostile.behaviours import (
    Aliases,
    Bombs,
    Drip,
    Duplicate,
    Endless,
    EndlessVersions,
    ForgeManifest,
    HugeLengths,
    MovePlaces,
    OlderManifest,
    Reorder,
    ReplayManifest,
    Restyle,
    Silent,
    SwapPlaces,
    SwapPublications,
    Truncate,
    Unseal,
    Withhold,
)
from tests.hostile.relay import Behaviour, HostileRelay
from tests.support.keys import PRODUCERS
from tests.support.rings import A, ring
from tests.support.world import Cache, Target, small, world

KEY = PRODUCERS["ed25519"]
TRUSTED = TrustedKeys([KEY.public])
CACHE = Cache(small(), 12)
OTHER = Cache(small(), 12, seed=5)
"""Of the same prompt, with other content: what another production may have made."""
PLENTY = 30.0
"""The deadline of what ends by itself: a loaded machine does not come to it."""
SHORT = 0.3
"""That of what only a deadline ends."""
GRACE = 8.0
"""Seconds beyond the deadline that a loaded machine, on which memory is traced, may take to come to it."""
MEMORY = 48 << 20
"""Octets that one retrieval, its transport and the relay may take together; the cache has 24 KiB."""


@dataclass
class Case:
    """Behaviours made for a relay that knows two publications, and how a retrieval may end."""

    make: Callable[[Publication], list[Behaviour]]
    signed: set[str] = field(default_factory=lambda: {"incomplete"})
    """What the report may say where a signature is required,"""
    plain: set[str] | None = None
    """and where none is; None: the same."""
    sealed: set[str] | None = None
    """and where encryption is required as well; None: as `signed`."""
    deadline: float = PLENTY


def _tracks(other: Publication) -> list[Behaviour]:
    return [SwapPublications({track.name.name: track for track in other.tracks})]


COMPLETE = {"complete"}
CASES: dict[str, Case] = {
    "nothing": Case(lambda _: [], COMPLETE),
    "swaps neighbours, digests to match": Case(lambda _: [SwapPlaces()]),
    "swaps neighbours as they are": Case(lambda _: [MovePlaces()]),
    "swaps another publication in": Case(_tracks),
    "replays another manifest": Case(
        lambda other: [ReplayManifest(other.tracks[0])], {"conflict"}, {"conflict", "incomplete"}
    ),
    "replays another publication whole": Case(
        lambda other: [ReplayManifest(other.tracks[0]), *_tracks(other)], {"conflict"}, COMPLETE
    ),
    "replays an older manifest": Case(
        lambda _: [OlderManifest()], {"conflict"}, COMPLETE, {"conflict", "incomplete"}
    ),
    "alters the manifest": Case(
        lambda _: [ForgeManifest(lambda octets: octets[:-1] + bytes((octets[-1] ^ 1,)))],
        {"conflict"},
        {"complete", "conflict"},
    ),
    "sends a manifest that is none": Case(
        lambda _: [ForgeManifest(lambda octets: octets[: len(octets) // 2])], {"conflict"}
    ),
    "sends Objects in the clear": Case(
        lambda _: [Unseal(ring(A))], COMPLETE, sealed={"incomplete"}
    ),
    "sends manifests in the clear": Case(
        lambda _: [Unseal(ring(A), manifests=True)], COMPLETE, sealed={"conflict"}
    ),
    "cuts groups short": Case(lambda _: [Truncate(1)]),
    "sends nothing but ends": Case(lambda _: [Truncate(0)]),
    "withholds one": Case(lambda _: [Withhold(lambda location: location == (2, 1))]),
    "withholds a layer": Case(lambda _: [Withhold(lambda location: location.group == 1)]),
    "reorders": Case(lambda _: [Reorder()], COMPLETE),
    "duplicates": Case(lambda _: [Duplicate(3)], COMPLETE),
    "reorders and duplicates": Case(lambda _: [Reorder(), Duplicate(2)], COMPLETE),
    "changes priorities and properties": Case(lambda _: [Restyle()], COMPLETE, sealed={"conflict"}),
    "never stops": Case(lambda _: [Endless()], deadline=SHORT),
    "never stops with manifests": Case(
        lambda _: [EndlessVersions()], {"complete", "conflict"}, {"complete"}
    ),
    "announces huge Objects": Case(lambda _: [HugeLengths()], deadline=SHORT),
    "announces huge manifests": Case(
        lambda _: [HugeLengths(manifests=True)], {"conflict", "incomplete"}
    ),
    "opens thousands of aliases": Case(lambda _: [Aliases(300)], {"complete", "incomplete"}),
    "sends bombs": Case(lambda _: [Bombs()]),
    "drips": Case(lambda _: [Drip(0.01)], deadline=SHORT),
    "drips manifests": Case(lambda _: [Drip(0.02, manifests=True)], deadline=SHORT),
    "keeps silent": Case(lambda _: [Silent()], deadline=SHORT),
    "withholds and swaps, twice, out of order": Case(
        lambda _: [Withhold(lambda at: at.object == 0), SwapPlaces(), Reorder(), Duplicate(2)]
    ),
}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (manifest_watch, track_retrieval):
        monkeypatch.setattr(module, "FILL_WAIT", 0.05)
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.05)


@dataclass
class Ended:
    """A retrieval that is over."""

    retrieval: Retrieval
    target: Target
    layers: list[int]
    seconds: float
    memory: int

    @property
    def report(self) -> Report:
        return self.retrieval.report

    def places(self) -> dict[tuple[str, int, int], bool]:
        """Every place, and whether it counts as received."""
        return {
            (name, layer, block): track.has(layer, block)
            for name, track in self.retrieval.assembly.tracks.items()
            for layer in self.retrieval.assembly.layers
            for block in range(track.blocks)
        }

    def is_true(self, name: str, layer: int, block: int) -> bool:
        """Whether a place holds what the producer published there."""
        size = CACHE.descriptor.block_tokens
        component = Component.K if name.startswith("k.") else Component.V
        array = (self.target.k if component is Component.K else self.target.v)[layer]
        there = array[block * size : (block + 1) * size].tobytes()
        return there == CACHE.part(component, layer, block * size, (block + 1) * size)


@asynccontextmanager
async def hostile(
    case: Case, *, live: bool, signed: bool, encrypted: bool = False
) -> AsyncIterator[Callable[[], Awaitable[Ended]]]:
    """A relay between a producer, whose publication it has, and a consumer; gives what runs one retrieval."""
    signer = Signer(KEY) if signed else None
    keys = ring(A) if encrypted else None
    publisher = Publisher()
    relay = publisher.origin = HostileRelay(live=live)
    async with world(publisher=publisher) as joined:
        other = publisher.publish(OTHER.identity, signer=signer, key_ring=keys)
        OTHER.put(other.segments[0])
        other.end()
        relay.remove_namespace(other.name.namespace)
        publication = publisher.publish(CACHE.identity, signer=signer, key_ring=keys)
        CACHE.put(publication.segments[0])
        publication.end()
        relay.behaviours = tuple(case.make(other))

        async def run() -> Ended:
            target, consumer = Target(CACHE), await joined.consumer()
            options = Options(
                wait=0.0,
                deadline=case.deadline,
                signed_by=TRUSTED if signed else None,
                key_ring=keys,
            )
            loop = asyncio.get_running_loop()
            tracemalloc.start()
            started, layers = loop.time(), []
            retrieval = consumer.retrieve(CACHE.identity, target.sink, options)
            try:
                async for layer in retrieval:
                    layers.append(layer)
                    if signed:
                        assert target_is_true(target, layer)
                try:
                    await retrieval.finish()
                except KvcsError as error:
                    assert retrieval.report.error == str(error)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            return Ended(retrieval, target, layers, loop.time() - started, peak)

        yield run


def target_is_true(target: Target, layer: int) -> bool:
    """Whether a layer, as it is handed over, is the producer's."""
    tokens = CACHE.blocks * CACHE.descriptor.block_tokens
    return all(
        arrays[layer].tobytes() == CACHE.part(component, layer, 0, tokens)
        for component, arrays in ((Component.K, target.k), (Component.V, target.v))
    )


def check(ended: Ended, case: Case, expected: set[str]) -> None:
    """What holds however it ended."""
    report = ended.report
    assert report.status in expected, report.error
    assert ended.seconds < case.deadline + GRACE
    assert ended.memory < MEMORY
    assert ended.layers == list(range(len(ended.layers)))
    places = ended.places()
    told = {
        (gap.track, gap.layer, block)
        for gap in report.missing
        for first, last in gap.blocks
        for block in range(first, last + 1)
    }
    assert told == {place for place, there in places.items() if not there}
    if report.status == "complete":
        assert places
        assert not told
        assert len(ended.layers) == CACHE.descriptor.layers
    else:
        assert report.error
        assert "\n" not in report.error
    if report.status == "conflict":
        assert (report.layers, report.objects) == (0, 0)


@pytest.mark.parametrize(
    ("live", "encrypted"),
    [(False, True), (True, True), (True, False)],
    ids=["finished, encrypted", "in production, encrypted", "in production, in the clear"],
)
@pytest.mark.parametrize("name", CASES)
async def test_with_a_required_signature(name: str, live: bool, encrypted: bool) -> None:
    """M8, M9, X3, X5, O2, O8: no octet that the producer did not publish at that place is ever handed over."""
    case = CASES[name]
    async with hostile(case, live=live, signed=True, encrypted=encrypted) as run:
        ended = await run()
    check(ended, case, case.sealed if encrypted and case.sealed else case.signed)
    for place, there in ended.places().items():
        assert not there or ended.is_true(*place)
    absent = () if encrypted else (Guarantee.CONFIDENTIALITY,)
    assert ended.report.not_guaranteed == absent


@pytest.mark.parametrize("name", CASES)
async def test_with_digests_alone(name: str) -> None:
    """X5: damage is found and the same bounds hold; what is not guaranteed is in the report."""
    case = CASES[name]
    async with hostile(case, live=False, signed=False) as run:
        ended = await run()
    check(ended, case, case.plain or case.signed)
    assert ended.report.not_guaranteed == tuple(Guarantee)


async def test_what_digests_alone_do_not_show() -> None:
    """X5: a relay that replaces Objects and manifest together is believed; the report has said that it would be."""
    case = CASES["replays another publication whole"]
    async with hostile(case, live=False, signed=False) as run:
        ended = await run()
    assert ended.report.status == "complete"
    assert not any(ended.is_true(*place) for place in ended.places())
    assert Guarantee.INTEGRITY in ended.report.not_guaranteed
