"""From the octets of data streams to whole Objects that wait for their reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from moqt.connection import Driver
from moqt.errors import MoqtError, RemoteError, StreamReset
from moqt.model import EndOfRange, Object, ObjectHeader
from moqt.protocol.streams import StreamSink

_Item = TypeVar("_Item")

MAX_WAITING = 1 << 17
"""Items that wait for a reader. Payload is bounded by credit; this bounds a flood of empty Objects."""

_ITEM_OCTETS = 64
"""What an Object, and each of its properties, counts besides its octets."""


class ItemQueue(Generic[_Item]):
    """Items of a request for one reader, with what they hold of the peer's credit."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._items: deque[tuple[_Item, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: MoqtError | None = None
        self._ended = False

    def put(self, item: _Item, octets: int) -> bool:
        """Adds an item that holds `octets` until it is read; none after the end. False when too many wait."""
        if self._ended:
            return True
        self._driver.hold(octets)
        self._items.append((item, octets))
        self._wake()
        return len(self._items) <= MAX_WAITING

    def end(self, error: MoqtError | None = None) -> None:
        """No item comes any more. The first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake()

    def clear(self) -> None:
        """Drops what nobody will read."""
        items, self._items = self._items, deque()
        self._driver.release(sum(octets for _, octets in items))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> AsyncIterator[_Item]:
        """Yields items as they come; raises the error that `end` was given after the last of them."""
        while True:
            while self._items:
                item, octets = self._items.popleft()
                self._driver.release(octets)
                yield item
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class Collector(StreamSink):
    """Puts whole Objects of one stream into the request's queue.

    An Object that is too large ends its request, by `on_fault`, and not the session: the limits are this
    end's own. An Object holds credit only once it is whole, or unfinished ones could block each other.
    """

    def __init__(
        self,
        driver: Driver,
        queue: ItemQueue[Object | EndOfRange],
        on_fault: Callable[[RemoteError], None],
    ) -> None:
        self._limit = driver.config.max_object_size
        self._unfinished = driver.unfinished
        self._queue = queue
        self._on_fault = on_fault
        self._header: ObjectHeader | None = None
        self._payload = bytearray()

    def object_begin(self, header: ObjectHeader) -> None:
        if header.payload_length > self._limit:
            size, limit = header.payload_length, self._limit
            self._on_fault(RemoteError(f"Object of {size} octets, at most {limit} are taken here"))
        else:
            self._header = header

    def payload(self, chunk: memoryview) -> None:
        if self._header is not None:
            self._payload += chunk
            if not self._unfinished.take(len(chunk)):
                self._drop()
                self._on_fault(RemoteError("too many large Objects at once"))

    def object_end(self) -> None:
        if self._header is not None:
            self._put(Object(self._header, memoryview(self._payload)), _weight(self._header))
        self._drop()

    def end_of_range(self, marker: EndOfRange) -> None:
        self._put(marker, _ITEM_OCTETS)

    def _put(self, item: Object | EndOfRange, octets: int) -> None:
        if not self._queue.put(item, octets):
            self._on_fault(RemoteError("too many Objects wait for their reader"))

    def closed(self, error: StreamReset | None) -> None:
        self._drop()

    def _drop(self) -> None:
        self._unfinished.octets -= len(self._payload)
        self._header = None
        self._payload = bytearray()


def _weight(header: ObjectHeader) -> int:
    values = (len(value) for _, value in header.properties if isinstance(value, bytes))
    return header.payload_length + sum(values) + _ITEM_OCTETS * (1 + len(header.properties))
