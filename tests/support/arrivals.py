"""Tracks whose payload is counted when the scheduler pulls it, and a receiver that counts what arrives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from moqt import (
    FullTrackName,
    GroupOrder,
    IncomingStream,
    Location,
    ObjectHeader,
    ObjectStatus,
    StreamSink,
    Track,
)
from moqt.errors import StreamReset

PATIENCE = 60.0
NAMESPACE = (b"tests",)


class Ledger:
    """What was pulled for sending: octets of payload by name of the track, and whose, in order."""

    def __init__(self) -> None:
        self.pulled: Counter[bytes] = Counter()
        self.order: list[bytes] = []

    @property
    def total(self) -> int:
        """Of all tracks."""
        return self.pulled.total()


class CountedPayload:
    """`size` octets, made when they are about to be sent."""

    def __init__(self, ledger: Ledger, name: bytes, size: int) -> None:
        self._ledger = ledger
        self._name = name
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self, prefix: bytes = b"") -> bytes:
        self._ledger.order.append(self._name)
        self._ledger.pulled[self._name] += self._size
        return prefix + bytes(self._size)


class CountedTrack(Track):
    """A track of Groups that are added whole; Publisher Priorities as KVCS gives them to layers."""

    def __init__(self, name: bytes, ledger: Ledger, *, priority: int = 128) -> None:
        super().__init__(FullTrackName(NAMESPACE, name), default_priority=priority)
        self._ledger = ledger

    def put(self, group: int, objects: int, size: int, *, priority: int) -> None:
        """One Group of equal Objects, and its end."""
        for number in range(objects):
            payload = CountedPayload(self._ledger, self.name.name, size)
            self.add(Location(group, number), payload, priority=priority)
        self.end_group(group)


class Arrivals:
    """What came of any number of tracks, in the order in which it came."""

    def __init__(self) -> None:
        self.octets: Counter[bytes] = Counter()
        """Payload by track."""
        self.groups: list[tuple[bytes, int]] = []
        """Tracks and Groups, as the last octet of each Group came."""
        self.octets_then: dict[tuple[bytes, int], Counter[bytes]] = {}
        """`octets` at that moment: more may have come before a test sees it."""
        self.on_octets: Callable[[int], None] = lambda octets: None
        """Called for every slice of payload."""
        self._left: Counter[tuple[bytes, int]] = Counter()
        self._news = asyncio.Event()

    def receiver(self, name: bytes, objects: int) -> TrackArrivals:
        """For a subscription to a track whose Groups have `objects` Objects."""
        return TrackArrivals(self, name, objects)

    @property
    def total(self) -> int:
        """Payload of all tracks."""
        return self.octets.total()

    def took(self, name: bytes, octets: int) -> None:
        """A slice of payload came."""
        self.octets[name] += octets
        self.on_octets(octets)
        self._news.set()

    def object_ended(self, name: bytes, group: int, objects: int) -> None:
        """An Object is whole."""
        self._left[name, group] += 1
        if self._left[name, group] == objects:
            self.groups.append((name, group))
            self.octets_then[name, group] = Counter(self.octets)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for an arrival after which the condition holds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()


class TrackArrivals:
    """A moqt Receiver for one track."""

    group_order = GroupOrder.ASCENDING

    def __init__(self, arrivals: Arrivals, name: bytes, objects: int) -> None:
        self.arrivals = arrivals
        self.name = name
        self.objects = objects
        self.resets: list[StreamReset] = []

    def open_stream(self, stream: IncomingStream) -> StreamSink:
        return _Sink(self)


class _Sink(StreamSink):
    def __init__(self, owner: TrackArrivals) -> None:
        self._owner = owner
        self._group: int | None = None

    def object_begin(self, header: ObjectHeader) -> None:
        is_normal = header.status is ObjectStatus.NORMAL
        self._group = header.location.group if is_normal else None

    def payload(self, chunk: memoryview) -> None:
        self._owner.arrivals.took(self._owner.name, len(chunk))

    def object_end(self) -> None:
        owner = self._owner
        if self._group is not None:
            owner.arrivals.object_ended(owner.name, self._group, owner.objects)

    def closed(self, error: StreamReset | None) -> None:
        if error is not None:
            self._owner.resets.append(error)
