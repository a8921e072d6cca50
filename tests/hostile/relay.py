"""A relay that has received everything its publisher sent, and passes on what its behaviours make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from kvcs.naming import MANIFEST, MANIFEST_COSE
from moqt import FullTrackName, Location, ObjectHeader, ObjectStatus, Publisher, Track
from moqt.connection import Driver
from moqt.errors import PublishDoneCode
from moqt.model import Properties
from moqt.protocol.requests import Phase, RequestState
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader
from moqt.wire.messages import Fetch, FetchOk, PublishDone, Subscribe, SubscribeOk
from moqt.wire.parameters import Parameters

MANIFESTS = (MANIFEST, MANIFEST_COSE)
AHEAD = 256 << 10
"""Octets that the relay hands to its transport before it waits, so that its own memory is no part of the measure."""


@dataclass(frozen=True, slots=True)
class Item:
    """One Object, as it will be sent."""

    location: Location
    payload: bytes
    priority: int = 100
    properties: Properties = ()
    status: ObjectStatus = ObjectStatus.NORMAL


class Behaviour:
    """What a relay does to what passes through it. This one does nothing; others override a part."""

    def objects(self, ask: Ask, items: Iterable[Item]) -> Iterable[Item]:
        """Which Objects go out for a request, in which order. May have no end."""
        return items

    def streams(self, ask: Ask, streams: list[Sequence[Item]]) -> list[Sequence[Item]]:
        """How those that have an end are put on streams."""
        return streams

    async def octets(self, ask: Ask, octets: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The octets of one stream, in pieces. May have no end."""
        async for piece in octets:
            yield piece

    async def asked(self, ask: Ask) -> None:
        """A request came, and was accepted."""

    def ends(self, ask: Ask) -> bool:
        """Whether the request is brought to an end."""
        return True


