"""Chunked prefill: passes that do not end where blocks do."""

from __future__ import annotations

import asyncio

import pytest

from kvcs.errors import UsageError
from kvcs.payload import Component
from kvcs.prefill import Pass, Prefill
from kvcs.publisher import Publisher
from kvcs.retrieval import Options
from moqt import Location
from tests.support.caches import descriptor
from tests.support.world import PATIENCE, Cache, Target, Wire, small, until, world

OF = descriptor(layers=3, block_tokens=32)


def put(cache: Cache, open_pass: Pass, start: int, tokens: int) -> None:
    for layer in range(cache.descriptor.layers):
        put_layer(cache, open_pass, layer, start, tokens)


def put_layer(cache: Cache, open_pass: Pass, layer: int, start: int, tokens: int) -> None:
    k, v = (cache.part(c, layer, start, start + tokens) for c in (Component.K, Component.V))
    open_pass.put_layer(layer, k, v)


@pytest.mark.parametrize("components", ["k+v", "kv"])
def test_passes_give_the_objects_of_one_pass(components: str) -> None:
    """G3: 72+72+56 tokens with blocks of 32 are segments of 2, 2 and 2 blocks; digests are a one-pass run's."""
    cache = Cache(OF, 200)
    publisher = Publisher()
    prefill = Prefill(publisher, cache.identity, components=components)
    start = 0
    for tokens in (72, 72, 56):
        put(cache, prefill.begin_pass(tokens), start, tokens)
        start += tokens
    assert prefill.end() == 8
    publication = prefill.publication
    assert publication is not None
    assert [(s.first_block, s.blocks) for s in publication.segments] == [(0, 2), (2, 2), (4, 2)]
    assert publication.name.anchor_key == cache.identity.anchor(2)
    whole = publisher.publish(cache.identity, components=components)
    cache.put(whole.segments[0])
    for name, groups in whole.segments[0].digests().items():
        parts = [s.digests()[name.replace("s0", f"s{s.number}")] for s in publication.segments]
        for layer in range(OF.layers):
            assert sum((part[layer] for part in parts), ()) == groups[layer]


def test_passes_without_a_whole_block_wait() -> None:
    """G3: the tokens go with the pass that fills the block; there is no publication before the first."""
    cache = Cache(OF, 100)
    prefill = Prefill(Publisher(), cache.identity, max_cache_duration=2.0, deterministic=True)
    start = 0
    for tokens, segments in ((20, 0), (11, 0), (1, 1), (31, 1), (37, 2)):
        open_pass = prefill.begin_pass(tokens)
        put(cache, open_pass, start, tokens)
        start += tokens
        assert (open_pass.segment is None) == (tokens in (20, 11, 31))
        assert len(prefill.publication.segments if prefill.publication else ()) == segments
    assert prefill.publication is not None
    assert [s.blocks for s in prefill.publication.segments] == [1, 2]
    assert prefill.publication.manifest().deterministic
    assert prefill.end() == 4
    assert Prefill(Publisher(), cache.identity).end() == 0


def test_what_does_not_fit_is_refused() -> None:
    """G2, G3: order of layers, sizes, passes that overlap, more tokens than there are; nothing changes."""
    cache = Cache(OF, 100)
    prefill = Prefill(Publisher(), cache.identity)
    for tokens in (0, -1):
        with pytest.raises(UsageError, match="at least one token"):
            prefill.begin_pass(tokens)
    with pytest.raises(UsageError, match="blocks"):
        prefill.begin_pass(200)
    open_pass = prefill.begin_pass(40)
    with pytest.raises(UsageError, match="lacks layers"):
        prefill.begin_pass(1)
    with pytest.raises(UsageError, match="in order"):
        put_layer(cache, open_pass, 1, 0, 40)
    with pytest.raises(UsageError, match="expected"):
        put_layer(cache, open_pass, 0, 0, 39)
    put(cache, open_pass, 0, 40)
    with pytest.raises(UsageError, match="in order"):
        open_pass.put_layer(3, cache.k[0], cache.v[0])
    with pytest.raises(UsageError, match="blocks"):
        prefill.begin_pass(100)
    put(cache, prefill.begin_pass(24), 40, 24)
    assert prefill.publication is not None
    assert [s.blocks for s in prefill.publication.segments] == [1, 1]


@pytest.mark.parametrize("joined_after", range(4))
async def test_a_consumer_gets_all_segments_as_they_appear(
    joined_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3, C1, C2, C7: a retrieval that runs while segments are added gets the whole cache, once; also one
    that starts between two passes.
    """
    wire = Wire(monkeypatch)
    cache = Cache(small(block_tokens=32), 200)
    async with world() as joined:
        prefill = Prefill(joined.publisher, cache.identity)
        target = Target(cache)
        retrieval = None
        start = 0
        for number, tokens in enumerate((72, 72, 56)):
            if number == joined_after:
                consumer = await joined.consumer()
                options = Options(wait=5.0)
                retrieval = consumer.retrieve(cache.identity, target.sink, options)
                await until(lambda: bool(consumer._directory._entries))  # noqa: B023
            put(cache, prefill.begin_pass(tokens), start, tokens)
            start += tokens
        assert prefill.end() == 8
        if retrieval is None:
            consumer = await joined.consumer()
            retrieval = consumer.retrieve(cache.identity, target.sink)
        async with asyncio.timeout(PATIENCE):
            assert [layer async for layer in retrieval] == [0, 1, 2, 3]
            report = await retrieval.finish()
    assert target.is_identical()
    assert report.blocks == 6
    expected = {
        (f"{c}.raw.s{s}", Location(layer, block)): 1
        for c in "kv"
        for s in range(3)
        for layer in range(4)
        for block in range(2)
    }
    assert wire.objects == expected
