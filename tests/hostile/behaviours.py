"""What relays may do that lie, cut, hoard, flood or dawdle. Each is one idea; a relay takes any number of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count

from kvcs.key_ring import KeyRing
from kvcs.payload import HEADER_SIZE
from kvcs.sealing import TrackOpener
from moqt import Location, ObjectHeader, ObjectStatus, Track
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader
from tests.hostile.relay import Ask, Behaviour, Item

DIGEST = slice(36, HEADER_SIZE)
HUGE = (1 << 62) - 1


def with_data_of(item: Item, other: Item) -> Item:
    """The Data of another Object under this one's header, with a digest that fits."""
    head, data = item.payload[: DIGEST.start], other.payload[DIGEST.start :]
    return replace(item, payload=head + data)


class SwapPlaces(Behaviour):
    """Neighbours change places, headers and digests to match."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if ask.is_manifest:
            return items
        turned = items[1:] + items[:1]
        return [with_data_of(item, other) for item, other in zip(items, turned, strict=True)]


class MovePlaces(Behaviour):
    """Neighbours change places as they are: headers say where they belong."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if ask.is_manifest:
            return items
        turned = items[1:] + items[:1]
        return [
            replace(item, payload=other.payload) for item, other in zip(items, turned, strict=True)
        ]


class SwapPublications(Behaviour):
    """Objects of another publication of the same prompt, with manifests that are this one's."""

    def __init__(self, tracks: dict[bytes, Track]) -> None:
        self._tracks = tracks

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if ask.is_manifest:
            return items
        groups = self._tracks[ask.track.name.name].groups
        others = [groups[item.location.group].objects[item.location.object] for item in items]
        return [
            replace(item, payload=bytes(other.read()), properties=other.properties)
            for item, other in zip(items, others, strict=True)
        ]


class ReplayManifest(Behaviour):
    """The manifest of another publication, truly signed."""

    def __init__(self, track: Track) -> None:
        self._track = track

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if not ask.is_manifest:
            return items
        *_, last = self._track.groups.values()
        return [replace(item, payload=bytes(last.objects[0].read())) for item in items]


class OlderManifest(Behaviour):
    """An older version in the place of each newer one."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if not ask.is_manifest:
            return items
        first = next(iter(ask.track.groups.values()))
        return [replace(item, payload=bytes(first.objects[0].read())) for item in items]


class ForgeManifest(Behaviour):
    """A manifest of the relay's own making: `change` of the true one."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if not ask.is_manifest:
            return items
        return [replace(item, payload=self._change(item.payload)) for item in items]


class Unseal(Behaviour):
    """The producer's own payloads, in the clear: the relay has got hold of a key, but lies about that only."""

    def __init__(self, keys: KeyRing, *, manifests: bool = False) -> None:
        self._keys = keys
        self._manifests = manifests

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        if ask.is_manifest is not self._manifests:
            return items
        opener = TrackOpener(self._keys, ask.track.name)
        return [self._opened(opener, item) for item in items]

    @staticmethod
    def _opened(opener: TrackOpener, item: Item) -> Item:
        if item.status is not ObjectStatus.NORMAL or not item.properties:
            return item
        header = ObjectHeader(item.location, len(item.payload), properties=item.properties)
        payload = bytes(opener.open(header, item.priority, item.payload))
        return replace(item, payload=payload, properties=())


class Truncate(Behaviour):
    """Groups end after `keep` Objects, cleanly: End of Group, FIN, and the track with End of Track."""

    def __init__(self, keep: int) -> None:
        self._keep = keep

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if ask.is_manifest:
            return items
        kept = []
        for item in items:
            if item.location.object < self._keep:
                kept.append(item)
            elif item.location.object == self._keep:
                kept.append(replace(item, payload=b"", status=ObjectStatus.END_OF_GROUP))
        last = max(item.location.group for item in items)
        end = Location(last + 1, 0)
        return [*kept, Item(end, b"", status=ObjectStatus.END_OF_TRACK)]


class Withhold(Behaviour):
    """Some Objects never go out."""

    def __init__(self, which: Callable[[Location], bool]) -> None:
        self._which = which

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if ask.is_manifest:
            return items
        return [item for item in items if not self._which(item.location)]


