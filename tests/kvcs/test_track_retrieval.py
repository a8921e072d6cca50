"""One data track from relays that misbehave: what comes wrong, late or not at all is asked for again, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvcs import track_retrieval
from kvcs.assembly import Gap
from kvcs.errors import Incomplete, Unauthorised
from kvcs.payload import DiscardReason
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.report import Report
from kvcs.retrieval import Options
from moqt import Config, Location, LocationFilter, ObjectStatus, SessionConfig
from moqt.errors import PublishDoneCode, RequestErrorCode
from moqt.wire.messages import Fetch, Message, Subscribe
from tests.support.script import Play, ScriptedOrigin, corrupt
from tests.support.world import PATIENCE, Cache, Target, Wire, World, small, until, world

K, V = b"k.raw.s0", b"v.raw.s0"
ALL = [(layer, block) for layer in range(4) for block in range(3)]
END_OF_GROUP, END_OF_TRACK = ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_retrieval, "FILL_WAIT", 0.05)
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.05)


class Scene(World):
    """A world whose origin acts a script, with a cache of 4 layers and 3 blocks."""

    cache: Cache
    origin: ScriptedOrigin
    publication: Publication

    def finish(self) -> None:
        """Production comes to its end."""
        done = self.publication.segments[0].layers_done
        self.cache.put(self.publication.segments[0], range(done, 4))
        self.publication.end()

    async def report_of(self, target: Target, **options: float) -> Report:
        return await self.retrieve(target, Options(**{"wait": 0.05, "stall": 5.0} | options))  # type: ignore[arg-type]


@asynccontextmanager
async def scene(layers: int = 4, config: Config | None = None) -> AsyncIterator[Scene]:
    publisher = Publisher(config=config)
    origin = publisher.origin = ScriptedOrigin()
    async with world(publisher=publisher) as joined:
        joined.__class__ = Scene
        assert isinstance(joined, Scene)
        joined.cache = Cache(small(), 12)
        joined.origin = origin
        joined.publication = publisher.publish(joined.cache.identity)
        joined.cache.put(joined.publication.segments[0], range(layers))
        if layers == 4:
            joined.publication.end()
        yield joined


def fetches(origin: ScriptedOrigin, track: bytes = K) -> list[Fetch]:
    return [m for m in origin.asked if isinstance(m, Fetch) and m.track.name == track]


def subscribes(origin: ScriptedOrigin, track: bytes = K) -> list[Subscribe]:
    return [m for m in origin.asked if isinstance(m, Subscribe) and m.track.name == track]


def ranges(message: Message) -> tuple[tuple[int, int | None], ...]:
    assert isinstance(message, Subscribe | Fetch)
    filters = message.parameters.object_id_filters
    return filters[0].ranges if filters else ()


async def test_a_completed_segment_is_fetched_by_group() -> None:
    """C5: Absolute Start + Group End, StartObject 0, ascending, no filter where all blocks are wanted."""
    async with scene() as s:
        target = Target(s.cache)
        await s.report_of(target)
        (fetch,) = fetches(s.origin)
        assert fetch.parameters.location_filter == LocationFilter.absolute_groups(Location(0, 0), 3)
        assert fetch.parameters.group_order == 1
        assert not fetch.parameters.object_id_filters
        assert not subscribes(s.origin)
        assert target.is_identical()


async def test_a_live_segment_is_subscribed_to_with_a_fill() -> None:
    """C2: Next Object, and a fill from {0,0} with its Group Order."""
    async with scene(layers=2) as s:
        target = Target(s.cache)
        running = asyncio.create_task(s.report_of(target))
        await until(lambda: len(subscribes(s.origin)) == 1 == len(subscribes(s.origin, V)))
        s.finish()
        await running
        (subscribe,) = subscribes(s.origin)
        fill = subscribe.parameters.fill
        assert subscribe.parameters.location_filter == LocationFilter.next_object()
        assert fill is not None
        assert fill.location_filter == LocationFilter.absolute_start(Location(0, 0))
        assert fill.group_order == 1
        assert not fetches(s.origin)


@pytest.mark.parametrize("limit", [0, 1, 64])
async def test_the_first_blocks_only(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: OBJECTID_FILTER 0..n-1 when the peer offers MAX_FILTER_RANGES, else the excess is left out."""
    wire = Wire(monkeypatch)
    async with scene(config=Config(session=SessionConfig(max_filter_ranges=limit))) as s:
        target = Target(s.cache, 2)
        report = await s.retrieve(target, Options(blocks=2))
        (fetch,) = fetches(s.origin)
        assert ranges(fetch) == (((0, 1),) if limit else ())
        assert target.is_identical()
        assert (report.blocks, report.objects, report.discarded) == (2, 16, 0)
        assert sum(wire.objects.values()) == (16 if limit else 24)