@dataclass(eq=False)
class Ask:
    """A SUBSCRIBE or FETCH, and what the relay has for it."""

    relay: HostileRelay
    driver: Driver
    request: RequestState
    track: Track
    sent: int = 0
    """Streams."""

    @property
    def alias(self) -> int:
        """The Track Alias of the subscription."""
        return 1000 + self.request.request_id

    @property
    def is_manifest(self) -> bool:
        return self.track.name.name in MANIFESTS

    @property
    def is_fetch(self) -> bool:
        return isinstance(self.request.message, Fetch)

    def accept(self) -> None:
        """FETCH_OK, or SUBSCRIBE_OK as of a track in which nothing is yet: all that there is comes live."""
        if self.is_fetch:
            largest = self.track.largest or Location(0, 0)
            self.driver.send(self.request, FetchOk(self.track.ended, largest, Parameters()))
        else:
            self.driver.send(self.request, SubscribeOk(self.alias, Parameters(), ()))

    def done(self) -> None:
        """PUBLISH_DONE, as if the track had come to its end."""
        if not self.is_fetch:
            done = PublishDone(PublishDoneCode.TRACK_ENDED, self.sent, "")
            self.driver.send(self.request, done, fin=True)

    def items(self) -> list[Item]:
        """What the publisher published, as far as it was asked for."""
        asked: Any = self.request.message
        where = asked.parameters.location_filter if self.is_fetch else None
        wanted = where.resolve(self.track.largest) if where is not None else None
        everything = (
            Item(
                Location(group.group_id, stored.object_id),
                bytes(stored.read()),
                group.priority,
                stored.properties,
            )
            for group in self.track.groups.values()
            for stored in group.objects
        )
        return [i for i in everything if wanted is None or wanted.contains(i.location)]

    async def open(self) -> int:
        """A stream, as soon as the peer gives credit for one."""
        transport = self.driver.transport
        while (stream_id := transport.open_stream(bidirectional=False)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self.sent += 1
        return stream_id

    async def send(self, pieces: AsyncIterator[bytes]) -> None:
        """A stream of its own for octets that may have no end."""
        transport = self.driver.transport
        stream_id = await self.open()
        async for piece in pieces:
            if self.request.phase is Phase.ENDED:
                return
            transport.send(stream_id, piece)
            transport.flush()
            await asyncio.sleep(0)
            while transport.unsent() > AHEAD:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        transport.send(stream_id, b"", True)
        transport.flush()

    def encoded(self, items: Iterable[Item]) -> Iterator[bytes]:
        """A fetch stream, or a subgroup stream for the Group of the first item."""
        if self.is_fetch:
            yield from self._fetch_stream(items)
        else:
            yield from self._subgroup_stream(items)

    def _fetch_stream(self, items: Iterable[Item]) -> Iterator[bytes]:
        encoder = FetchEncoder(self.request.request_id)
        yield encoder.header
        for item in items:
            if item.status is ObjectStatus.NORMAL:
                header = ObjectHeader(
                    item.location,
                    len(item.payload),
                    priority=item.priority,
                    properties=item.properties,
                )
                yield encoder.object(header) + item.payload

    def _subgroup_stream(self, items: Iterable[Item]) -> Iterator[bytes]:
        encoder: SubgroupEncoder | None = None
        for item in items:
            start = b""
            if encoder is None:
                header = SubgroupHeader(
                    self.alias,
                    item.location.group,
                    0,
                    item.priority,
                    has_properties=True,
                    first_object=True,
                )
                encoder = SubgroupEncoder(header)
                start = header.encode()
            properties = item.properties if item.status is ObjectStatus.NORMAL else ()
            yield (
                start
                + encoder.object(
                    item.location.object,
                    len(item.payload),
                    properties=properties,
                    status=item.status,
                )
                + item.payload
            )


@dataclass(eq=False)
class _Heard:
    """Which data tracks were asked for."""

    names: set[bytes] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class HostileRelay(Publisher):
    """Answers SUBSCRIBE and FETCH for the tracks that it knows. `live` hides at first that all is published."""

    def __init__(self, *behaviours: Behaviour, live: bool = False) -> None:
        super().__init__()
        self.behaviours = behaviours
        self.live = live
        self.asked: list[FullTrackName] = []
        self._heard = _Heard()

    def request_received(self, driver: Driver, request: RequestState) -> None:
        message = request.message
        track = self.tracks.get(message.track) if isinstance(message, Subscribe | Fetch) else None
        if track is None:
            super().request_received(driver, request)
            return
        self.asked.append(track.name)
        ask = Ask(self, driver, request, track)
        if not ask.is_manifest:
            self._heard.names.add(track.name.name)
            self._heard.news.set()
        driver.spawn(self._serve(ask))

    async def _serve(self, ask: Ask) -> None:
        ask.accept()
        for behaviour in self.behaviours:
            await behaviour.asked(ask)
        for batch in self._batches(ask):
            await self._pass_on(ask, batch)
            if batch and ask.is_manifest and self.live and not ask.is_fetch and ask.sent == 1:
                await self._wait_for_data()
        if all(behaviour.ends(ask) for behaviour in self.behaviours):
            ask.done()

    def _batches(self, ask: Ask) -> list[list[Item]]:
        """What goes out at once. Of the manifest the newest version; in a live track first the oldest one."""
        items = ask.items()
        if not ask.is_manifest or not items:
            return [items]
        return [items[:1], items[-1:]] if self.live and not ask.is_fetch else [items[-1:]]

    async def _wait_for_data(self) -> None:
        """Until K and V were asked for: what comes before the manifest that lists it has to be held."""
        while len(self._heard.names) < 2:
            self._heard.news.clear()
            await self._heard.news.wait()

    async def _pass_on(self, ask: Ask, batch: list[Item]) -> None:
        items: Iterable[Item] = batch
        for behaviour in self.behaviours:
            items = behaviour.objects(ask, items)
        if not isinstance(items, list):
            await self._send(ask, items)
            return
        streams: list[Sequence[Item]] = [items]
        if not ask.is_fetch:
            streams = [list(g) for _, g in groupby(items, lambda item: item.location.group)]
        for behaviour in self.behaviours:
            streams = behaviour.streams(ask, streams)
        for stream in streams:
            await self._send(ask, stream)

    async def _send(self, ask: Ask, items: Iterable[Item]) -> None:
        octets = _pieces(ask.encoded(items))
        for behaviour in self.behaviours:
            octets = behaviour.octets(ask, octets)
        await ask.send(octets)


async def _pieces(octets: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in octets:
        yield piece
