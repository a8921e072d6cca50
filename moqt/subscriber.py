"""Subscriptions and fetches: what was asked for, as async iterators of Objects or into a receiver of one's own.

Objects that wait for their readers hold the session's flow-control window, all requests together: read the
iterators of one session at the same time, or cancel those that are not read.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from moqt.collecting import Collector, ItemQueue
from moqt.connection import Driver
from moqt.errors import (
    DeadlineExceeded,
    LocalError,
    MalformedTrack,
    MoqtError,
    PublishDoneCode,
    RemoteError,
    RequestErrorCode,
    RequestRejected,
    SessionClosed,
    StreamErrorCode,
    StreamReset,
    TrackAborted,
    lookup,
)
from moqt.model import EndOfRange, FullTrackName, GroupOrder, Location, Object, Properties
from moqt.protocol.requests import RequestState
from moqt.protocol.streams import IncomingStream, Receiver, StreamSink
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    UNKNOWN_STREAM_COUNT,
    FetchOk,
    Message,
    Publish,
    PublishDone,
    PublishStateNotify,
    Request,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.messages import (
    Fetch as FetchMessage,
)
from moqt.wire.parameters import NO_PARAMETERS, Parameters
from moqt.wire.properties import PropertyType, mandatory_unknown, track_property


class _Open(NamedTuple):
    stream: IncomingStream
    sink: StreamSink


class _DataRequest(ABC):
    """What a subscription and a fetch share: a request, its data streams, and where Objects go."""

    def __init__(self, driver: Driver, track: FullTrackName, receiver: Receiver | None) -> None:
        self.track = track
        self.properties: Properties = ()
        """Track Properties of the OK."""
        self.group_order = GroupOrder.ASCENDING
        self.finished: asyncio.Future[MoqtError | None] = asyncio.get_running_loop().create_future()
        """Done once nothing more will come, with the error that ended it early."""
        self._driver = driver
        self._receiver = receiver
        self._queue: ItemQueue[Object | EndOfRange] = ItemQueue(driver)
        self._request: RequestState | None = None
        self._open: dict[int, _Open] = {}
        self._streams_seen = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._taken = -1

    async def _ask(self, build: Callable[[int], Request], timeout: float | None) -> Message:
        """Sends the request and returns its OK; of a request that fails nothing is left."""
        answer: Message | None = None
        try:
            request = await self._driver.ask(build, receiver=self, owner=self, timeout=timeout)
            assert isinstance(request.answer, SubscribeOk | FetchOk)
            self._check_properties(request.answer.properties)
            answer = request.answer
        except RequestRejected:
            if self.finished.done() and (error := self.finished.result()) is not None:
                raise error from None  # its data stream failed before its answer came
            raise
        finally:
            if answer is None:
                self.cancel()
        return answer

    def _check_properties(self, properties: Properties) -> None:
        unknown = mandatory_unknown(properties)
        if unknown is not None:
            raise RequestRejected(
                RequestErrorCode.UNSUPPORTED_EXTENSION,
                f"the track needs property 0x{unknown:x}, which this version does not know",
            )
        self.properties = properties

    @property
    def answer(self) -> Message | None:
        """The OK, from the moment it came."""
        return None if self._request is None else self._request.answer

    @property
    def default_priority(self) -> int:
        """Publisher Priority of Objects whose stream names none."""
        answer = self.answer
        known = answer.properties if isinstance(answer, SubscribeOk) else self.properties
        try:
            value = track_property(known, PropertyType.DEFAULT_PUBLISHER_PRIORITY)
        except MalformedTrack:  # which ends the request as soon as its answer is looked at
            value = None
        return 128 if value is None else value

    # Called by the session

    def request_opened(self, request: RequestState) -> None:
        """The request is about to be sent."""
        self._request = request

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        """A stream of this request starts."""
        self._streams_seen += 1
        if self.finished.done():
            return None
        stream.default_priority = self.default_priority
        sink: StreamSink | None
        if self._receiver is not None:
            sink = self._receiver.open_stream(stream)
        else:
            sink = Collector(self._driver, self._queue, self._fault)
        if sink is not None:
            self._open[stream.stream_id] = _Open(stream, sink)
            stream.watchers.append(lambda error: self._watch(stream, error))
        return sink

    def _watch(self, stream: IncomingStream, error: StreamReset | None) -> None:
        if self._open.pop(stream.stream_id, None) is not None:
            self._stream_closed(stream, error)

    @abstractmethod
    def _stream_closed(self, stream: IncomingStream, error: StreamReset | None) -> None:
        """A stream that was not left has ended."""

    @abstractmethod
    def message_received(self, message: Message) -> None:
        """What follows the OK."""

    def request_ended(self, error: MoqtError | None) -> None:
        """The peer ended the request before its time, or the session is over."""
        self._finish(error)

    # The end

    def _fault(self, fault: RemoteError) -> None:
        """What comes cannot be taken."""
        self._finish(fault, StreamErrorCode.EXCESSIVE_LOAD)

    def _finish(
        self, error: MoqtError | None, code: StreamErrorCode = StreamErrorCode.CANCELLED
    ) -> None:
        """Nothing more is expected; with an error, the rest of the request is cancelled."""
        if self.finished.done():
            return
        self.finished.set_result(error)
        self._queue.end(error)
        if self._request is not None:
            if error is None or isinstance(error, TrackAborted):
                self._driver.finish(self._request)
            else:
                self._driver.cancel(self._request, code)
        closed = isinstance(error, SessionClosed)
        self._leave_streams(StreamErrorCode.SESSION_CLOSED if closed else code)

    def cancel(self, code: StreamErrorCode = StreamErrorCode.CANCELLED) -> None:
        """Ends the request at once: its streams are refused, what was received and not read is dropped."""
        if not self.finished.done():
            self.finished.set_result(None)
        self._queue.end()
        self._queue.clear()
        if self._request is not None:
            self._driver.cancel(self._request, code)
        self._leave_streams(code)

    def _leave_streams(self, code: StreamErrorCode) -> None:
        """Stops what is still coming; its sinks hear of it as of a reset."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        left, self._open = list(self._open.values()), {}
        for stream, sink in left:
            self._driver.core.data.leave(stream, sink, code)
            sink.closed(StreamReset(code, "data stream"))
        if left:
            self._driver.act()

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay, call))

    def _stands_still(self) -> bool:
        """Whether nothing came on the session since the last call, though something could have: the
        application does not hold the credit for it."""
        before, self._taken = self._taken, self._driver.core.data.taken
        return before == self._taken and not self._driver.held

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
        self.resets = 0
        """Streams that the publisher reset, seen or not: Objects may be missing."""
        self.filled: asyncio.Future[MoqtError | None] = asyncio.get_running_loop().create_future()
        """Done once the fill that SUBSCRIBE asked for has ended: with None when it came whole or is empty,
        with StreamReset, with DeadlineExceeded when its stream never came, or with what ended all."""
        self._asked = NO_PARAMETERS
        self._fill_seen = False

    async def start(self, parameters: Parameters, timeout: float | None = None) -> None:
        """Sends the SUBSCRIBE and waits for its OK; used by `Session.subscribe`."""
        self.group_order = parameters.group_order or GroupOrder.ASCENDING
        self._asked = parameters
        answer = await self._ask(
            lambda request_id: Subscribe(request_id, self.track, parameters), timeout
        )
        assert isinstance(answer, SubscribeOk)
        self.largest = answer.parameters.largest_object
        if not self._fill_expected():
            _set(self.filled, None)
        elif not self._fill_seen and not self.finished.done():
            self._later(self._driver.config.fill_timeout, self._fill_missing)

    def adopt(self, request: RequestState) -> None:
        """Takes what a PUBLISH of the peer brings; to be called before its RequestOk is sent.

        Whoever answers the peer passes on what follows on the request, with `message_received` and
        `request_ended`. Raises RequestRejected for a track that cannot be used.
        """
        assert isinstance(request.message, Publish)
        self._check_properties(request.message.properties)
        self.largest = request.message.parameters.largest_object
        self._request = request
        _set(self.filled, None)
        self._driver.core.requests.accept_publish(request, self)

    async def update(self, parameters: Parameters) -> Location | None:
        """Changes the subscription, or asks for another fill. Returns the Largest Location of the OK."""
        if self._request is None or self.finished.done():
            raise LocalError("the subscription has ended")
        answer = await self._driver.update(self._request, parameters)
        return answer.parameters.largest_object

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        if self._is_fill(stream):
            self._fill_seen = True
        return super().open_stream(stream)

    def _is_fill(self, stream: IncomingStream) -> bool:
        return self._request is not None and stream.header == self._request.request_id

    def _stream_closed(self, stream: IncomingStream, error: StreamReset | None) -> None:
        if error is not None:
            self.resets += 1
        if self._is_fill(stream):
            _set(self.filled, error)
        self._settle()

    def _fill_expected(self) -> bool:
        """Whether a fill stream must follow the SUBSCRIBE_OK (section 6.5)."""
        fill = self._asked.fill
        answer = None if self._request is None else self._request.answer
        largest = answer.parameters.largest_object if isinstance(answer, SubscribeOk) else None
        if fill is None or largest is None or self._asked.forward is False:
            return False
        asked = fill.location_filter or self._asked.location_filter or LocationFilter.none()
        span = asked.resolve(largest)
        return span.start <= largest and not span.is_empty

    def _fill_missing(self) -> None:
        if not self._fill_seen:
            _set(self.filled, DeadlineExceeded("the fill stream did not come"))

    def message_received(self, message: Message) -> None:
        if isinstance(message, PublishDone):
            self.done = message
            self._settle()
            self._wait_for_streams()
        elif isinstance(message, PublishStateNotify):
            self.largest = message.parameters.largest_object or self.largest

    def _settle(self) -> None:
        """PUBLISH_DONE ends it once as many streams as it counts have come and gone."""
        if self.done is None or self._open:
            return
        count = self.done.stream_count
        if count != UNKNOWN_STREAM_COUNT and self._streams_seen >= count:
            self._finish_done()

    def _wait_for_streams(self) -> None:
        """A reset can lose a stream's header, so the count may never be met."""
        if self.finished.done():
            return
        if self._stands_still():
            self._finish_done()
        else:
            self._later(self._driver.config.publish_done_timeout, self._wait_for_streams)

    def _finish_done(self) -> None:
        assert self.done is not None
        if self.done.stream_count != UNKNOWN_STREAM_COUNT:
            self.resets += max(0, self.done.stream_count - self._streams_seen)
        code = lookup(PublishDoneCode, self.done.status)
        ended = code is PublishDoneCode.TRACK_ENDED
        self._finish(None if ended else TrackAborted(code, self.done.reason))

    def _leave_streams(self, code: StreamErrorCode) -> None:
        super()._leave_streams(code)
        lost = StreamReset(code, "fill stream") if self._fill_expected() else None
        _set(self.filled, self.finished.result() or lost)


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

    async def start(self, parameters: Parameters, timeout: float | None = None) -> None:
        """Sends the FETCH and waits for its OK; used by `Session.fetch`."""
        self.group_order = parameters.group_order or GroupOrder.ASCENDING
        answer = await self._ask(
            lambda request_id: FetchMessage(request_id, self.track, parameters), timeout
        )
        assert isinstance(answer, FetchOk)
        self.end, self.end_of_track = answer.end, answer.end_of_track
        self._wait_for_stream()

    def _wait_for_stream(self) -> None:
        """A reset can lose the stream's header."""
        if self._streams_seen or self.finished.done():
            return
        if self._stands_still():
            self._finish(DeadlineExceeded("the data stream of the fetch did not come"))
        else:
            self._later(self._driver.config.fill_timeout, self._wait_for_stream)

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        return None if self._open else super().open_stream(stream)

    def _stream_closed(self, stream: IncomingStream, error: StreamReset | None) -> None:
        self._finish(error)

    def message_received(self, message: Message) -> None:
        """Nothing follows FETCH_OK on its stream."""


def _set(future: asyncio.Future[MoqtError | None], value: MoqtError | None) -> None:
    if not future.done():
        future.set_result(value)