@pytest.mark.parametrize("live", [False, True])
async def test_a_range_of_layers(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: layers a to b: StartGroup a, EndGroupDelta b-a; live ones with a fill from a."""
    wire = Wire(monkeypatch)
    async with scene(layers=2 if live else 4) as s:
        target = Target(s.cache, layers=range(1, 3))
        consumer = await s.consumer()
        options = Options(layers=range(1, 3))
        retrieval = consumer.retrieve(s.cache.identity, target.sink, options)
        if live:
            await until(lambda: bool(retrieval.assembly.objects))
            s.finish()
        async with asyncio.timeout(PATIENCE):
            report = await retrieval.finish()
        asked = (subscribes if live else fetches)(s.origin)[0]
        parameters = asked.parameters.fill if live else asked.parameters
        assert parameters is not None
        assert parameters.location_filter == LocationFilter.absolute_groups(Location(1, 0), 2)
        assert target.is_identical()
        assert report.layers == 2
        assert {place.group for _, place in wire.objects} >= {1, 2}
        assert 0 not in {place.group for _, place in wire.objects}


def as_it_should_be(play: Play) -> None:
    """A relay that was there from the start: fills what there is, and repeats it live."""
    play.accept(Location(3, 2))
    play.fill(ALL)
    play.live(3, range(3), marker=(3, END_OF_GROUP))
    play.live(4, (), marker=(0, END_OF_TRACK))
    play.done()


def end_of_track_as_end_of_group(play: Play) -> None:
    play.accept(Location(2, 2))
    play.fill(ALL[:9])
    play.live(3, range(3), marker=(3, END_OF_GROUP))
    play.live(4, (), marker=(0, END_OF_GROUP))


def no_fill(play: Play) -> None:
    play.accept(Location(1, 2))
    for layer in (2, 3):
        play.live(layer, range(3), marker=(3, END_OF_GROUP))
    play.live(4, (), marker=(0, END_OF_TRACK))


def largest_beyond_reason(play: Play) -> None:
    play.accept(Location((1 << 64) - 1, (1 << 64) - 1))
    play.fill(ALL[:3])
    play.done()


def fill_reset(play: Play) -> None:
    play.accept(Location(1, 2))
    play.fill([(0, 0), (0, 1)], end=2)
    for layer in (2, 3):
        play.live(layer, range(3), marker=(3, END_OF_GROUP))


def cut_groups(play: Play) -> None:
    """Ended with a clean FIN before their last Object, one with a marker that lies."""
    play.accept(None)
    play.live(0, range(3), marker=(3, END_OF_GROUP))
    play.live(1, (0,))
    play.live(2, (0, 2), marker=(3, END_OF_GROUP))
    play.live(3, (), marker=(0, END_OF_GROUP))
    play.live(4, (), marker=(0, END_OF_TRACK))
    play.done()


def reset_groups(play: Play) -> None:
    play.accept(None)
    for layer in range(4):
        play.live(layer, range(3 - layer % 2), end=5 if layer % 2 else None)
    play.done()


def done_early(play: Play) -> None:
    play.accept(Location(1, 2))
    play.fill(ALL[:6])
    play.done()


def done_with_a_wrong_count(play: Play) -> None:
    play.accept(Location(1, 2))
    play.fill(ALL[:6])
    play.live(2, range(3))
    play.live(3, range(3))
    play.done(count=99)


def corrupted(play: Play) -> None:
    play.accept(None)
    for layer in range(4):
        play.live(layer, range(3), alter=corrupt if layer == 2 else lambda octets: octets)
    play.done()


@pytest.mark.parametrize(
    ("act", "recovered", "duplicates", "discarded"),
    [
        (as_it_should_be, 0, 3, 0),
        (end_of_track_as_end_of_group, 0, 0, 0),
        (no_fill, 6, 0, 0),
        (fill_reset, 4, 0, 0),
        (cut_groups, 6, 0, 0),
        (reset_groups, 2, 0, 0),
        (done_early, 6, 0, 0),
        (largest_beyond_reason, 9, 0, 0),
        (done_with_a_wrong_count, 0, 0, 0),
        (corrupted, 3, 0, 3),
    ],
)
async def test_what_a_relay_gets_wrong_is_made_good(
    act: object, recovered: int, duplicates: int, discarded: int
) -> None:
    """C4, C2, C9, G5: completeness comes from the manifest; gaps are asked for again, by their blocks."""
    assert callable(act)
    config = Config(session=SessionConfig(publish_done_timeout=0.1))
    async with scene(layers=2) as s:
        s.origin.on(Subscribe, K, lambda play: plays.append(play))
        plays: list[Play] = []
        target = Target(s.cache)
        running = asyncio.create_task(
            s.retrieve(target, Options(wait=0.05, stall=5.0), config=config)
        )
        await until(lambda: bool(plays))
        s.finish()
        act(plays[0])
        report = await running
        assert target.is_identical()
        assert report.status == "complete"
        assert report.recovered == recovered
        assert report.duplicates == duplicates
        assert report.discarded == discarded
        assert all(ranges(f) for f in fetches(s.origin) if f.parameters.location_filter is None)


async def test_only_the_missing_blocks_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6, C9: with a range filter where the peer takes one."""
    wire = Wire(monkeypatch)
    async with scene() as s:

        def act(play: Play) -> None:
            play.accept()
            play.fill([*ALL[:4], *ALL[5:]])

        s.origin.on(Fetch, K, act)
        target = Target(s.cache)
        report = await s.report_of(target)
        assert report.recovered == 1
        again = fetches(s.origin)[1]
        assert again.parameters.location_filter == LocationFilter.absolute_groups(Location(1, 0), 1)
        assert ranges(again) == ((1, 1),)
        assert set(wire.objects.values()) == {1}
        assert target.is_identical()


async def test_a_gap_that_stays_is_reported_exactly() -> None:
    """C4, C9, O2: by track, layer and block; asked for again until a round brings nothing."""
    async with scene() as s:
        holes = [place for place in ALL if place not in [(1, 1), (3, 0), (3, 2)]]

        def act(play: Play) -> None:
            play.accept()
            play.fill(holes)

        s.origin.on(Fetch, K, act, *[act] * 9)
        with pytest.raises(Incomplete, match=r"k\.raw\.s0 layer 1 blocks 1; k\.raw\.s0 layer 3"):
            await s.report_of(Target(s.cache))
        consumer = s.consumers[-1]
        target = Target(s.cache)
        s.origin.on(Fetch, K, *[act] * 9)
        retrieval = consumer.retrieve(s.cache.identity, target.sink)
        assert [layer async for layer in retrieval] == [0]
        with pytest.raises(Incomplete):
            await retrieval.finish()
        report = retrieval.report
        assert report.missing == [
            Gap("k.raw.s0", 1, ((1, 1),)),
            Gap("k.raw.s0", 3, ((0, 0), (2, 2))),
        ]
        assert (report.status, report.layers, report.objects) == ("incomplete", 1, 21)
        assert report.error is not None
        assert len(fetches(s.origin)) <= 2 * (1 + 2)


async def test_corrupt_objects_are_missing_not_zero() -> None:
    """O2: what never verifies is discarded each time, counted, and reported."""
    async with scene() as s:

        def act(play: Play) -> None:
            play.accept()
            play.fill(ALL[:3], alter=corrupt)

        s.origin.on(Fetch, K, *[act] * 9)
        consumer = await s.consumer()
        retrieval = consumer.retrieve(s.cache.identity, Target(s.cache).sink)
        with pytest.raises(Incomplete):
            await retrieval.finish()
        assert retrieval.report.discarded_by_reason == {DiscardReason.DIGEST: 6}
        assert len(retrieval.report.missing) == 4


async def test_a_fetch_that_is_refused_for_now_is_repeated() -> None:
    """C9: EXCESSIVE_LOAD with an interval is asked again, other refusals end the track."""
    async with scene() as s:
        s.origin.on(Fetch, K, *[lambda play: play.reject(RequestErrorCode.EXCESSIVE_LOAD, 2)] * 2)
        target = Target(s.cache)
        await s.report_of(target)
        assert target.is_identical()
        s.origin.on(Fetch, K, lambda play: play.reject(RequestErrorCode.DOES_NOT_EXIST))
        with pytest.raises(Incomplete, match="DOES_NOT_EXIST"):
            await s.report_of(Target(s.cache))
        s.origin.on(Fetch, K, lambda play: play.reject(RequestErrorCode.UNAUTHORIZED))
        with pytest.raises(Unauthorised):
            await s.report_of(Target(s.cache))


async def test_an_early_end_in_the_middle_of_production() -> None:
    """C4: PUBLISH_DONE before the end: what the manifest lists is fetched as it appears."""
    async with scene(layers=1) as s:

        def act(play: Play) -> None:
            play.accept(Location(0, 2))
            play.fill(ALL[:3])
            play.done()

        s.origin.on(Subscribe, K, act)
        target = Target(s.cache)
        consumer = await s.consumer()
        retrieval = consumer.retrieve(s.cache.identity, target.sink)
        for layer in range(1, 4):
            await until(lambda done=layer: retrieval.assembly.layers_usable == done)  # type: ignore[misc]
            s.cache.put(s.publication.segments[0], [layer])
        async with asyncio.timeout(PATIENCE):
            report = await retrieval.finish()
        assert target.is_identical()
        assert report.recovered == 9


async def test_a_manifest_that_overtakes_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """C2, C4: after a long pause the manifest says complete before the data are there: they still come once."""
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.3)
    wire = Wire(monkeypatch)
    async with scene(layers=0) as s:
        plays: dict[bytes, Play] = {}

        def act(play: Play) -> None:
            play.accept()
            plays[play.track.name.name] = play

        for track in (K, V):
            s.origin.on(Subscribe, track, act)
        target = Target(s.cache)
        retrieval = (await s.consumer()).retrieve(s.cache.identity, target.sink)
        await until(lambda: len(plays) == 2)
        for layer in range(3):
            s.cache.put(s.publication.segments[0], [layer])
            for play in plays.values():
                play.live(layer, range(3))
        await asyncio.sleep(0.4)
        s.finish()
        await until(lambda: retrieval._all_complete)
        await asyncio.sleep(0.05)
        for play in plays.values():
            play.live(3, range(3))
        await retrieval.finish()
        assert not fetches(s.origin)
        assert set(wire.objects.values()) == {1}


