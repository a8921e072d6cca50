"""CBOR as this package reads it (RFC 8949): one bounded item, with no two readings of it.

cbor2 ignores what follows an item, keeps the last of two equal labels, and makes objects of tags. So the octets are
walked first, and cbor2 is given only what has definite lengths, no equal labels, no tag but the outermost one that
the caller names, and few and shallow items.
"""

from __future__ import annotations

from collections.abc import Collection

import cbor2

from kvcs.errors import KvcsError

MAX_DEPTH = 8
MAX_ITEMS = 4096
"""A signed manifest has about ten, a set of keys about as many for each."""

_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(2, 8)
"""Major types; 0 and 1 are integers."""
_HEADS = {24: 1, 25: 2, 26: 4, 27: 8}


class _Fault(ValueError):
    """What the walk objects to."""


class _Walk:
    """One pass over the octets; nothing is built."""

    def __init__(self, data: bytes, tags: Collection[int]) -> None:
        self.at = 0
        self._data = memoryview(data)
        self._tags = tags
        self._items = 0

    def item(self, depth: int = 0) -> tuple[int, int, memoryview]:
        """Steps over an item; returns its major type, its argument, and its octets if it is a string."""
        self._items += 1
        if self._items > MAX_ITEMS or depth > MAX_DEPTH:
            raise _Fault("it has too many or too deep items")
        major, argument = self._head()
        content = self._data[:0]
        if major in (_BYTES, _TEXT):
            content = self._take(argument)
        elif major == _ARRAY:
            self._room_for(argument)
            for _ in range(argument):
                self.item(depth + 1)
        elif major == _MAP:
            self._map(argument, depth)
        elif major == _TAG:
            if depth or argument not in self._tags:
                raise _Fault("it has a tag that does not belong there")
            self._tags = ()
            self.item(depth)
        return major, argument, content

    def _head(self) -> tuple[int, int]:
        octet = self._take(1)[0]
        major, info = octet >> 5, octet & 31
        if info < 24:
            return major, info
        if info == 31:
            raise _Fault("it has an indefinite length")
        if info not in _HEADS:
            raise _Fault("it is not CBOR")
        argument = int.from_bytes(self._take(_HEADS[info]), "big")
        if major == _SIMPLE and info == 24 and argument < 32:
            raise _Fault("it is not CBOR")
        return major, argument

    def _map(self, pairs: int, depth: int) -> None:
        self._room_for(2 * pairs)
        labels: set[tuple[int, int, memoryview]] = set()
        for _ in range(pairs):
            label = self.item(depth + 1)
            if label[0] > _TEXT:
                raise _Fault("it has a label that is neither a number nor a string")
            if label in labels:
                raise _Fault("it has a label twice")
            labels.add(label)
            self.item(depth + 1)

    def _room_for(self, items: int) -> None:
        if items > len(self._data) - self.at:
            raise _Fault("it is cut short")

    def _take(self, length: int) -> memoryview:
        if length > len(self._data) - self.at:
            raise _Fault("it is cut short")
        self.at += length
        return self._data[self.at - length : self.at]


def loads(
    data: bytes,
    *,
    what: str,
    max_octets: int,
    error: type[KvcsError],
    tags: Collection[int] = (),
    end: str = "",
) -> object:
    """The CBOR item in `data`, outermost in one of `tags` or in none; raises `error` for anything else.

    `what` begins the message and `end` ends it. Strings are bytes and str, arrays lists or tuples, maps mappings.
    """
    if len(data) > max_octets:
        raise error(f"{what}: at most {max_octets} octets are accepted, it has {len(data)}{end}")
    walk = _Walk(data, tags)
    try:
        walk.item()
        if walk.at != len(data):
            raise _Fault("octets follow it")
        return cbor2.loads(data)
    except _Fault as fault:
        raise error(f"{what}: {fault}{end}") from None
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError):
        raise error(f"{what}: it is not CBOR{end}") from None
