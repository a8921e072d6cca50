"""Which stream's octets go to the transport next (draft-22 section 7.1).

What a transport holds is not overtaken any more, and some QUIC libraries send it in an order of their own. So it is
given little: while it holds less than a watermark of unsent octets, the scheduler pulls more from the stream that is
most urgent at this moment. Content is pulled, not pushed: nothing is read or framed before it is about to be sent, and
nothing queues for a slow peer.

The order: Subscriber Priority; Publisher Priority; within one request its Group Order, fill before live, and the lower
Subgroup ID. Requests that are equal in the first two take turns of a quantum.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from itertools import chain, count
from typing import NamedTuple, Protocol, TypeAlias

from moqt.model import GroupOrder

Octets: TypeAlias = bytes | bytearray | memoryview

LEAST_WATERMARK = 64 << 10
"""What a slow or short path is given; less makes the turns between network and scheduler too many."""
MOST_WATERMARK = 1 << 20
"""What a fast and long path is given; more would only wait."""
FIRST_WATERMARK = 256 << 10
"""Until the path is known."""
LEAST_QUANTUM = 64 << 10
"""A turn of those that are equal. Longer ones on a fast path give both ends fewer parts of Objects to put together."""
_SLIVER = 4096
"""A watermark or a turn that is nearly over leaves no smaller part of an Object before or after it."""


class Priority(NamedTuple):
    """Sorts the streams of one request; smaller is sooner."""

    subscriber: int
    publisher: int
    against_order: int
    """1 on a fill whose Group Order is not its subscription's: live Objects go first."""
    group: int
    live: int
    """0 on a fill, 1 on live streams."""
    subgroup: int


def group_key(group: int, order: GroupOrder) -> int:
    """A number that is smaller the sooner `group` comes in `order`."""
    return group if order is GroupOrder.ASCENDING else -group


class Supply(Enum):
    """What `OutgoingStream.refill` found."""

    MORE = auto()
    """Pieces were put."""
    WAIT = auto()
    """Nothing yet; the owner calls `Scheduler.wake` when there is."""
    END = auto()
    """Nothing will come any more: FIN. A stream that had nothing at all is not opened."""
    RESET = auto()
    """The stream cannot go on: RESET_STREAM with `reset_code`."""


class Port(Protocol):
    """What the scheduler needs of a connection."""

    def open_stream(self, *, bidirectional: bool) -> int | None: ...
    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None: ...
    def reset(self, stream_id: int, code: int) -> None: ...
    def unsent(self) -> int: ...
    def data_credit(self) -> int: ...
    def stream_credit(self, stream_id: int) -> int: ...


class Flow:
    """The streams of one request; requests of equal priority take turns."""

    __slots__ = ("opened", "turn", "unopened")

    def __init__(self) -> None:
        self.opened = _Queue(self)
        self.unopened = _Queue(self)
        self.turn = 0


class _Queue:
    """Streams of a flow by their priority. What leaves from the middle stays in the heap until it comes up or half of
    the heap is like it: any number can be woken, sorted anew and reset, each at the price of a few."""

    __slots__ = ("_gone", "_heap", "flow")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._heap: list[_Entry] = []
        self._gone = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def head(self) -> _Entry:
        return self._heap[0]

    def push(self, entry: _Entry) -> None:
        entry.stream.entry = entry
        heapq.heappush(self._heap, entry)

    def discard(self, stream: OutgoingStream) -> None:
        """Takes out a stream that is in it."""
        stream.entry = None
        self._gone += 1
        while self._heap and _is_gone(self._heap[0]):
            heapq.heappop(self._heap)
            self._gone -= 1
        if self._gone > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if not _is_gone(entry)]
            heapq.heapify(self._heap)
            self._gone = 0


def _is_gone(entry: _Entry) -> bool:
    return entry.stream.entry is not entry


