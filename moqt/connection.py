"""The one place where a session meets a transport: octets in, actions out, waits with deadlines, owned tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from moqt.config import SessionConfig
from moqt.errors import (
    DeadlineExceeded,
    RequestErrorCode,
    RequestRejected,
    SessionClosed,
    SessionErrorCode,
    StreamErrorCode,
)
from moqt.protocol.actions import Close, Reset, Send, Stop
from moqt.protocol.events import (
    Answered,
    Event,
    GoawayReceived,
    MessageReceived,
    RequestEnded,
    RequestReceived,
    SetupReceived,
    UpdateAnswered,
    UpdateReceived,
)
from moqt.protocol.requests import Phase, RequestState
from moqt.protocol.scheduler import OutgoingStream, Scheduler
from moqt.protocol.session import SessionCore
from moqt.protocol.streams import Receiver
from moqt.quic.base import Connection, ConnectionLost
from moqt.roles import RequestOwner, Responder
from moqt.wire.messages import (
    Message,
    Request,
    RequestError,
    RequestOk,
    RequestUpdate,
    SetupOptions,
)
from moqt.wire.parameters import Parameters

_T = TypeVar("_T")


class Driver:
    """Drives a SessionCore over a QUIC connection. A ConnectionHandler."""

    def __init__(
        self,
        transport: Connection,
        *,
        options: SetupOptions,
        config: SessionConfig,
        responder: Responder,
    ) -> None:
        self.transport = transport
        self.config = config
        self.core = SessionCore(is_client=transport.is_client, options=options, config=config)
        self.scheduler = Scheduler(watermark=config.watermark, quantum=config.quantum)
        self.responder = responder
        self.closed: asyncio.Future[SessionClosed] = asyncio.get_running_loop().create_future()
        self.established: asyncio.Future[SetupOptions] = asyncio.get_running_loop().create_future()
        self.goaway: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The peer's GOAWAY on the control stream, with its URI."""
        self._answers: dict[RequestState, asyncio.Future[Message]] = {}
        self._updates: dict[RequestUpdate, asyncio.Future[Message]] = {}
        self._owners: dict[RequestState, RequestOwner] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._credit: list[asyncio.Future[None]] = []
        self._pumping = False

    def start(self) -> None:
        """Sends SETUP. Requests may follow at once."""
        stream_id = self.transport.open_stream(bidirectional=False)
        if stream_id is None:
            self._end(
                SessionClosed(SessionErrorCode.INTERNAL_ERROR, "no stream credit", remote=True)
            )
            self.transport.close(SessionErrorCode.INTERNAL_ERROR, "no credit for a control stream")
            return
        self.core.start(stream_id)
        self.act()
        self.spawn(self._await_setup())

    async def _await_setup(self) -> None:
        try:
            async with asyncio.timeout(self.config.setup_timeout):
                await asyncio.shield(self.established)
        except TimeoutError:
            self.close(SessionErrorCode.CONTROL_MESSAGE_TIMEOUT, "no SETUP")
        except SessionClosed:
            pass

    # ConnectionHandler

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        data_streams = self.core.data
        held = data_streams.held
        self.core.receive(stream_id, data, fin)
        used = len(data) - (data_streams.held - held)
        if used:
            self.transport.consumed(used)
        self.act()

    def stream_reset(self, stream_id: int, code: int) -> None:
        held = self.core.data.held
        self.core.stream_reset(stream_id, code)
        if self.core.data.held < held:
            self.transport.consumed(held - self.core.data.held)
        self.act()

    def stop_sending(self, stream_id: int, code: int) -> None:
        if not self.core.stop_sending(stream_id, code):
            self.scheduler.stopped(self.transport, stream_id, code)
        self.act()

    def datagram(self, data: bytes) -> None:
        self.core.datagram(data)
        self.act()

    def writable(self) -> None:
        if self._credit:
            waiting, self._credit = self._credit, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self.pump()

    def connection_lost(self, lost: ConnectionLost) -> None:
        code = lost.code if lost.application else SessionErrorCode.INTERNAL_ERROR
        reason = lost.reason or ("" if lost.application else f"QUIC error 0x{lost.code:x}")
        self._end(SessionClosed(code, reason, remote=lost.remote))

    # Octets out

    def pump(self) -> None:
        """Hands data to the transport as far as its watermark allows."""
        if not self.scheduler.idle and not self._pumping and not self.closed.done():
            self._pumping = True
            try:
                self.scheduler.pump(self.transport)
            finally:
                self._pumping = False
            self.transport.flush()

    def wake(self, stream: OutgoingStream) -> None:
        """There is something to send on a data stream."""
        self.scheduler.wake(stream)
        self.pump()

    def reset_stream(self, stream: OutgoingStream, code: int) -> None:
        """Gives a data stream up."""
        self.scheduler.reset(self.transport, stream, code)
        self.transport.flush()

    def hold(self, octets: int) -> None:
        """Received payload that an application has not taken yet: the peer gets no credit for it."""
        self.core.data.held += octets

    def release(self, octets: int) -> None:
        """The application took what was held."""
        self.core.data.held -= octets
        self.transport.consumed(octets)

    def act(self) -> None:
        """Carries out what the core wants done, and passes on what it tells."""
        while True:
            for action in self.core.take_actions():
                match action:
                    case Send(stream_id, data, fin):
                        self.transport.send(stream_id, data, fin)
                    case Reset(stream_id, code):
                        self.transport.reset(stream_id, code)
                    case Stop(stream_id, code):
                        self.transport.stop(stream_id, code)
                    case Close(code, reason):
                        self.transport.close(code, reason)
                        self._end(SessionClosed(code, reason, remote=False))
                self.transport.flush()
            event = self.core.next_event()
            if event is None:
                return
            self._dispatch(event)

    def _dispatch(self, event: Event) -> None:
        match event:
            case Answered(request=request, message=message):
                _resolve(self._answers.pop(request, None), message)
            case MessageReceived(request=request, message=message):
                owner = self._owners.get(request)
                if owner is not None:
                    owner.message_received(message)
                elif not request.is_local:
                    self.responder.message_received(self, request, message)
            case RequestReceived(request=request):
                self.responder.request_received(self, request)
            case UpdateReceived(request=request, update=update, fault=fault):
                self.responder.update_received(self, request, update, fault)
            case UpdateAnswered(update=update, message=message):
                _resolve(self._updates.pop(update, None), message)
            case RequestEnded(request=request, code=code):
                self._request_ended(request, code)
            case GoawayReceived(request=None, message=message):
                _resolve(self.goaway, message.uri)
            case GoawayReceived():
                pass
            case SetupReceived(options=options):
                _resolve(self.established, options)
                self.responder.session_opened(self)

    def _request_ended(self, request: RequestState, code: int | None) -> None:
        reason = "ended without its answer" if code is None else f"cancelled with code 0x{code:x}"
        error = RequestRejected(RequestErrorCode.INTERNAL_ERROR, f"the request was {reason}")
        answer = self._answers.pop(request, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)
        owner = self._owners.pop(request, None)
        if owner is not None:
            owner.request_ended(error)
        elif not request.is_local:
            self.responder.request_ended(self, request)

    # Requests

    async def ask(
        self,
        build: Callable[[int], Request],
        *,
        receiver: Receiver | None = None,
        owner: RequestOwner | None = None,
        timeout: float | None = None,
    ) -> RequestState:
        """Sends a request, before the first await where there is credit, and waits for its OK.

        Raises RequestRejected, DeadlineExceeded or SessionClosed; a request that is not waited for any
        longer, for whatever reason, is cancelled.
        """
        limit = self.config.request_timeout if timeout is None else timeout
        request: RequestState | None = None
        message: Message | None = None
        try:
            async with asyncio.timeout(limit):
                request = self._open(build, receiver) or await self._open_later(build, receiver)
                if owner is not None:
                    self._owners[request] = owner
                answer = asyncio.get_running_loop().create_future()
                self._answers[request] = answer
                self.act()
                message = await answer
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from the peer within {limit:g} s") from None
        finally:
            if message is None and request is not None:
                self._answers.pop(request, None)
                self.cancel(request)
        if isinstance(message, RequestError):
            self._forget(request)
            raise RequestRejected(
                message.code, message.reason, retry_interval=message.retry_interval
            )
        return request

    def _open(
        self, build: Callable[[int], Request], receiver: Receiver | None
    ) -> RequestState | None:
        self._check_open()
        stream_id = self.transport.open_stream(bidirectional=True)
        if stream_id is None:
            return None
        requests = self.core.requests
        return requests.ask(stream_id, build(requests.allocate_request_id()), receiver)

    async def _open_later(
        self, build: Callable[[int], Request], receiver: Receiver | None
    ) -> RequestState:
        while True:
            credit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._credit.append(credit)
            await self.until(credit)
            request = self._open(build, receiver)
            if request is not None:
                return request

    async def update(self, request: RequestState, parameters: Parameters) -> RequestOk:
        """Sends REQUEST_UPDATE and waits for its answer. Raises as `ask` does."""
        self._check_open()
        update = self.core.requests.update(request, parameters)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._updates[update] = answer
        self.act()
        try:
            async with asyncio.timeout(self.config.request_timeout):
                message = await self.until(answer)
        except TimeoutError:
            raise DeadlineExceeded("no answer to REQUEST_UPDATE") from None
        finally:
            self._updates.pop(update, None)
        if isinstance(message, RequestError):
            raise RequestRejected(message.code, message.reason)
        assert isinstance(message, RequestOk)
        return message

    def send(self, request: RequestState, message: Message, *, fin: bool = False) -> None:
        """Sends a message on a request stream; does nothing once the request or session has ended."""
        if request.phase is not Phase.ENDED and not request.fin_sent and not self.closed.done():
            self.core.requests.send(request, message, fin=fin)
            self.act()

    def cancel(self, request: RequestState, code: int = StreamErrorCode.CANCELLED) -> None:
        """Cancels a request, or takes back an offer."""
        self._forget(request)
        self.core.requests.cancel(request, code)
        self.act()

    def finish(self, request: RequestState) -> None:
        """The request came to its end: no more data is expected for it."""
        self._forget(request)
        self.core.requests.release(request)
        self.core.requests.finish(request)
        self.act()

    def _forget(self, request: RequestState) -> None:
        self._owners.pop(request, None)

    # Waiting and ending

    async def until(self, future: asyncio.Future[_T]) -> _T:
        """Waits for `future` or the end of the session, which raises SessionClosed."""
        futures: list[asyncio.Future[Any]] = [future, self.closed]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        future.cancel()
        raise self.closed.result()

    def _check_open(self) -> None:
        if self.closed.done():
            raise self.closed.result()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a task that ends with the session at the latest."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = "") -> None:
        """Closes the session; what is not acknowledged may be lost."""
        self.core.close(code, reason)
        self.act()

    async def wait_closed(self) -> None:
        """Returns once no task, timer or socket of the session is left."""
        await asyncio.shield(self.closed)
        await self.transport.wait_closed()
        current = asyncio.current_task()
        others = [task for task in self._tasks if task is not current]
        if others:
            await asyncio.wait(others)

    def _end(self, error: SessionClosed) -> None:
        if self.closed.done():
            return
        self.closed.set_result(error)
        self.core.closed = True
        waiting: list[asyncio.Future[Any]] = [self.established]
        waiting += [*self._answers.values(), *self._updates.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()
        self.goaway.cancel()
        self._answers.clear()
        self._updates.clear()
        owners, self._owners = list(self._owners.values()), {}
        for owner in owners:
            owner.request_ended(error)
        self.responder.session_closed(self)
        for task in self._tasks:
            task.cancel()


def _resolve(future: asyncio.Future[Any] | None, value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)
