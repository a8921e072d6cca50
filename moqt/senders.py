"""Outgoing data streams: the live Objects of a Group, a range for a fetch or fill, and the End of Track marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from moqt.errors import PayloadUnavailable, StreamErrorCode
from moqt.model import GroupOrder, Location, ObjectHeader, ObjectStatus
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, Supply, group_key
from moqt.track import Group, StoredObject, Track
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader


class _Sender(OutgoingStream):
    """A stream of Objects of one track. `on_finished` hears of its end, `on_fault` of unreadable payload."""

    __slots__ = ("_on_fault", "_on_finished", "matches")

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        *,
        matches: Callable[[int, StoredObject], bool],
        on_finished: Callable[[OutgoingStream], None],
        on_fault: Callable[[PayloadUnavailable], None],
    ) -> None:
        super().__init__(flow, priority)
        self.matches = matches
        self._on_finished = on_finished
        self._on_fault = on_fault

    def finished(self) -> None:
        self._on_finished(self)

    def _put(self, prefix: bytes, stored: StoredObject) -> bool:
        """Makes `prefix` and the payload the next pieces; False, and nothing is put, if it cannot be read."""
        try:
            self.pieces.extend(stored.pieces(prefix))
        except PayloadUnavailable as fault:
            self.reset_code = StreamErrorCode.INTERNAL_ERROR
            self._on_fault(fault)
            return False
        return True


class SubgroupSender(_Sender):
    """The Objects of a Group from position `start` on, as they are published, then End of Group and FIN.

    A stream that leaves out what the subscription asked for at first ends with a reset instead.
    """

    __slots__ = (
        "_encoder",
        "_group",
        "_index",
        "_marked",
        "_prefix",
        "_stop",
        "is_through",
        "leaves_out",
    )

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        group: Group,
        start: int,
        alias: int,
        *,
        object_properties: bool,
        matches: Callable[[int, StoredObject], bool],
        on_finished: Callable[[OutgoingStream], None],
        on_fault: Callable[[PayloadUnavailable], None],
    ) -> None:
        super().__init__(
            flow, priority, matches=matches, on_finished=on_finished, on_fault=on_fault
        )
        header = SubgroupHeader(
            alias,
            group.group_id,
            0,
            priority.publisher,
            has_properties=object_properties,
            end_of_group=group.complete,
            first_object=start == 0,
        )
        self._group = group
        self._index = start
        self._encoder = SubgroupEncoder(header)
        self._prefix = header.encode()
        self._marked = group.complete
        self._stop: int | None = None
        self.is_through = False
        """Its last octets were pulled; it was not reset."""
        self.leaves_out = False

    @property
    def group_id(self) -> int:
        return self._group.group_id

    @property
    def next_location(self) -> Location:
        """Where the next Object of this stream is, at the least."""
        group = self._group
        upcoming = group.objects[self._index : self._index + 1]
        return Location(group.group_id, upcoming[0].object_id if upcoming else group.end_id)

    def cut(self, *, is_whole: bool) -> None:
        """Ends the stream after what is published by now; unless that is all there will be, by a reset."""
        if not self._group.ended:
            self._stop = len(self._group.objects)
            self.leaves_out |= not is_whole

    def refill(self) -> Supply:
        group = self._group
        stop = len(group.objects) if self._stop is None else self._stop
        while self._index < stop:
            stored = group.objects[self._index]
            self._index += 1
            if self.matches(group.group_id, stored):
                prefix = self._object(stored, len(stored.payload))
                return Supply.MORE if self._put(prefix, stored) else Supply.RESET
        if self._stop is not None:
            return self._end()
        if not group.ended:
            return Supply.WAIT
        if self._marked or not self.matches(group.group_id, group.end_marker):
            return self._end()
        self._marked = True
        self.pieces.append(self._object(group.end_marker, 0, ObjectStatus.END_OF_GROUP))
        return Supply.MORE

    def _end(self) -> Supply:
        if self.leaves_out:
            self.reset_code = StreamErrorCode.CANCELLED
            return Supply.RESET
        self.is_through = True
        return Supply.END

    def _object(
        self, stored: StoredObject, length: int, status: ObjectStatus = ObjectStatus.NORMAL
    ) -> bytes:
        prefix, self._prefix = self._prefix, b""
        return prefix + self._encoder.object(stored.object_id, length, status, stored.properties)


class EndOfTrackSender(OutgoingStream):
    """The End of Track marker on a stream of its own."""

    __slots__ = ("_octets", "_on_finished")

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        location: Location,
        alias: int,
        on_finished: Callable[[OutgoingStream], None],
    ) -> None:
        super().__init__(flow, priority)
        header = SubgroupHeader(alias, location.group, 0, priority.publisher, first_object=True)
        self._octets = header.encode() + SubgroupEncoder(header).object(
            location.object, 0, status=ObjectStatus.END_OF_TRACK
        )
        self._on_finished = on_finished

    def refill(self) -> Supply:
        if not self._octets:
            return Supply.END
        self.pieces.append(self._octets)
        self._octets = b""
        return Supply.MORE

    def finished(self) -> None:
        self._on_finished(self)


class RangeSender(_Sender):
    """What is published of a range, in Group Order, for a FETCH or a fill: then FIN.

    What cannot be sent to its end is reset after its header, which says whose answer it is.
    """

    __slots__ = (
        "_broken",
        "_encoder",
        "_items",
        "_order",
        "_prefix",
        "_ranked",
        "_track",
    )

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        track: Track,
        request_id: int,
        span: tuple[Location, Location],
        order: GroupOrder,
        *,
        matches: Callable[[int, StoredObject], bool],
        on_finished: Callable[[OutgoingStream], None],
        on_fault: Callable[[PayloadUnavailable], None],
    ) -> None:
        super().__init__(
            flow, priority, matches=matches, on_finished=on_finished, on_fault=on_fault
        )
        self._encoder = FetchEncoder(request_id, order)
        self._prefix = self._encoder.header
        self._order = order
        self._track = track
        self._broken = False
        self._ranked: Group | None = None
        first, last = span
        groups = [g for g in track.groups.values() if first.group <= g.group_id <= last.group]
        if order is GroupOrder.DESCENDING:
            groups.reverse()
        self._items = _walk(groups, first, last)
        if groups:
            self._rank(groups[0])

    def refill(self) -> Supply:
        if self._broken or self._track.failed is not None:
            return self._break()
        for group, stored in self._items:
            if not self.matches(group.group_id, stored):
                continue
            header = ObjectHeader(
                Location(group.group_id, stored.object_id),
                len(stored.payload),
                subgroup=0,
                priority=group.priority,
                properties=stored.properties,
            )
            if not self._put(self._prefix + self._encoder.object(header), stored):
                self._broken = True
                return self._break()
            self._prefix = b""
            self._rank(group)
            return Supply.MORE
        return self._put_prefix() or Supply.END

    def _break(self) -> Supply:
        self.reset_code = StreamErrorCode.INTERNAL_ERROR
        return self._put_prefix() or Supply.RESET

    def _put_prefix(self) -> Supply | None:
        """The header of the stream, unless it was sent."""
        if not self._prefix:
            return None
        self.pieces.append(self._prefix)
        self._prefix = b""
        return Supply.MORE

    def _rank(self, group: Group) -> None:
        """A fetch stream is as urgent as its next Object."""
        if group is not self._ranked:
            self._ranked = group
            self.priority = self.priority._replace(
                publisher=group.priority, group=group_key(group.group_id, self._order)
            )


def _walk(
    groups: list[Group], start: Location, last: Location
) -> Iterator[tuple[Group, StoredObject]]:
    for group in groups:
        first = group.index(start.object) if group.group_id == start.group else 0
        stop = group.index(last.object + 1) if group.group_id == last.group else None
        for stored in group.objects[first:stop]:
            yield group, stored
