"""Outgoing data streams of a relay that send Objects as far as they have arrived, and those that pass a lane on."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

from moqt.errors import StreamErrorCode
from moqt.model import ObjectHeader
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, Supply
from moqt.relay.cached import CachedObject, State
from moqt.relay.incoming import Lane
from moqt.wire.data import SubgroupEncoder, SubgroupHeader

PIECE = 1 << 16
"""Octets of an Object that are taken from the cache at a time."""


class Store(Protocol):
    """What senders need of a track."""

    def pin(self, cached: CachedObject) -> None:
        """The Object stays where it is until `unpin`."""

    def unpin(self, cached: CachedObject) -> None: ...
    def expired(self, cached: CachedObject) -> bool: ...


class Sender(OutgoingStream):
    """Sends one Object after another, each as far as it is here."""

    __slots__ = ("_current", "_offset", "_on_finished", "_prefix", "_store", "wake_up")

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        store: Store,
        prefix: bytes,
        *,
        wake: Callable[[OutgoingStream], None],
        on_finished: Callable[[OutgoingStream], None],
    ) -> None:
        super().__init__(flow, priority)
        self._store = store
        self._prefix = prefix
        self._current: CachedObject | None = None
        self._offset = 0
        self._on_finished = on_finished
        self.wake_up: Callable[[], None] = lambda: wake(self)
        """Called when there is more to send."""

    def refill(self) -> Supply:
        return self._continue() if self._current is not None else self._next()

    @abstractmethod
    def _next(self) -> Supply:
        """Begins the next item."""

    @abstractmethod
    def _lost(self, cached: CachedObject) -> Supply:
        """The rest of the current Object will not come."""

    def _begin(self, cached: CachedObject, header: bytes) -> Supply:
        self._current, self._offset = cached, 0
        self._prefix += header
        return self._continue()

    def _continue(self) -> Supply:
        cached = self._current
        assert cached is not None
        if cached.state is State.DEAD:
            return self._lost(cached)
        data = cached.read(self._offset, PIECE)
        self._offset += len(data)
        prefix, self._prefix = self._prefix, b""
        if self._offset == cached.header.payload_length:
            self._current = None
            self._sent(cached)
        if prefix or data:
            self._put(prefix, data)
            return Supply.MORE
        if self.wake_up not in cached.watchers:
            cached.watchers.append(self.wake_up)
        return Supply.WAIT

    def _put(self, prefix: bytes, data: bytes | memoryview) -> None:
        if len(data) <= 1024:
            self.pieces.append(prefix + bytes(data))
        else:
            if prefix:
                self.pieces.append(prefix)
            self.pieces.append(data)

    def _sent(self, cached: CachedObject) -> None:
        """All of it was handed over."""
        self._store.unpin(cached)

    def finished(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            self._sent(current)
        self._on_finished(self)


class LiveSender(Sender):
    """Passes a lane on: the same Objects in the same order, its FIN as FIN and its reset as a reset."""

    __slots__ = (
        "_counted",
        "_encoder",
        "_on_pending",
        "_queue",
        "_stop",
        "is_through",
        "key",
        "lane",
        "last",
        "leaves_out",
    )

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        store: Store,
        lane: Lane,
        header: SubgroupHeader,
        *,
        wake: Callable[[OutgoingStream], None],
        on_finished: Callable[[OutgoingStream], None],
        on_pending: Callable[[int], None],
    ) -> None:
        super().__init__(flow, priority, store, header.encode(), wake=wake, on_finished=on_finished)
        self.lane = lane
        self.last: int | None = None
        """The ID of the last Object or marker that was added, or left out because nobody wants it."""
        self.key = (header.group, header.subgroup)
        self.is_through = False
        """It ended as it had to; otherwise the subscriber stopped it."""
        self.leaves_out = False
        """What the subscription asked for at first is not all sent: no FIN."""
        self._encoder = SubgroupEncoder(header)
        self._queue: deque[CachedObject | ObjectHeader] = deque()
        self._counted: dict[CachedObject, int] = {}
        self._on_pending = on_pending
        self._stop = False

    @property
    def group_id(self) -> int:
        return self.lane.header.group

    def precedes(self, lane: Lane, object_id: int) -> bool:
        """Whether what comes next on a lane is next here, so that this stream may pass that lane on."""
        is_next = self.last is not None and self.last in (object_id - 1, lane.previous)
        return is_next and self.fits(lane)

    def fits(self, lane: Lane) -> bool:
        """Whether a lane says of its Group and its Objects what this stream's header does."""
        mine, other = self.lane.header, lane.header
        return (mine.end_of_group, mine.has_properties) == (
            other.end_of_group,
            other.has_properties,
        )

    def add(self, item: CachedObject | ObjectHeader) -> None:
        """One more item of the lane."""
        if isinstance(item, CachedObject):
            self._store.pin(item)
            self._queue.append(item)
            self._counted[item] = 0
            if item.state is State.WHOLE:
                self._whole(item)
            else:
                item.on_whole.append(self._whole)
        else:
            self._queue.append(item)

    def _whole(self, cached: CachedObject) -> None:
        """From now on it counts as something that waits for the subscriber."""
        if self._counted.get(cached) == 0:
            self._counted[cached] = cached.weight
            self._on_pending(cached.weight)

    def lane_closed(self) -> None:
        if not self.closed:
            self.wake_up()

    def cut(self, *, is_whole: bool) -> None:
        """Ends the stream after what is queued, without a FIN unless that is all there will be."""
        self._stop = True
        self.leaves_out |= not is_whole

    def _next(self) -> Supply:
        if not self._queue:
            return self._idle()
        item = self._queue.popleft()
        location = item.location
        if isinstance(item, ObjectHeader):
            self._prefix += self._encoder.object(location.object, 0, item.status)
            prefix, self._prefix = self._prefix, b""
            self._put(prefix, b"")
            return Supply.MORE
        self._current, self._offset = item, 0
        if item.state is State.DEAD or self._store.expired(item):
            return self._lost(item)
        header = item.header
        octets = self._encoder.object(
            location.object, header.payload_length, header.status, header.properties
        )
        return self._begin(item, octets)

    def _idle(self) -> Supply:
        if self.lane.reset_code is None and not self._stop and not self.lane.ended:
            return Supply.WAIT
        self.is_through = True
        if self.lane.reset_code is not None:
            self.reset_code = self.lane.reset_code
            return Supply.RESET
        if self.leaves_out:
            self.reset_code = StreamErrorCode.CANCELLED
            return Supply.RESET
        return Supply.END

    def _lost(self, cached: CachedObject) -> Supply:
        self.is_through = True
        code = self.lane.reset_code
        self.reset_code = StreamErrorCode.INTERNAL_ERROR if code is None else code
        return Supply.RESET

    def _sent(self, cached: CachedObject) -> None:
        super()._sent(cached)
        if self._offset == cached.header.payload_length or not cached.pins:
            cached.taken()
        counted = self._counted.pop(cached, 0)
        if counted:
            self._on_pending(-counted)

    def finished(self) -> None:
        queue, self._queue = self._queue, deque()
        self._offset = 0  # that of what was sent last; of these nothing was
        for item in queue:
            if isinstance(item, CachedObject):
                self._sent(item)
        super().finished()
