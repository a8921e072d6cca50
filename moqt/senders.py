"""Outgoing data streams: the live Objects of a Group, a range for a fetch or fill, and the End of Track marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from moqt.errors import PayloadUnavailable, StreamErrorCode
from moqt.model import GroupOrder, Location, ObjectHeader, ObjectStatus
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, Supply, group_key
from moqt.track import Group, StoredObject, Track
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader
from moqt.wire.filters import LocationRange

_JOIN = 1024
"""Payload up to this size is joined with its header: one call to the transport instead of two."""


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

    def _read(self, stored: StoredObject) -> bytes | memoryview | None:
        try:
            return stored.read()
        except PayloadUnavailable as fault:
            self.reset_code = StreamErrorCode.INTERNAL_ERROR
            self._on_fault(fault)
            return None

    def _put(self, prefix: bytes, payload: bytes | memoryview) -> Supply:
        if len(payload) <= _JOIN:
            self.pieces.append(prefix + bytes(payload))
        else:
            self.pieces.append(prefix)
            self.pieces.append(payload)
        return Supply.MORE


class SubgroupSender(_Sender):
    """The Objects of a Group from position `start` on, as they are published, then End of Group and FIN."""

    __slots__ = ("_encoder", "_group", "_index", "_marked", "_prefix")

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

    @property
    def group_id(self) -> int:
        return self._group.group_id

    def refill(self) -> Supply:
        group = self._group
        while self._index < len(group.objects):
            stored = group.objects[self._index]
            self._index += 1
            if self.matches(group.group_id, stored):
                payload = self._read(stored)
                if payload is None:
                    return Supply.RESET
                return self._put(
                    self._take_prefix()
                    + self._encoder.object(
                        stored.object_id, len(payload), properties=stored.properties
                    ),
                    payload,
                )
        if not group.ended:
            return Supply.WAIT
        if self._marked:
            return Supply.END
        self._marked = True
        status = ObjectStatus.END_OF_GROUP
        return self._put(
            self._take_prefix() + self._encoder.object(group.end_id, 0, status=status), b""
        )

    def _take_prefix(self) -> bytes:
        prefix, self._prefix = self._prefix, b""
        return prefix


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
    """What is published of a range, in Group Order, for a FETCH or a fill: then FIN."""

    __slots__ = ("_encoder", "_items", "_order", "_prefix")

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        track: Track,
        request_id: int,
        span: LocationRange,
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
        assert track.largest is not None
        last = track.largest if span.end is None else min(span.end, track.largest)
        groups = [g for g in track.groups.values() if span.start.group <= g.group_id <= last.group]
        if order is GroupOrder.DESCENDING:
            groups.reverse()
        self._items = _walk(groups, span.start, last)

    def refill(self) -> Supply:
        for group, stored in self._items:
            if not self.matches(group.group_id, stored):
                continue
            payload = self._read(stored)
            if payload is None:
                return Supply.RESET
            self.priority = self.priority._replace(
                publisher=group.priority, group=group_key(group.group_id, self._order)
            )
            header = ObjectHeader(
                Location(group.group_id, stored.object_id),
                len(payload),
                subgroup=0,
                priority=group.priority,
                properties=stored.properties,
            )
            prefix, self._prefix = self._prefix, b""
            return self._put(prefix + self._encoder.object(header), payload)
        if self._prefix:
            prefix, self._prefix = self._prefix, b""
            return self._put(prefix, b"")
        return Supply.END


def _walk(
    groups: list[Group], start: Location, last: Location
) -> Iterator[tuple[Group, StoredObject]]:
    for group in groups:
        first = group.index(start.object) if group.group_id == start.group else 0
        for stored in group.objects[first:]:
            if Location(group.group_id, stored.object_id) > last:
                break
            yield group, stored
