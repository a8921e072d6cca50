"""An origin that answers some requests as a script says, to play relays that misbehave."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from moqt import FullTrackName, Location, ObjectHeader, ObjectStatus, Publisher, Track
from moqt.connection import Driver
from moqt.errors import PublishDoneCode, RequestErrorCode
from moqt.protocol.requests import RequestState
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Message,
    PublishDone,
    RequestError,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.parameters import Parameters

Alter: TypeAlias = Callable[[bytes], bytes]


def same(payload: bytes) -> bytes:
    """No alteration."""
    return payload


def corrupt(payload: bytes) -> bytes:
    """The last octet of the Data flipped, so that the digest does not fit."""
    return payload[:-1] + bytes([payload[-1] ^ 1])


class Play:
    """One request of the peer, with the real track that it is about."""

    def __init__(self, driver: Driver, request: RequestState, track: Track) -> None:
        self.driver = driver
        self.request = request
        self.track = track
        self.alias = 1000 + request.request_id
        self.streams = 0

    def accept(self, largest: Location | None = None) -> None:
        """SUBSCRIBE_OK or FETCH_OK."""
        message: Message
        if isinstance(self.request.message, Subscribe):
            message = SubscribeOk(self.alias, Parameters(largest_object=largest), ())
        else:
            message = FetchOk(False, largest or self.track.largest or Location(0, 0), Parameters())
        self.driver.send(self.request, message)

    def reject(self, code: RequestErrorCode, retry: int = 0) -> None:
        """REQUEST_ERROR."""
        self.driver.send(self.request, RequestError(code, retry, "scripted", None), fin=True)

    def payload(self, layer: int, block: int) -> bytes:
        """The payload as the real publisher made it."""
        return bytes(self.track.groups[layer].objects[block].read())

    def live(
        self,
        layer: int,
        blocks: Iterable[int],
        *,
        marker: tuple[int, ObjectStatus] | None = None,
        end: int | None = None,
        alter: Alter = same,
    ) -> int:
        """A subgroup stream, with a status Object at its end where asked for; FIN, or a reset with `end`."""
        header = SubgroupHeader(self.alias, layer, 0, 100, first_object=True)
        encoder = SubgroupEncoder(header)
        octets = header.encode()
        for block in blocks:
            payload = alter(self.payload(layer, block))
            octets += encoder.object(block, len(payload)) + payload
        if marker is not None:
            octets += encoder.object(marker[0], 0, status=marker[1])
        return self._send(octets, end)

    async def live_slowly(self, layer: int, blocks: Iterable[int], *, pause: float) -> None:
        """A subgroup stream in three pieces with pauses between them."""
        header = SubgroupHeader(self.alias, layer, 0, 100, first_object=True)
        encoder = SubgroupEncoder(header)
        octets = header.encode()
        for block in blocks:
            payload = self.payload(layer, block)
            octets += encoder.object(block, len(payload)) + payload
        transport = self.driver.transport
        stream_id = transport.open_stream(bidirectional=False)
        assert stream_id is not None
        third = len(octets) // 3
        for piece in (octets[:third], octets[third : 2 * third], octets[2 * third :]):
            transport.send(stream_id, piece)
            transport.flush()
            await asyncio.sleep(pause)
        transport.send(stream_id, b"", True)
        transport.flush()

    def fill(
        self,
        items: Iterable[tuple[int, int]],
        *,
        end: int | None = None,
        alter: Alter = same,
        request_id: int | None = None,
    ) -> int:
        """A fetch or fill stream of Objects (layer, block)."""
        encoder = FetchEncoder(self.request.request_id if request_id is None else request_id)
        octets = encoder.header
        for layer, block in items:
            payload = alter(self.payload(layer, block))
            header = ObjectHeader(Location(layer, block), len(payload), priority=100)
            octets += encoder.object(header) + payload
        return self._send(octets, end)

    def manifest(self, version: int, octets: bytes) -> int:
        """A manifest version on a stream of its own."""
        header = SubgroupHeader(self.alias, version, 0, 0, first_object=True, end_of_group=True)
        return self._send(
            header.encode() + SubgroupEncoder(header).object(0, len(octets)) + octets, None
        )

    def _send(self, octets: bytes, end: int | None) -> int:
        """Sends a stream; a reset follows what the transport has taken."""
        transport = self.driver.transport
        stream_id = transport.open_stream(bidirectional=False)
        assert stream_id is not None
        self.streams += 1
        transport.send(stream_id, octets, end is None)
        transport.flush()
        if end is not None:
            self.driver.spawn(self._reset_later(stream_id, end))
        return stream_id

    async def _reset_later(self, stream_id: int, code: int) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        self.driver.transport.reset(stream_id, code)
        self.driver.transport.flush()

    def done(
        self, code: PublishDoneCode = PublishDoneCode.TRACK_ENDED, count: int | None = None
    ) -> None:
        """PUBLISH_DONE."""
        streams = self.streams if count is None else count
        self.driver.send(self.request, PublishDone(code, streams, "scripted"), fin=True)


Act: TypeAlias = Callable[[Play], None]


class ScriptedOrigin(Publisher):
    """Acts are used up, one a request; without one left a request is answered as it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Message] = []
        """Every request, in order."""
        self.drivers: list[Driver] = []
        self._acts: dict[tuple[type[Message], bytes], list[Act]] = defaultdict(list)

    def on(self, kind: type[Subscribe | Fetch], track: bytes, *acts: Act) -> None:
        """What happens at the next requests of a kind for a track name."""
        self._acts[kind, track].extend(acts)

    def session_opened(self, driver: Driver) -> None:
        self.drivers.append(driver)
        super().session_opened(driver)

    def request_received(self, driver: Driver, request: RequestState) -> None:
        message = request.message
        self.asked.append(message)
        if isinstance(message, Subscribe | Fetch):
            acts = self._acts.get((type(message), message.track.name))
            track = self.tracks.get(message.track)
            if acts and track is not None:
                acts.pop(0)(Play(driver, request, track))
                return
        super().request_received(driver, request)

    def asked_for(self, kind: type[Message]) -> list[FullTrackName]:
        """The tracks of the requests of a kind."""
        return [
            m.track for m in self.asked if isinstance(m, kind) and isinstance(m, Subscribe | Fetch)
        ]
