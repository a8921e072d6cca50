"""Subscriptions and fetches: what was asked for, as async iterators of Objects or into a receiver of one's own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from moqt.connection import Driver
from moqt.errors import (
    LocalError,
    MoqtError,
    ProtocolViolation,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    StreamErrorCode,
    StreamReset,
    TrackAborted,
    lookup,
)
from moqt.model import (
    EndOfRange,
    FullTrackName,
    GroupOrder,
    Location,
    Object,
    ObjectHeader,
    Properties,
)
from moqt.protocol.requests import RequestState
from moqt.protocol.streams import IncomingStream, Receiver, StreamSink
from moqt.wire.messages import (
    UNKNOWN_STREAM_COUNT,
    FetchOk,
    Message,
    PublishDone,
    PublishStateNotify,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.messages import (
    Fetch as FetchMessage,
)
from moqt.wire.parameters import Parameters
from moqt.wire.properties import PropertyType, mandatory_unknown, track_property

_Item = TypeVar("_Item")


class _Queue(Generic[_Item]):
    """Items of a request for one reader, with what they hold of the peer's credit."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._items: deque[tuple[_Item, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: MoqtError | None = None
        self._ended = False

    def put(self, item: _Item, octets: int) -> None:
        self._items.append((item, octets))
        self._wake()

    def end(self, error: MoqtError | None = None) -> None:
        """No item comes any more. The first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake()

    def clear(self) -> None:
        """Drops what nobody will read."""
        while self._items:
            self._driver.release(self._items.popleft()[1])

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> AsyncIterator[_Item]:
        while True:
            while self._items:
                item, octets = self._items.popleft()
                if octets:
                    self._driver.release(octets)
                yield item
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class _Collector(StreamSink):
    """Puts whole Objects of one stream into the request's queue."""

    def __init__(self, driver: Driver, queue: _Queue[Object | EndOfRange]) -> None:
        self._driver = driver
        self._queue = queue
        self._header: ObjectHeader | None = None
        self._payload = bytearray()

    def object_begin(self, header: ObjectHeader) -> None:
        limit = self._driver.config.max_object_size
        if header.payload_length > limit:
            raise ProtocolViolation(
                f"Object of {header.payload_length} octets, at most {limit} are taken here"
            )
        self._header = header
        self._payload = bytearray()

    def payload(self, chunk: memoryview) -> None:
        self._payload += chunk
        self._driver.hold(len(chunk))

    def object_end(self) -> None:
        assert self._header is not None
        self._queue.put(Object(self._header, memoryview(self._payload)), len(self._payload))
        self._header = None
        self._payload = bytearray()

    def end_of_range(self, marker: EndOfRange) -> None:
        self._queue.put(marker, 0)

    def closed(self, error: StreamReset | None) -> None:
        self._driver.release(len(self._payload))
        self._payload = bytearray()


class _DataRequest:
    """What a subscription and a fetch share: a request, its data streams, and where Objects go."""

    def __init__(self, driver: Driver, track: FullTrackName, receiver: Receiver | None) -> None:
        self.track = track
        self.properties: Properties = ()
        """Track Properties of the OK."""
        self.group_order = GroupOrder.ASCENDING
        self._driver = driver
        self._receiver = receiver
        self._queue: _Queue[Object | EndOfRange] = _Queue(driver)
        self._request: RequestState | None = None
        self._open: set[int] = set()
        self._over = False

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        """Called by the session when a stream of this request starts."""
        if self._over:
            return None
        self._open.add(stream.stream_id)
        stream.watcher = lambda error: self._stream_closed(stream, error)
        if self._receiver is not None:
            return self._receiver.open_stream(stream)
        return _Collector(self._driver, self._queue)

    def _stream_closed(self, stream: IncomingStream, error: StreamReset | None) -> None:
        self._open.discard(stream.stream_id)

    def _check_properties(self, request: RequestState, properties: Properties) -> None:
        unknown = mandatory_unknown(properties)
        if unknown is not None:
            self._driver.cancel(request)
            raise RequestRejected(
                RequestErrorCode.UNSUPPORTED_EXTENSION,
                f"the track needs property 0x{unknown:x}, which this version does not know",
            )
        self.properties = properties

    def request_ended(self, error: MoqtError | None) -> None:
        self._finish(error)

    def _finish(self, error: MoqtError | None) -> None:
        self._over = True
        self._queue.end(error)
        if self._request is not None:
            self._driver.finish(self._request)

    def cancel(self, code: StreamErrorCode = StreamErrorCode.CANCELLED) -> None:
        """Ends the request at once: its streams are refused, what was received and not read is dropped."""
        self._over = True
        if self._request is not None:
            self._driver.cancel(self._request, code)
        self._queue.end()
        self._queue.clear()

    def __aiter__(self) -> AsyncIterator[Object | EndOfRange]:
        if self._receiver is not None:
            raise LocalError("Objects of this request go to the receiver that it was made with")
        return self._queue.read()


