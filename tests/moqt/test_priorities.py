"""Priorities on a real link: real sockets, 40 Mbit/s, 50 ms of queue. Orders and counters are asserted, never seconds."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from moqt import Config, Parameters, SessionConfig, TransportConfig
from tests.support.arrivals import NAMESPACE, CountedTrack
from tests.support.joined import Joined, joined

LAYERS = 32
FEW = 10
OBJECT = 32 << 10
OBJECTS = 8
"""In a Group."""
IN_FLIGHT = 1 << 20
"""What the backend has under way at the most with datagrams of this size."""
PACKET = 1452
"""What a flight may take of a stream's later octets to fill a packet."""
RATE = 40e6
QUEUE_TIME = 0.05
ROUND_TRIP = QUEUE_TIME * RATE / 8
"""Octets that cross the link in one, when its queue is full."""


@pytest.fixture(params=[True, False], ids=["flights", "packets"])
def config(request: pytest.FixtureRequest) -> Config:
    """With the bulk fast path, and without."""
    return Config(transport=TransportConfig(datagram_size=PACKET, bulk=request.param))


def linked(certificates: Path, config: Config) -> AbstractAsyncContextManager[Joined]:
    return joined(certificates, config=config, rate=RATE, queue_time=QUEUE_TIME)


def put_layers(*tracks: CountedTrack, layers: int = LAYERS, objects: int = OBJECTS) -> None:
    """Everything at once, with the Publisher Priorities that KVCS gives to layers."""
    for layer in range(layers):
        for track in tracks:
            track.put(layer, objects, OBJECT, priority=128 * layer // layers)
    for track in tracks:
        track.end()


def completed(groups: list[tuple[bytes, int]], tracks: int) -> list[int]:
    """Layers in the order in which the last of their tracks was whole."""
    seen: Counter[int] = Counter()
    order = []
    for _, group in groups:
        seen[group] += 1
        if seen[group] == tracks:
            order.append(group)
    return order


@pytest.mark.parametrize(("live", "objects"), [(True, 16), (False, 4)], ids=["live", "fetched"])
async def test_layers_complete_in_ascending_order(
    live: bool, objects: int, certificates: Path, config: Config
) -> None:
    """A datagram that the queue drops is repaired a round trip and a queue later: half a MiB at this rate. So
    live layers, each on a stream of its own, have a MiB."""
    async with linked(certificates, config) as link:
        names = (b"k", b"v")
        tracks = [link.track(name) for name in names]
        if live:
            for name in names:
                await link.subscribe(name, objects)
            put_layers(*tracks, objects=objects)
        else:
            put_layers(*tracks, objects=objects)
            for name in names:
                receiver = link.arrivals.receiver(name, objects)
                await link.session.fetch(NAMESPACE, name, receiver=receiver)
        await link.arrivals.until(lambda: len(link.arrivals.groups) == 2 * LAYERS)
        assert completed(link.arrivals.groups, 2) == list(range(LAYERS))
        assert link.shaper.down.counters.high_water > 64 << 10, "the link was never full"


async def test_the_first_layer_has_the_link_to_itself(certificates: Path, config: Config) -> None:
    """Its share of the line and two round trips, told in octets that arrived meanwhile: seconds depend on the
    machine as well."""
    objects, layers = 16, 5
    layer = 2 * objects * OBJECT
    async with linked(certificates, config) as link:
        warm = link.track(b"warm")
        await link.subscribe(b"warm", 128)
        warm.put(0, 128, OBJECT, priority=0)
        await link.arrivals.until(lambda: len(link.arrivals.groups) == 1)
        names = (b"k", b"v")
        tracks = [link.track(name) for name in names]
        for name in names:
            await link.subscribe(name, objects)
        before = link.arrivals.total
        put_layers(*tracks, layers=layers, objects=objects)
        await link.arrivals.until(lambda: {(b"k", 0), (b"v", 0)} <= set(link.arrivals.groups))
        then = (link.arrivals.octets_then[name, 0].total() for name in names)
        assert layer <= max(then) - before <= 1.3 * layer + 2 * ROUND_TRIP
        await link.arrivals.until(lambda: len(link.arrivals.groups) == 1 + 2 * layers)
        assert completed(link.arrivals.groups[1:], 2) == list(range(layers))


async def test_an_urgent_subscription_overtakes_bulk_within_a_watermark(
    certificates: Path, config: Config
) -> None:
    """The watermark is fixed: one that adapts may be smaller by now than when the transport was last fed."""
    config = replace(config, session=SessionConfig(watermark=128 << 10))
    async with linked(certificates, config) as link:
        bulk, urgent = link.track(b"bulk"), link.track(b"urgent")
        put_layers(bulk)
        urgent.put(0, OBJECTS, OBJECT, priority=128)
        await link.subscribe(b"bulk", OBJECTS, fill=True)
        await link.arrivals.until(lambda: link.arrivals.octets[b"bulk"] > 1 << 20)
        await link.subscribe(b"urgent", OBJECTS, priority=0, fill=True)
        await link.arrivals.until(lambda: (b"urgent", 0) in link.arrivals.groups)
        arrived = link.arrivals.octets_then[b"urgent", 0][b"bulk"]
        note = link.origin.notes[b"urgent"]

        assert link.ledger.order[note.pulls :][:OBJECTS] == [b"urgent"] * OBJECTS
        assert note.unsent <= note.watermark + OBJECT
        assert arrived <= note.pulled[b"bulk"] + PACKET, "what was pulled later came earlier"
        between = arrived - note.arrived[b"bulk"]
        assert between <= note.watermark + IN_FLIGHT + OBJECT
        assert arrived < LAYERS * OBJECTS * OBJECT // 2, "there was little left to overtake"
        await link.arrivals.until(lambda: len(link.arrivals.groups) == LAYERS + 1)


async def test_a_new_version_overtakes_what_was_queued_before_it(
    certificates: Path, config: Config
) -> None:
    async with linked(certificates, config) as link:
        bulk, manifest = link.track(b"bulk"), link.track(b"manifest", priority=0)
        await link.subscribe(b"manifest", 1)
        await link.subscribe(b"bulk", OBJECTS)
        put_layers(bulk)
        await link.arrivals.until(lambda: (b"bulk", 3) in link.arrivals.groups)
        note = link.origin.note()
        manifest.put(0, 1, OBJECT, priority=0)
        await link.arrivals.until(lambda: (b"manifest", 0) in link.arrivals.groups)
        then = link.arrivals.octets_then[b"manifest", 0]
        arrived = then[b"bulk"]

        assert link.ledger.order[note.pulls] == b"manifest"
        meanwhile = then.total() - note.arrived.total()
        assert meanwhile <= 0.150 * RATE / 8, "it took more than 150 ms of a busy link"
        assert arrived <= note.pulled[b"bulk"] + PACKET, "what was pulled later came earlier"
        assert arrived < LAYERS * OBJECTS * OBJECT // 2, "there was little left to overtake"
        await link.arrivals.until(lambda: len(link.arrivals.groups) == LAYERS + 1)


async def test_a_request_update_reorders_what_is_queued(certificates: Path, config: Config) -> None:
    async with linked(certificates, config) as link:
        names = (b"first", b"second")
        tracks = [link.track(name) for name in names]
        first = await link.subscribe(b"first", OBJECTS, priority=10)
        second = await link.subscribe(b"second", OBJECTS, priority=20)
        for track in tracks:
            put_layers(track, layers=FEW)
        await link.arrivals.until(lambda: (b"first", 3) in link.arrivals.groups)
        assert link.ledger.pulled[b"second"] == 0
        await second.update(Parameters(subscriber_priority=0))
        pulls = len(link.ledger.order)
        await link.arrivals.until(lambda: (b"second", FEW - 1) in link.arrivals.groups)
        left = FEW * OBJECTS - link.ledger.order[:pulls].count(b"second")
        assert link.ledger.order[pulls:][:left] == [b"second"] * left
        await link.arrivals.until(lambda: len(link.arrivals.groups) == 2 * FEW)
        assert first.resets == second.resets == 0
