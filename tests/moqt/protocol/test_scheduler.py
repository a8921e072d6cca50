"""The order of draft-22 section 7.1, the watermark, and stream credit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.model import GroupOrder
from moqt.protocol.scheduler import (
    FIRST_WATERMARK,
    LEAST_QUANTUM,
    LEAST_WATERMARK,
    MOST_WATERMARK,
    Flow,
    Octets,
    OutgoingStream,
    Priority,
    Scheduler,
    Supply,
    group_key,
)

WATERMARK, QUANTUM, SLICE = 20_000, 8_000, 4096


class Wire:
    """A Port that notes what it is given; `drain` is the network."""

    def __init__(self, credit: int = 1000) -> None:
        self.credit = credit
        self.asked = 0
        """How often it was asked for a stream."""
        self.log: list[tuple[int, bytes]] = []
        self.data: dict[int, bytes] = {}
        self.finished: set[int] = set()
        self.resets: dict[int, int] = {}
        self.held = 0
        self.most = 0
        self.windows: dict[int, int] = {}
        """How much the peer takes of a stream, where that is bounded."""

    def open_stream(self, *, bidirectional: bool) -> int | None:
        assert not bidirectional
        self.asked += 1
        return len(self.data) if len(self.data) < self.credit else None

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        assert stream_id not in self.finished
        assert stream_id <= len(self.data)
        assert stream_id in self.data or stream_id < self.credit
        self.data[stream_id] = self.data.get(stream_id, b"") + bytes(data)
        if data:
            self.log.append((stream_id, bytes(data)))
        self.held += len(data)
        self.most = max(self.most, self.held)
        if fin:
            self.finished.add(stream_id)

    def reset(self, stream_id: int, code: int) -> None:
        assert stream_id in self.data
        self.resets[stream_id] = code
        self.finished.add(stream_id)

    def unsent(self) -> int:
        return self.held

    def data_credit(self) -> int:
        return 1 << 62

    def stream_credit(self, stream_id: int) -> int:
        return self.windows.get(stream_id, 1 << 62) - len(self.data.get(stream_id, b""))

    def drain(self) -> None:
        self.held = 0


class Source(OutgoingStream):
    """Sends `pieces` one refill each, with the priorities beside them if there are any."""

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        pieces: Sequence[bytes],
        *,
        end: Supply = Supply.END,
        ranks: Sequence[Priority] = (),
    ) -> None:
        super().__init__(flow, priority)
        self.left = list(pieces)
        self.end = end
        self.ranks = list(ranks)
        self.refills = 0
        self.over = 0
        self.reset_code = 77

    def refill(self) -> Supply:
        self.refills += 1
        if not self.left:
            return self.end
        if self.ranks:
            self.priority = self.ranks.pop(0)
        self.pieces.append(self.left.pop(0))
        return Supply.MORE

    def finished(self) -> None:
        self.over += 1


def rank(
    subscriber: int = 128,
    publisher: int = 128,
    against: int = 0,
    group: int = 0,
    live: int = 1,
    subgroup: int = 0,
) -> Priority:
    return Priority(subscriber, publisher, against, group, live, subgroup)


def scheduler() -> Scheduler:
    return Scheduler(watermark=WATERMARK, quantum=QUANTUM)


def run(wire: Wire, chosen: Scheduler) -> None:
    """Pumps until nothing moves any more."""
    while True:
        before = len(wire.log), len(wire.finished)
        wire.drain()
        chosen.pump(wire)
        if (len(wire.log), len(wire.finished)) == before:
            return


def order_of(*sources: Source, also: Callable[[Scheduler], None] = lambda _: None) -> list[bytes]:
    """In which order one-letter streams are sent; the network is opened after all are queued."""
    wire, chosen = Wire(), scheduler()
    for source in sources:
        chosen.wake(source)
    also(chosen)
    run(wire, chosen)
    assert chosen.idle
    assert chosen.streams == chosen.alive == 0
    return [data for _, data in wire.log]


# Section 7.1, rule by rule. The later rule would say the opposite each time.


def test_first_subscriber_priority() -> None:
    late = Source(Flow(), rank(subscriber=9, publisher=0), [b"b"])
    early = Source(Flow(), rank(subscriber=8, publisher=255), [b"a"])
    assert order_of(late, early) == [b"a", b"b"]


@pytest.mark.parametrize("one_request", [False, True])
def test_second_publisher_priority(one_request: bool) -> None:
    flow = Flow()
    late = Source(flow, rank(publisher=9, group=0), [b"b"])
    early = Source(flow if one_request else Flow(), rank(publisher=8, group=7), [b"a"])
    assert order_of(late, early) == [b"a", b"b"]


@pytest.mark.parametrize("order", list(GroupOrder))
def test_third_the_group_order_of_the_request(order: GroupOrder) -> None:
    flow = Flow()
    sources = [
        Source(flow, rank(group=group_key(g, order), live=int(g < 2)), [b"%d" % g])
        for g in (1, 2, 0)
    ]
    expected = [b"0", b"1", b"2"]
    assert order_of(*sources) == (expected if order is GroupOrder.ASCENDING else expected[::-1])


def test_third_live_objects_before_a_fill_against_the_order() -> None:
    flow = Flow()
    fill = Source(flow, rank(against=1, group=-9, live=0), [b"b"])
    live = Source(flow, rank(group=9), [b"a"])
    assert order_of(fill, live) == [b"a", b"b"]


def test_fourth_fill_before_live_then_the_lower_subgroup() -> None:
    flow = Flow()
    sources = [
        Source(flow, rank(subgroup=2), [b"c"]),
        Source(flow, rank(subgroup=1), [b"b"]),
        Source(flow, rank(live=0, subgroup=3), [b"a"]),
    ]
    assert order_of(*sources) == [b"a", b"b", b"c"]


def test_equal_requests_take_turns() -> None:
    wire, chosen = Wire(), Scheduler(watermark=10**9, quantum=QUANTUM)
    for _ in range(3):
        chosen.wake(Source(Flow(), rank(), [bytes(QUANTUM)] * 4))
    chosen.pump(wire)
    assert [stream_id for stream_id, _ in wire.log] == [0, 1, 2] * 4


def test_a_large_object_is_cut_to_turns() -> None:
    wire, chosen = Wire(), Scheduler(watermark=10**9, quantum=QUANTUM)
    for content in (b"a", b"b"):
        chosen.wake(Source(Flow(), rank(), [content * 3 * QUANTUM]))
    chosen.pump(wire)
    assert [(s, len(data)) for s, data in wire.log] == [(0, QUANTUM), (1, QUANTUM)] * 3
    assert wire.data[1] == b"b" * 3 * QUANTUM


@pytest.mark.parametrize(
    ("path", "turn"),
    [(0, LEAST_QUANTUM), (400_000, 100_000), (1 << 30, MOST_WATERMARK // 4)],
)
def test_turns_follow_the_path_unless_they_are_fixed(path: int, turn: int) -> None:
    wire, chosen = Wire(), Scheduler(watermark=None, quantum=None)
    chosen.adapt(path)
    for content in (b"a", b"b"):
        chosen.wake(Source(Flow(), rank(), [content * MOST_WATERMARK]))
    chosen.pump(wire)
    assert wire.log[0] == (0, b"a" * min(turn, chosen.watermark))
    if chosen.watermark > turn:
        assert wire.log[1] == (1, b"b" * min(turn, chosen.watermark - turn))


def test_a_turn_leaves_no_sliver_of_an_object() -> None:
    """Objects with their headers are a little larger than a turn."""
    wire, chosen = Wire(), Scheduler(watermark=10**9, quantum=QUANTUM)
    for _ in range(2):
        chosen.wake(Source(Flow(), rank(), [bytes(QUANTUM + 100)] * 2))
    chosen.pump(wire)
    assert wire.log == [(0, bytes(QUANTUM + 100)), (1, bytes(QUANTUM + 100))] * 2


# Watermark


@pytest.mark.parametrize(
    ("path", "watermark"),
    [
        (None, FIRST_WATERMARK),
        (0, LEAST_WATERMARK),
        (100_000, 100_000),
        (1 << 30, MOST_WATERMARK),
    ],
)
def test_the_watermark_follows_the_path(path: int | None, watermark: int) -> None:
    adaptive, fixed = Scheduler(watermark=None, quantum=QUANTUM), scheduler()
    for chosen in (adaptive, fixed):
        chosen.adapt(path)
        chosen.adapt(None)
    assert adaptive.watermark == watermark
    assert fixed.watermark == WATERMARK


def test_never_more_than_the_watermark_and_a_slice() -> None:
    wire, chosen = Wire(), scheduler()
    sources = [Source(Flow(), rank(), [bytes(50_000)] * 3) for _ in range(5)]
    for source in sources:
        chosen.wake(source)
    chosen.pump(wire)
    assert WATERMARK <= wire.held <= WATERMARK + SLICE
    assert sum(source.refills for source in sources) <= 4
    for _ in range(100):
        wire.held = max(0, wire.held - 700)
        chosen.pump(wire)
        assert wire.most <= WATERMARK + SLICE
    run(wire, chosen)
    assert all(len(data) == 150_000 for data in wire.data.values())


def test_nothing_is_pulled_before_it_is_needed() -> None:
    wire, chosen = Wire(), scheduler()
    source = Source(Flow(), rank(), [bytes(WATERMARK)] * 3)
    wire.held = WATERMARK
    chosen.wake(source)
    chosen.pump(wire)
    assert source.refills == 0
    assert wire.data == {}


# Credit


def test_without_credit_a_stream_waits_and_open_ones_go_on() -> None:
    wire, chosen = Wire(credit=1), scheduler()
    first = Source(Flow(), rank(), [b"a"], end=Supply.WAIT)
    second = Source(Flow(), rank(subscriber=1), [b"b"])
    third = Source(Flow(), rank(subscriber=0), [b"c"])
    chosen.wake(first)
    chosen.pump(wire)
    for source in (second, third):
        chosen.wake(source)
    chosen.pump(wire)
    assert second.refills == third.refills == 0
    first.left.append(b"more")
    chosen.wake(first)
    chosen.pump(wire)
    assert wire.data == {0: b"amore"}
    assert not chosen.idle
    wire.credit = 2
    chosen.pump(wire)
    assert wire.data == {0: b"amore", 1: b"c"}
    chosen.reset(wire, second, 5)
    assert second.over == 1
    wire.credit = 9
    first.end = Supply.END
    chosen.wake(first)
    run(wire, chosen)
    assert chosen.idle
    assert wire.finished == {0, 1}


def test_credit_for_one_stream_opens_the_most_urgent_at_the_price_of_one() -> None:
    """However many wait."""
    wire, chosen = Wire(credit=0), scheduler()
    flows = [Flow(), Flow()]
    for n in range(1000):
        chosen.wake(Source(flows[n % 2], rank(group=999 - n), [b"%d" % (999 - n)]))
    chosen.wake(Source(Flow(), rank(publisher=1, group=5000), [b"urgent"]))
    chosen.pump(wire)
    wire.asked = 0
    for credit in range(1, 6):
        wire.credit = credit
        wire.drain()
        chosen.pump(wire)
    assert list(wire.data.values()) == [b"urgent", b"1", b"0", b"3", b"2"]  # in turns
    assert wire.asked <= 5 * 4
    assert chosen.alive == 1001 - 5


def test_what_waits_for_credit_can_get_another_priority() -> None:
    wire, chosen = Wire(credit=0), scheduler()
    flow = Flow()
    sources = [Source(flow, rank(group=n), [b"%d" % n]) for n in range(4)]
    for source in sources:
        chosen.wake(source)
    chosen.pump(wire)
    for source, group in zip(sources, (3, 2, 1, 0), strict=True):
        source.priority = rank(group=group)
        chosen.wake(source)
    chosen.reset(wire, sources[2], 0)
    wire.credit = 9
    run(wire, chosen)
    assert list(wire.data.values()) == [b"3", b"1", b"0"]
    assert chosen.idle
    assert chosen.alive == 0


class Restless(Source):
    """Is woken while it is asked for more."""

    def __init__(self, chosen: Scheduler, pieces: Sequence[bytes]) -> None:
        super().__init__(Flow(), rank(), pieces, end=Supply.WAIT)
        self.chosen = chosen

    def refill(self) -> Supply:
        if self.left:
            self.chosen.wake(self)
        return super().refill()


def test_a_stream_that_is_woken_as_it_is_opened_waits_for_no_credit() -> None:
    wire, chosen = Wire(credit=1), scheduler()
    source = Restless(chosen, [b"a"])
    chosen.wake(source)
    chosen.pump(wire)
    assert wire.data == {0: b"a"}
    assert chosen.idle
    assert source.refills == 3


def test_two_streams_never_get_the_same_id() -> None:
    """The transport names the same ID until something is sent on it."""
    wire, chosen = Wire(), scheduler()
    modest = Source(Flow(), rank(publisher=0), [b"late"], ranks=[rank(publisher=200)])
    waiting = Source(Flow(), rank(publisher=1), [], end=Supply.WAIT)
    other = Source(Flow(), rank(publisher=128), [b"soon"])
    for source in (modest, waiting, other):
        chosen.wake(source)
    run(wire, chosen)
    assert wire.data == {0: b"soon", 1: b"late"}
    assert waiting.stream_id is None
    waiting.left.append(b"x")
    waiting.end = Supply.END
    chosen.wake(waiting)
    run(wire, chosen)
    assert wire.data[2] == b"x"


def test_a_stream_without_content_is_not_opened() -> None:
    wire, chosen = Wire(), scheduler()
    sources = [Source(Flow(), rank(), [], end=end) for end in (Supply.END, Supply.RESET)]
    for source in sources:
        chosen.wake(source)
    run(wire, chosen)
    assert wire.data == {}
    assert [source.over for source in sources] == [1, 1]
    assert chosen.idle


# Ends


def test_fin_comes_with_the_last_octets() -> None:
    wire, chosen = Wire(), scheduler()
    source = Source(Flow(), rank(), [b"a", b"b"])
    chosen.wake(source)
    chosen.pump(wire)
    assert wire.finished == {0}
    assert source.over == 1
    chosen.wake(source)
    chosen.pump(wire)
    assert source.over == 1


def test_fin_can_come_later() -> None:
    wire, chosen = Wire(), scheduler()
    source = Source(Flow(), rank(), [b"a"], end=Supply.WAIT)
    chosen.wake(source)
    chosen.pump(wire)
    assert wire.finished == set()
    assert chosen.idle
    assert chosen.streams == 1
    source.end = Supply.END
    chosen.wake(source)
    chosen.pump(wire)
    assert wire.finished == {0}
    assert chosen.streams == 0


def test_resets_from_all_sides() -> None:
    wire, chosen = Wire(), scheduler()
    kinds = [Source(Flow(), rank(), [b"a"], end=Supply.WAIT) for _ in range(2)]
    kinds.append(Source(Flow(), rank(), [b"a"], end=Supply.RESET))
    for source in kinds:
        chosen.wake(source)
    chosen.pump(wire)
    assert wire.resets == {2: 77}
    chosen.stopped(wire, 0, 5)
    chosen.stopped(wire, 0, 6)
    chosen.stopped(wire, 99, 6)
    chosen.reset(wire, kinds[1], 7)
    chosen.reset(wire, kinds[1], 8)
    assert wire.resets == {2: 77, 0: 5, 1: 7}
    assert [source.over for source in kinds] == [1, 1, 1]
    for source in kinds:
        source.left.append(b"never")
        chosen.wake(source)
    chosen.pump(wire)
    assert all(data == b"a" for data in wire.data.values())
    assert chosen.idle


def test_a_queued_stream_can_be_reset_before_it_is_open() -> None:
    wire, chosen = Wire(), scheduler()
    source = Source(Flow(), rank(), [b"a"])
    chosen.wake(source)
    chosen.reset(wire, source, 1)
    chosen.pump(wire)
    assert wire.data == {}
    assert source.over == 1
    assert chosen.idle


def test_a_queued_stream_can_get_another_priority() -> None:
    flow = Flow()
    first = Source(flow, rank(subscriber=1), [b"a"])
    second = Source(flow, rank(subscriber=2), [b"b"])

    def swap(chosen: Scheduler) -> None:
        first.priority = rank(subscriber=3)
        chosen.wake(first)

    assert order_of(first, second, also=swap) == [b"b", b"a"]


def test_a_stream_is_as_urgent_as_its_next_object() -> None:
    ranks = [rank(publisher=1), rank(publisher=9)]
    fetch = Source(Flow(), rank(publisher=1), [b"a", b"c"], ranks=ranks)
    other = Source(Flow(), rank(publisher=5), [b"b"])
    assert order_of(fetch, other) == [b"a", b"b", b"c"]


def test_a_stream_that_the_peer_does_not_take_stops_no_other() -> None:
    wire, chosen = Wire(), scheduler()
    stuck = Source(Flow(), rank(publisher=1), [b"s" * 30_000])
    other = Source(Flow(), rank(publisher=2), [b"o" * 30_000])
    wire.windows[0] = 5000
    for source in (stuck, other):
        chosen.wake(source)
    run(wire, chosen)
    assert (len(wire.data[0]), len(wire.data[1])) == (5000, 30_000)
    assert wire.finished == {1}
    assert not chosen.idle
    wire.windows[0] = 30_000
    run(wire, chosen)
    assert wire.data[0] == b"s" * 30_000
    assert wire.finished == {0, 1}
    assert chosen.idle


def test_a_stream_that_fills_the_peers_window_ends() -> None:
    wire, chosen = Wire(), scheduler()
    wire.windows[0] = 5000
    chosen.wake(Source(Flow(), rank(), [b"a" * 2000, b"b" * 3000]))
    run(wire, chosen)
    assert wire.finished == {0}


@pytest.mark.parametrize("opened", [False, True])
def test_a_stream_without_credit_can_be_given_up(opened: bool) -> None:
    wire, chosen = Wire(), scheduler()
    wire.windows[0] = 100 if opened else 0
    source = Source(Flow(), rank(), [b"a" * 2000])
    chosen.wake(source)
    run(wire, chosen)
    assert len(wire.data.get(0, b"")) == wire.windows[0]
    chosen.reset(wire, source, 7)
    assert wire.resets == ({0: 7} if opened else {})
    assert chosen.idle


# All of it at once

priorities = st.builds(
    rank,
    subscriber=st.integers(0, 2),
    publisher=st.integers(0, 2),
    group=st.integers(-2, 2),
    live=st.integers(0, 1),
)
streams = st.tuples(
    st.integers(0, 3), priorities, st.lists(st.integers(1, 12_000), min_size=1, max_size=5)
)


@settings(max_examples=150)
@given(st.lists(streams, max_size=8), st.integers(1, 8), st.lists(st.integers(0, 30_000)))
def test_every_octet_arrives_in_order_and_the_urgent_ones_first(
    plan: list[tuple[int, Priority, list[int]]], credit: int, drains: list[int]
) -> None:
    wire, chosen = Wire(credit), scheduler()
    flows = [Flow() for _ in range(4)]
    sources = []
    for n, (flow, priority, sizes) in enumerate(plan):
        pieces = [bytes((n, k)) * size for k, size in enumerate(sizes)]
        sources.append((Source(flows[flow], priority, pieces), b"".join(pieces)))
        chosen.wake(sources[-1][0])
    for octets in drains:
        wire.held = max(0, wire.held - octets)
        chosen.pump(wire)
        wire.credit += 1
        assert wire.most <= WATERMARK + SLICE
    wire.credit = 1000
    run(wire, chosen)
    assert chosen.idle
    assert chosen.alive == 0
    assert wire.finished == set(range(len(plan)))
    for source, content in sources:
        assert source.stream_id is not None
        assert wire.data[source.stream_id] == content
        assert source.over == 1
    if not drains:
        # All were ready from the start: none is sent while a more urgent one has something.
        keys = {s.stream_id: (s.priority.subscriber, s.priority.publisher) for s, _ in sources}
        sent = [keys[stream_id] for stream_id, _ in wire.log]
        assert sent == sorted(sent)