async def test_a_slow_object_is_not_taken_to_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """C2, C4: as long as octets come, what is missing is on its way and is not asked for again."""
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.5)
    wire = Wire(monkeypatch)
    async with scene(layers=0) as s:
        plays: dict[bytes, Play] = {}

        def act(play: Play) -> None:
            play.accept()
            plays[play.track.name.name] = play

        for track in (K, V):
            s.origin.on(Subscribe, track, act)
        target = Target(s.cache)
        running = asyncio.create_task(s.report_of(target))
        await until(lambda: len(plays) == 2)
        s.finish()
        for layer in range(4):
            for play in plays.values():
                await play.live_slowly(layer, range(3), pause=0.03)
        report = await running
        assert report.recovered == report.duplicates == 0
        assert not fetches(s.origin)
        assert set(wire.objects.values()) == {1}


async def test_a_cut_group_is_made_good_while_production_goes_on() -> None:
    """C7, C9: a layer does not wait for the end of the track."""
    async with scene(layers=0) as s:
        plays: list[Play] = []

        def act(play: Play) -> None:
            play.accept()
            plays.append(play)

        s.origin.on(Subscribe, K, act)
        target = Target(s.cache)
        retrieval = (await s.consumer()).retrieve(s.cache.identity, target.sink)
        await until(lambda: bool(plays))
        s.cache.put(s.publication.segments[0], [0])
        plays[0].live(0, (0,), end=1)
        await until(lambda: retrieval.assembly.layers_usable == 1)
        await retrieval.cancel()


