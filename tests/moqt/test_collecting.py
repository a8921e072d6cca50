"""Objects between their streams and their reader, and what they hold of the peer's credit."""

from __future__ import annotations

import asyncio

import pytest

from moqt.collecting import Collector, ItemQueue
from moqt.config import SessionConfig
from moqt.connection import Unfinished
from moqt.errors import RemoteError, StreamReset
from moqt.model import EndOfRange, Location, Object, ObjectHeader, RangeKind


class Account:
    """As much of a Driver as is needed here."""

    def __init__(self) -> None:
        self.config = SessionConfig(max_object_size=100)
        self.unfinished = Unfinished(150)
        self.held = 0

    def hold(self, octets: int) -> None:
        self.held += octets

    def release(self, octets: int) -> None:
        self.held -= octets


def queue_of(account: Account) -> ItemQueue[Object | EndOfRange]:
    return ItemQueue(account)  # type: ignore[arg-type]


def header(size: int, *, properties: tuple[tuple[int, int | bytes], ...] = ()) -> ObjectHeader:
    return ObjectHeader(Location(1, 2), size, properties=properties)


async def test_whole_objects_hold_until_they_are_read() -> None:
    account, faults = Account(), list[RemoteError]()
    queue = queue_of(account)
    sink = Collector(account, queue, faults.append)  # type: ignore[arg-type]
    sink.object_begin(header(5))
    sink.payload(memoryview(b"abc"))
    assert (account.held, account.unfinished.octets) == (0, 3)
    sink.payload(memoryview(b"de"))
    sink.object_end()
    assert (account.held, account.unfinished.octets) == (5 + 64, 0)
    sink.object_begin(header(0, properties=((4, 1), (5, b"xyz"))))
    sink.object_end()
    assert account.held == 69 + 3 * 64 + 3
    sink.end_of_range(EndOfRange(RangeKind.UNKNOWN, Location(9, 9)))
    queue.end()
    items = [item async for item in queue.read()]
    assert [i.payload for i in items if isinstance(i, Object)] == [b"abcde", b""]
    assert items[2] == EndOfRange(RangeKind.UNKNOWN, Location(9, 9))
    assert account.held == 0
    assert faults == []


async def test_an_object_that_is_cut_is_dropped() -> None:
    account = Account()
    queue = queue_of(account)
    sink = Collector(account, queue, lambda _: None)  # type: ignore[arg-type]
    sink.object_begin(header(5))
    sink.payload(memoryview(b"abc"))
    sink.closed(StreamReset(1))
    sink.closed(StreamReset(1))
    assert (account.held, account.unfinished.octets) == (0, 0)


async def test_objects_over_the_limits_are_faults() -> None:
    account, faults = Account(), list[RemoteError]()
    queue = queue_of(account)
    sinks = [Collector(account, queue, faults.append) for _ in range(2)]  # type: ignore[arg-type]
    sinks[0].object_begin(header(101))
    assert len(faults) == 1
    sinks[0].payload(memoryview(bytes(101)))
    sinks[0].object_end()
    for sink in sinks:
        sink.object_begin(header(100))
        sink.payload(memoryview(bytes(99)))
    assert len(faults) == 2
    sinks[1].payload(memoryview(bytes(1)))
    sinks[1].object_end()
    assert account.unfinished.octets == 99
    assert account.held == 0


async def test_after_the_end_nothing_is_taken() -> None:
    account = Account()
    queue = queue_of(account)
    queue.put(EndOfRange(RangeKind.UNKNOWN, Location(0, 0)), 10)
    queue.end(RemoteError("first"))
    queue.end(RemoteError("second"))
    assert queue.put(EndOfRange(RangeKind.UNKNOWN, Location(0, 1)), 10)
    assert account.held == 10
    found = queue.read().__aiter__()
    await anext(found)
    with pytest.raises(RemoteError, match="first"):
        await anext(found)


async def test_clearing_lets_go() -> None:
    account = Account()
    queue = queue_of(account)
    for _ in range(3):
        queue.put(EndOfRange(RangeKind.UNKNOWN, Location(0, 0)), 7)
    queue.clear()
    assert account.held == 0


async def test_a_reader_is_woken() -> None:
    account = Account()
    queue = queue_of(account)
    found = []

    async def read() -> None:
        found.append(await anext(queue.read().__aiter__()))

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    marker = EndOfRange(RangeKind.UNKNOWN, Location(0, 0))
    queue.put(marker, 0)
    await reader
    assert found == [marker]