class Reorder(Behaviour):
    """The last Group first, and in it the last Object first, each live one on a stream of its own."""

    def streams(self, ask: Ask, streams: list[Sequence[Item]]) -> list[Sequence[Item]]:
        if ask.is_fetch:
            return streams
        return [[item] for stream in reversed(streams) for item in reversed(stream)]


class Duplicate(Behaviour):
    """Everything comes several times."""

    def __init__(self, times: int) -> None:
        self._times = times

    def streams(self, ask: Ask, streams: list[Sequence[Item]]) -> list[Sequence[Item]]:
        return streams * self._times


class Restyle(Behaviour):
    """Other priorities, and properties that nobody knows."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        dice = random.Random(1)
        return [
            replace(
                item,
                priority=dice.randrange(256),
                properties=((0x7E, dice.randrange(1 << 40)), (0x7F, dice.randbytes(20))),
            )
            for item in items
        ]


class Endless(Behaviour):
    """After what is asked for Objects go on without end: of places that there are, and of others."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        return items if ask.is_manifest else self._go_on(list(items))

    @staticmethod
    def _go_on(items: list[Item]) -> Iterable[Item]:
        first = [item for item in items if item.location.group == items[0].location.group]
        yield from first
        *_, last = first
        for number in count(last.location.object + 1):
            yield replace(last, location=Location(last.location.group, number))


class EndlessVersions(Behaviour):
    """Manifests without end, all of them the newest one."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        if not ask.is_manifest or ask.is_fetch:
            return items
        *_, last = items
        return [
            replace(last, location=Location(last.location.group + number, 0))
            for number in range(500)
        ]


class HugeLengths(Behaviour):
    """The first Object of each stream announces an absurd length, and octets come as if it were true."""

    def __init__(self, *, manifests: bool = False) -> None:
        self._manifests = manifests

    async def octets(self, ask: Ask, octets: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        if ask.is_manifest is not self._manifests:
            async for piece in octets:
                yield piece
            return
        if ask.is_fetch:
            fetch = FetchEncoder(ask.request.request_id)
            yield fetch.header + fetch.object(ObjectHeader(Location(0, 0), HUGE, priority=100))
        else:
            header = SubgroupHeader(ask.alias, 0, 0, 100, first_object=True)
            yield header.encode() + SubgroupEncoder(header).object(0, HUGE)
        while True:
            yield bytes(64 << 10)


class Aliases(Behaviour):
    """Thousands of streams of Track Aliases that nobody gave out."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.opened = 0

    async def asked(self, ask: Ask) -> None:
        if ask.is_manifest:
            return
        for number in range(self._count):
            header = SubgroupHeader(1 << 20 | number, 0, 0, 100, first_object=True)
            stream_id = await ask.open()
            ask.driver.transport.send(stream_id, header.encode() + bytes(40))
            ask.driver.transport.flush()
            self.opened += 1
        ask.sent = 0


class Bombs(Behaviour):
    """Payloads that say of themselves that they are small and become huge, or are of another codec."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        items = list(items)
        if ask.is_manifest:
            return items
        dice = random.Random(2)
        return [replace(item, payload=self._bomb(item.payload, dice)) for item in items]

    @staticmethod
    def _bomb(payload: bytes, dice: random.Random) -> bytes:
        codec = dice.choice((0, 1, 2, 3, 0xFFFF)).to_bytes(2, "big")
        length = dice.choice((0, 1, 1 << 31, (1 << 32) - 1)).to_bytes(4, "big")
        return payload[:28] + codec + payload[30:32] + length + payload[DIGEST]


class Drip(Behaviour):
    """One octet at a time."""

    def __init__(self, pause: float, *, manifests: bool = False) -> None:
        self._pause = pause
        self._manifests = manifests

    async def octets(self, ask: Ask, octets: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in octets:
            if ask.is_manifest is not self._manifests:
                yield piece
                continue
            for octet in piece:
                yield bytes((octet,))
                await asyncio.sleep(self._pause)


class Silent(Behaviour):
    """Requests for data are accepted, and nothing follows."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        return items if ask.is_manifest else []

    def streams(self, ask: Ask, streams: list[Sequence[Item]]) -> list[Sequence[Item]]:
        return streams if ask.is_manifest else []

    def ends(self, ask: Ask) -> bool:
        return ask.is_manifest