class OutgoingStream(ABC):
    """One unidirectional stream to be. Subclasses override `refill`, and `finished` if they care."""

    __slots__ = (
        "closed",
        "entry",
        "flow",
        "known",
        "parked",
        "pieces",
        "priority",
        "reset_code",
        "stream_id",
    )

    def __init__(self, flow: Flow, priority: Priority) -> None:
        self.flow = flow
        self.priority = priority
        self.pieces: deque[Octets] = deque()
        self.stream_id: int | None = None
        self.entry: _Entry | None = None
        """What the queue of its flow has of it."""
        self.parked = False
        self.closed = False
        self.known = False
        self.reset_code = 0

    @property
    def queued(self) -> bool:
        """Whether it waits for its turn."""
        return self.entry is not None

    @abstractmethod
    def refill(self) -> Supply:
        """Puts the next Object's octets into `pieces`, and sets `priority` to what it is sent with."""

    def finished(self) -> None:  # noqa: B027 - few care
        """FIN or RESET_STREAM was handed to the transport."""


class _Entry(NamedTuple):
    """Sorts the streams of one queue; never comes to the last two."""

    priority: Priority
    """What it was queued with."""
    number: int
    """For those that are equal in it."""
    stream: OutgoingStream
    queue: _Queue


class Scheduler:
    """Feeds one connection."""

    def __init__(self, *, watermark: int | None, quantum: int | None) -> None:
        self.watermark = FIRST_WATERMARK if watermark is None else watermark
        self._adapts = watermark is None
        self._quantum = quantum
        self._opened: set[_Queue] = set()
        self._unopened: set[_Queue] = set()
        """Those whose streams wait for the peer to let them be opened, as well as for their turn."""
        self._held_up: list[OutgoingStream] = []
        """Open ones of which the peer takes no more at present: others go on meanwhile."""
        self._by_id: dict[int, OutgoingStream] = {}
        self.alive = 0
        """Streams that were woken and are not sent to their end, open or not."""
        self._sequence = count()
        self._turns = count(1)

    @property
    def streams(self) -> int:
        """Data streams that are open towards the peer."""
        return len(self._by_id)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be pulled."""
        return not (self._opened or self._unopened or self._held_up)

    def adapt(self, path: int | None) -> None:
        """Follows what the path holds, in octets, unless it is unknown or the watermark is fixed."""
        if self._adapts and path is not None:
            self.watermark = min(max(path, LEAST_WATERMARK), MOST_WATERMARK)

    def wake(self, stream: OutgoingStream) -> None:
        """There is something to pull from `stream`: at first, after WAIT, or with a new priority."""
        if stream.closed or stream.parked:
            return
        if not stream.known:
            stream.known = True
            self.alive += 1
        self._unqueue(stream)
        flow = stream.flow
        if not (flow.opened or flow.unopened):
            flow.turn = next(self._turns)
        is_open = stream.stream_id is not None
        queue = flow.opened if is_open else flow.unopened
        queue.push(_Entry(stream.priority, next(self._sequence), stream, queue))
        (self._opened if is_open else self._unopened).add(queue)

    def _unqueue(self, stream: OutgoingStream) -> None:
        if stream.entry is not None:
            queue = stream.entry.queue
            queue.discard(stream)
            if not queue:
                self._opened.discard(queue)
                self._unopened.discard(queue)

    def reset(self, port: Port, stream: OutgoingStream, code: int) -> None:
        """Gives a stream up; nothing more is pulled from it."""
        if stream.closed:
            return
        self._unqueue(stream)
        if stream.parked:
            self._held_up.remove(stream)
        if stream.stream_id is not None:
            port.reset(stream.stream_id, code)
        self._close(stream)

    def stopped(self, port: Port, stream_id: int, code: int) -> None:
        """The peer sent STOP_SENDING."""
        stream = self._by_id.get(stream_id)
        if stream is not None:
            self.reset(port, stream, code)

    def _close(self, stream: OutgoingStream) -> None:
        stream.closed = True
        self.alive -= stream.known
        self._unqueue(stream)
        stream.pieces.clear()
        if stream.stream_id is not None:
            self._by_id.pop(stream.stream_id, None)
        stream.finished()

    def pump(self, port: Port) -> None:
        """Hands over until the transport holds a watermark, or nothing is left, or credit is."""
        self._unpark(port)
        while (room := min(self.watermark - port.unsent(), port.data_credit())) > 0:
            entry = self._most_urgent(port)
            if entry is None:
                break
            stream, flow = entry.stream, entry.stream.flow
            self._unqueue(stream)
            stream_id = stream.stream_id
            if stream_id is None:
                stream_id = port.open_stream(bidirectional=False)
                assert stream_id is not None
            supply = Supply.MORE if stream.pieces else stream.refill()
            if supply is Supply.MORE and stream.priority > entry.priority:
                self.wake(stream)  # what it has is less urgent than was thought
                continue
            credit = port.stream_credit(stream_id)
            if supply is Supply.MORE and credit <= 0:
                stream.parked = True
                self._held_up.append(stream)
                continue
            turn = self._quantum or max(self.watermark // 4, LEAST_QUANTUM)
            if self._serve(port, stream, supply, min(room, turn), credit):
                self.wake(stream)
            flow.turn = next(self._turns)

    def _most_urgent(self, port: Port) -> _Entry | None:
        """What is next, of the streams that are open or may be opened now."""
        queues: Iterable[_Queue] = self._opened
        if self._unopened and port.open_stream(bidirectional=False) is not None:
            queues = chain(self._opened, self._unopened)
        queue = min(queues, key=_urgency, default=None)
        return None if queue is None else queue.head

    def _unpark(self, port: Port) -> None:
        """Wakes those of which the peer takes more now."""
        ready = []
        for stream in tuple(self._held_up):
            stream_id = stream.stream_id
            if stream_id is None or port.stream_credit(stream_id) > 0:
                self._held_up.remove(stream)
                ready.append(stream)
        for stream in ready:
            stream.parked = False
            self.wake(stream)

    def _serve(
        self, port: Port, stream: OutgoingStream, supply: Supply, budget: int, credit: int
    ) -> bool:
        """Feeds about `budget` octets, no more than `credit`; whether the stream has more to be pulled now.

        A stream is opened with its first octets and not before: until then its ID is free for others.
        """
        served = stream.priority
        pieces = stream.pieces
        while supply is Supply.MORE and min(budget, credit) > 0 and stream.priority <= served:
            piece = pieces[0]
            if len(piece) > min(budget + _SLIVER, credit):
                room = min(max(budget, _SLIVER), credit)
                pieces[0] = memoryview(piece)[room:]
                piece = memoryview(piece)[:room]
            else:
                pieces.popleft()
            budget -= len(piece)
            credit -= len(piece)
            if stream.stream_id is None:
                self._open(port, stream)
            if not pieces:
                supply = stream.refill()
            assert stream.stream_id is not None
            port.send(stream.stream_id, piece, supply is Supply.END)
            if supply is Supply.END:
                self._close(stream)
                return False
        if supply is Supply.END:
            if stream.stream_id is not None:
                port.send(stream.stream_id, b"", True)
            self._close(stream)
        elif supply is Supply.RESET:
            if stream.stream_id is not None:
                port.reset(stream.stream_id, stream.reset_code)
            self._close(stream)
        return supply is Supply.MORE

    def _open(self, port: Port, stream: OutgoingStream) -> None:
        stream.stream_id = port.open_stream(bidirectional=False)
        assert stream.stream_id is not None
        self._by_id[stream.stream_id] = stream
        if stream.queued:  # while it was refilled: it waits for no credit to be opened any more
            self.wake(stream)


def _urgency(queue: _Queue) -> tuple[int, int, int, Priority, int]:
    priority = queue.head.priority
    return priority.subscriber, priority.publisher, queue.flow.turn, priority, queue.head.number