async def test_a_layer_that_was_passed_over_is_asked_for_in_the_middle_of_production() -> None:
    """C7, C9: a relay that found another source knows nothing of the layers in between, not even that they are lost."""
    async with scene(layers=0) as s:
        plays: list[Play] = []

        def act(play: Play) -> None:
            play.accept()
            plays.append(play)

        s.origin.on(Subscribe, K, act)
        retrieval = (await s.consumer()).retrieve(s.cache.identity, Target(s.cache).sink)
        await until(lambda: bool(plays))
        s.cache.put(s.publication.segments[0], range(3))
        plays[0].live(0, range(3))
        plays[0].live(2, range(3))
        await until(lambda: retrieval.assembly.layers_usable == 3)
        (asked,) = fetches(s.origin)
        assert asked.parameters.location_filter == LocationFilter.absolute_groups(Location(1, 0), 1)
        await retrieval.cancel()


@pytest.mark.parametrize("code", [PublishDoneCode.INTERNAL_ERROR, PublishDoneCode.MALFORMED_TRACK])
async def test_a_track_that_was_stopped_leaves_nothing(code: PublishDoneCode) -> None:
    """G7: PUBLISH_DONE INTERNAL_ERROR ends the retrieval, and everything counts as missing."""
    async with scene(layers=2) as s:

        def act(play: Play) -> None:
            play.accept(Location(1, 2))
            play.fill(ALL[:6])
            play.done(code)

        s.origin.on(Subscribe, K, act)
        retrieval = (await s.consumer()).retrieve(s.cache.identity, Target(s.cache).sink)
        with pytest.raises(Incomplete, match="nothing of it may be used"):
            await retrieval.finish()
        report = retrieval.report
        assert (report.status, report.layers, report.objects) == ("incomplete", 0, 0)
        assert {gap.layer for gap in report.missing} == {0, 1, 2, 3}