class Subscription(_DataRequest):
    """An accepted SUBSCRIBE. Iterating yields live and filled Objects as they become whole, and ends with
    PUBLISH_DONE; an Object may come twice through relays.
    """

    def __init__(self, driver: Driver, track: FullTrackName, receiver: Receiver | None) -> None:
        super().__init__(driver, track, receiver)
        self.largest: Location | None = None
        """LARGEST_OBJECT of the SUBSCRIBE_OK: None says that nothing is published yet."""
        self.done: PublishDone | None = None
        """How the publisher ended it."""
        self.finished: asyncio.Future[MoqtError | None] = asyncio.get_running_loop().create_future()
        """Done once nothing more will come, with the error that ended it early."""
        self._streams_seen = 0

    async def start(self, parameters: Parameters, timeout: float | None = None) -> None:
        """Sends the SUBSCRIBE and waits for its OK; used by `Session.subscribe`."""
        self.group_order = parameters.group_order or GroupOrder.ASCENDING
        fill = parameters.fill
        if fill is not None and fill.group_order is not None:
            self.group_order = fill.group_order
        request = await self._driver.ask(
            lambda request_id: Subscribe(request_id, self.track, parameters),
            receiver=self,
            owner=self,
            timeout=timeout,
        )
        self._request = request
        answer = request.answer
        assert isinstance(answer, SubscribeOk)
        self._check_properties(request, answer.properties)
        self.largest = answer.parameters.largest_object
        if self.done is not None:
            self._settle()

    @property
    def default_priority(self) -> int:
        """Publisher Priority of Objects whose stream names none."""
        value = track_property(self.properties, PropertyType.DEFAULT_PUBLISHER_PRIORITY)
        return 128 if value is None else value

    async def update(self, parameters: Parameters) -> Location | None:
        """Changes the subscription, or asks for another fill. Returns the Largest Location of the OK."""
        if self._request is None or self._over:
            raise LocalError("the subscription has ended")
        answer = await self._driver.update(self._request, parameters)
        return answer.parameters.largest_object

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        self._streams_seen += 1
        return super().open_stream(stream)

    def _stream_closed(self, stream: IncomingStream, error: StreamReset | None) -> None:
        super()._stream_closed(stream, error)
        self._settle()

    def message_received(self, message: Message) -> None:
        if isinstance(message, PublishDone):
            self.done = message
            loop = asyncio.get_running_loop()
            loop.call_later(self._driver.config.publish_done_timeout, self._finish_done)
            self._settle()
        elif isinstance(message, PublishStateNotify):
            self.largest = message.parameters.largest_object or self.largest

    def _settle(self) -> None:
        """PUBLISH_DONE ends it once as many streams as it counts have come and gone."""
        if self.done is None or self._open:
            return
        count = self.done.stream_count
        if count != UNKNOWN_STREAM_COUNT and self._streams_seen >= count:
            self._finish_done()

    def _finish_done(self) -> None:
        if self.done is None or self._over or self._request is None:
            return
        code = lookup(PublishDoneCode, self.done.status)
        error: MoqtError | None = None
        if code is not PublishDoneCode.TRACK_ENDED:
            error = TrackAborted(code, self.done.reason)
        self._finish(error)

    def _finish(self, error: MoqtError | None) -> None:
        super()._finish(error)
        if not self.finished.done():
            self.finished.set_result(error)

    def cancel(self, code: StreamErrorCode = StreamErrorCode.CANCELLED) -> None:
        super().cancel(code)
        if not self.finished.done():
            self.finished.set_result(None)


class Fetch(_DataRequest):
    """An accepted FETCH. Iterating yields Objects in order, and EndOfRange markers where a range is missing,
    and ends with the stream's FIN; a reset raises StreamReset.
    """

    def __init__(self, driver: Driver, track: FullTrackName, receiver: Receiver | None) -> None:
        super().__init__(driver, track, receiver)
        self.end = Location(0, 0)
        """The last Location that the answer covers."""
        self.end_of_track = False
        """Whether `end` is the last Object of a finished track."""
        self.finished: asyncio.Future[MoqtError | None] = asyncio.get_running_loop().create_future()

    async def start(self, parameters: Parameters, timeout: float | None = None) -> None:
        """Sends the FETCH and waits for its OK; used by `Session.fetch`."""
        self.group_order = parameters.group_order or GroupOrder.ASCENDING
        request = await self._driver.ask(
            lambda request_id: FetchMessage(request_id, self.track, parameters),
            receiver=self,
            owner=self,
            timeout=timeout,
        )
        self._request = request
        answer = request.answer
        assert isinstance(answer, FetchOk)
        self._check_properties(request, answer.properties)
        self.end, self.end_of_track = answer.end, answer.end_of_track
        if self.finished.done():
            self._driver.finish(request)

    def _stream_closed(self, stream: IncomingStream, error: StreamReset | None) -> None:
        super()._stream_closed(stream, error)
        self._finish(error)

    def message_received(self, message: Message) -> None:
        """Nothing follows FETCH_OK on its stream."""

    def _finish(self, error: MoqtError | None) -> None:
        super()._finish(error)
        if not self.finished.done():
            self.finished.set_result(error)

    def cancel(self, code: StreamErrorCode = StreamErrorCode.CANCELLED) -> None:
        super().cancel(code)
        if not self.finished.done():
            self.finished.set_result(None)
