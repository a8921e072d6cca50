"""Credit that a source is not given before somebody has taken what it sent."""

from __future__ import annotations

from typing import cast

import pytest

from moqt.connection import Driver
from moqt.model import Location, ObjectHeader
from moqt.relay.cached import CachedGroup, CachedObject, CachedTrack
from moqt.relay.holds import Holds
from tests.support.ends import NAME, eventually

HOUR = 3600.0


class Window:
    """What of a source's window is held."""

    held = 0

    def hold(self, octets: int) -> None:
        self.held += octets

    def release(self, octets: int) -> None:
        self.held -= octets


def holds_of(window: Window, patience: float = HOUR) -> Holds:
    return Holds(cast("Driver", window), patience)


def arrived(object_id: int, payload: bytes) -> CachedObject:
    header = ObjectHeader(Location(0, object_id), len(payload), subgroup=0, priority=1)
    cached = CachedObject(CachedGroup(CachedTrack(NAME), 0), header, 0.0)
    cached.put(memoryview(payload))
    return cached


async def test_each_source_gets_its_credit_for_an_object_that_two_bring() -> None:
    windows = Window(), Window()
    first, second = map(holds_of, windows)
    cached = arrived(0, b"four")
    first.hold(cached)
    second.hold(cached)
    assert windows[0].held == 4
    cached.taken()
    assert [window.held for window in windows] == [0, 0]
    assert first.octets == second.octets == 0
    for holds in (first, second):
        holds.close()
    assert [window.held for window in windows] == [0, 0]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
async def test_what_is_taken_is_not_kept_behind_what_is_not(order: tuple[int, int]) -> None:
    window = Window()
    holds = holds_of(window)
    objects = [arrived(number, b"four") for number in range(3)]
    for cached in objects:
        holds.hold(cached)
    for number in order:
        objects[number].taken()
    assert list(holds._held) == objects[:1]
    assert holds.octets == window.held == 4
    holds.close()
    assert not holds._held
    assert not window.held


async def test_what_nobody_takes_is_held_for_a_limited_time() -> None:
    window = Window()
    holds = holds_of(window, 0.01)
    holds.hold(arrived(0, b"four"))
    taken = arrived(1, b"sixteen!")
    holds.hold(taken)
    taken.taken()
    assert window.held == 4
    await eventually(lambda: not window.held)
    holds.hold(arrived(2, b"four"))
    assert window.held == 4
    await eventually(lambda: not window.held)
