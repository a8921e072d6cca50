"""What counts as sent of a stream that passes a lane on."""

from __future__ import annotations

import pytest

from moqt.model import Location, ObjectHeader
from moqt.protocol.scheduler import Flow, Priority, Supply
from moqt.relay.cached import CachedGroup, CachedObject, CachedTrack, State
from moqt.relay.incoming import Lane
from moqt.relay.senders import LiveSender
from moqt.wire.data import SubgroupHeader
from tests.support.ends import NAME


class Store:
    """Counts the streams that have an Object to send."""

    def pin(self, cached: CachedObject) -> None:
        cached.pins += 1

    def unpin(self, cached: CachedObject) -> None:
        cached.pins -= 1

    def expired(self, cached: CachedObject) -> bool:
        return False


def stream(store: Store) -> LiveSender:
    header = SubgroupHeader(0, 0, 0, 128)
    return LiveSender(
        Flow(),
        Priority(128, 128, 0, 0, 1, 0),
        store,
        Lane(header),
        header,
        wake=lambda _: None,
        on_finished=lambda _: None,
        on_pending=lambda _: None,
    )


def whole(object_id: int, group: CachedGroup) -> CachedObject:
    cached = CachedObject(group, ObjectHeader(Location(0, object_id), 4, subgroup=0), 0.0)
    cached.put(memoryview(b"four"))
    cached.state = State.WHOLE
    return cached


@pytest.mark.parametrize("pulled", range(4))
def test_what_a_stream_leaves_unsent_is_not_taken_while_another_has_it_to_send(pulled: int) -> None:
    """Of Objects of one size, of which it has sent some."""
    store, taken = Store(), list[int]()
    first, second = stream(store), stream(store)
    group = CachedGroup(CachedTrack(NAME), 0)
    for number in range(3):
        cached = whole(number, group)
        cached.on_taken = lambda number=number: taken.append(number)
        for sender in (first, second):
            sender.add(cached)
    for _ in range(pulled):
        assert first.refill() is Supply.MORE
    first.finished()
    assert taken == list(range(pulled))
    second.finished()
    assert sorted(taken) == [0, 1, 2]
