"""An aiomoqt subscriber and fetcher, at our publisher and through our relay, with KVCS's binary namespaces of five
fields."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvcs.publication import Publication
from kvcs.publisher import Publisher
from moqt import ClientTls, ObjectStatus
from tests.interop.harness import DIRECT, RELAYED, Peer, Refused, announced, peer
from tests.support.quic import server_tls
from tests.support.world import Cache, small

PEER = "aiomoqt 0.13.3 subscriber"
K = b"k.raw.s0"
LAYERS, BLOCKS = 6, 4


class Scene:
    """A publication whose layers are put as a scenario asks, and a session of the peer."""

    def __init__(self, publisher: Publisher, cache: Cache, client: Peer) -> None:
        self.publisher = publisher
        self.cache = cache
        self.client = client
        self.publication: Publication = publisher.publish(cache.identity, max_cache_duration=60.0)
        self.namespace = [field.hex() for field in self.publication.name.namespace]

    def put(self, *layers: int) -> None:
        """Publishes layers."""
        self.cache.put(self.publication.segments[0], layers)

    def expected(self, *layers: int) -> list[list[Any]]:
        """Group, Object and SHA-256 of what the k track has."""
        tracks = self.publication.segments[0].tracks
        (track,) = (t for t in tracks.values() if t.name.name == K)
        return [
            [layer, block, hashlib.sha256(stored.read()).hexdigest()]
            for layer in layers
            for block, stored in enumerate(track.groups[layer].objects)
        ]

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """A command about the k track."""
        return await self.client(do, namespace=self.namespace, name=K.hex(), **arguments)


def objects(found: list[list[Any]]) -> list[list[Any]]:
    """Group, Object and SHA-256 of Objects with status Normal, as they came."""
    return [
        [group, number, digest] for group, number, status, _, digest, _, _ in found if not status
    ]


@pytest.fixture(params=[DIRECT, RELAYED])
async def scene(
    request: pytest.FixtureRequest, certificates: Path, ca: str, ours: str
) -> AsyncIterator[Scene]:
    cache = Cache(small(layers=LAYERS), 4 * BLOCKS)
    async with Publisher() as publisher, peer("aiomoqt_client") as client:
        scene = Scene(publisher, cache, client)
        if request.param == DIRECT:
            url = (await publisher.listen("127.0.0.1", 0, tls=server_tls(certificates))).url
        else:
            url = ours
            await publisher.announce(url, tls=ClientTls(ca_file=Path(ca)))
            await announced(url, ca, scene.publication.name.namespace)
        assert (await client("connect", url=url, ca=ca))["draft"] == 22
        yield scene
        assert (await client("closed"))["closed"] is None
        await publisher.close(0.0)


async def test_live(scene: Scene) -> None:
    """SUBSCRIBE with a fill before anything is published: every Object live, once, then PUBLISH_DONE."""
    asked = await scene.ask("subscribe", filter="next", fill=[0, 0])
    assert asked["largest"] is None
    scene.put(*range(LAYERS))
    scene.publication.end()
    done = await scene.client("done", key=asked["live"])
    came = (await scene.client("objects", key=asked["live"], count=LAYERS * BLOCKS))["objects"]
    assert sorted(objects(came)) == scene.expected(*range(LAYERS))
    assert {row[0]: row[5] for row in came if not row[2]} == {
        layer: 128 * layer // LAYERS for layer in range(LAYERS)
    }
    assert [row[:3] for row in came if row[2] == ObjectStatus.END_OF_TRACK]
    assert done["status"] == 2
    assert objects((await scene.client("filled", key=asked["fill"]))["objects"]) == []


async def test_late_join(scene: Scene) -> None:
    """A late SUBSCRIBE: history by the fill, the rest live, nothing twice and nothing left out."""
    scene.put(0, 1, 2)
    asked = await scene.ask("subscribe", filter="next", fill=[0, 0])
    assert asked["largest"] is not None
    fill = await scene.client("filled", key=asked["fill"])
    scene.put(3, 4, 5)
    scene.publication.end()
    await scene.client("done", key=asked["live"])
    live = await scene.client("objects", key=asked["live"], count=3 * BLOCKS)
    assert fill["clean"]
    assert objects(fill["objects"]) == scene.expected(0, 1, 2)
    assert sorted(objects(live["objects"])) == scene.expected(3, 4, 5)


RANGES: list[tuple[str, list[int], tuple[int, ...]]] = [
    ("whole track", [0, 0], tuple(range(LAYERS))),
    ("from a group on", [2, 0], (2, 3, 4, 5)),
    ("whole groups", [1, 0, 3], (1, 2, 3)),
    ("one group", [4, 0, 4], (4,)),
]


@pytest.mark.parametrize(("filter", "layers"), [r[1:] for r in RANGES], ids=[r[0] for r in RANGES])
async def test_fetch(scene: Scene, filter: list[int], layers: tuple[int, ...]) -> None:
    """FETCH of a range."""
    scene.put(*range(LAYERS))
    scene.publication.end()
    came = await scene.ask("fetch", filter=filter)
    assert came["clean"]
    assert objects(came["objects"]) == scene.expected(*layers)
    assert came["end_of_track"] is (layers[-1] == LAYERS - 1)


async def test_fetch_absolute_range(scene: Scene) -> None:
    """FETCH from an Object to an Object, and in descending order."""
    scene.put(*range(LAYERS))
    came = await scene.ask("fetch", filter=[1, 2, 3, 1])
    every = scene.expected(1, 2, 3)
    assert objects(came["objects"]) == [o for o in every if (1, 2) <= (o[0], o[1]) <= (3, 1)]
    assert came["end"] == [3, 1]
    came = await scene.ask("fetch", filter=[1, 0, 3], order=2)
    assert objects(came["objects"]) == scene.expected(3, 2, 1)


async def test_refusals(scene: Scene) -> None:
    """FETCH before anything is published and past the end, and a track that is not there."""
    with pytest.raises(Refused) as refused:
        await scene.ask("fetch", filter=[0, 0])
    assert refused.value.code == 0x11
    scene.put(0)
    with pytest.raises(Refused) as refused:
        await scene.ask("fetch", filter=[3, 0, 4])
    assert refused.value.code == 0x11
    with pytest.raises(Refused) as refused:
        await scene.client("subscribe", namespace=scene.namespace, name=b"\xff\x00".hex())
    assert refused.value.code == 0x10


async def test_track_status(scene: Scene) -> None:
    """TRACK_STATUS: the Largest Location and the Track Properties."""
    assert (await scene.ask("status"))["largest"] is None
    scene.put(0, 1)
    told = await scene.ask("status")
    assert told["largest"][0] == 1
    asked = await scene.ask("subscribe", filter="next")
    assert told["properties"] == asked["properties"]
    assert told["properties"]["4"] == 60_000


async def test_discovery(scene: Scene) -> None:
    """SUBSCRIBE_NAMESPACE with four binary fields finds the fifth; a later publication is told too."""
    other = scene.publisher.publish(scene.cache.identity)
    told = await scene.client("namespaces", prefix=scene.namespace[:4], count=2)
    ids = [scene.publication.name.publication_id.hex(), other.name.publication_id.hex()]
    assert sorted(told["suffixes"]) == sorted([one] for one in ids)
