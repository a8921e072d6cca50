"""The one place where a session meets a transport: octets in, actions out, credit, owned tasks, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from moqt.asking import Asking, resolve
from moqt.config import SessionConfig
from moqt.errors import SessionClosed, SessionErrorCode, StreamErrorCode
from moqt.protocol.actions import Close, Reset, Send, Stop
from moqt.protocol.credentials import Credentials
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
from moqt.quic.base import Authenticated, Connection, ConnectionLost
from moqt.roles import RequestOwner, Responder
from moqt.wire.messages import Message, Request, RequestOk, SetupOptions
from moqt.wire.parameters import Parameters

_T = TypeVar("_T")


class Unfinished:
    """Octets of Objects that are not whole yet and have no destination, over one session."""

    def __init__(self, limit: int) -> None:
        self.octets = 0
        self._limit = limit

    def take(self, octets: int) -> bool:
        """Counts more of them; False when that is too much."""
        self.octets += octets
        return self.octets <= self._limit


_NOT_LET_IN = frozenset({0x100 + alert for alert in (*range(42, 50), 116)})
"""TLS alerts about a certificate, bad_certificate to access_denied and certificate_required (RFC 8446 section 6.2), as
QUIC's codes. With the handshake behind us they are about our own."""


class Driver:
    """Drives a SessionCore over a QUIC connection. A ConnectionHandler."""

    def __init__(
        self,
        transport: Connection,
        *,
        options: SetupOptions,
        config: SessionConfig,
        responder: Responder,
        credentials: Credentials | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.transport = transport
        self.config = config
        self.core = SessionCore(is_client=transport.is_client, options=options, config=config)
        self.scheduler = Scheduler(watermark=config.watermark, quantum=config.quantum)
        self.responder = responder
        self.credentials = credentials
        self.asking = Asking(self)
        self.closed: asyncio.Future[SessionClosed] = loop.create_future()
        self.established: asyncio.Future[SetupOptions] = loop.create_future()
        self.goaway: asyncio.Future[str] = loop.create_future()
        """The peer's GOAWAY on the control stream, with its URI."""
        self.held = 0
        """Octets that applications hold."""
        self.unfinished = Unfinished(config.max_unfinished)
        self._balance = 0
        """Credit the peer is due; below zero, what applications hold beyond what came lately."""
        self._kept = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._openings: asyncio.Task[None] | None = None
        self._started = False
        self._pumping = False
        self._receiving = False
        """The core is taking octets in: what its sinks ask for waits until it has."""
        self._dispatching = False
        self._given_up = False

    def start(self) -> None:
        """Sends SETUP, once. Requests may follow at once."""
        if self._started or self.closed.done():
            return
        self._started = True
        stream_id = self.transport.open_stream(bidirectional=False)
        if stream_id is None:
            self.close(SessionErrorCode.INTERNAL_ERROR, "no credit for a control stream")
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
        if not self._started:
            self.start()
        self._balance += len(data)
        self._receiving = True
        try:
            self.core.receive(stream_id, data, fin)
        finally:
            self._receiving = False
        self.act()
        begun = self.core.requests.openings.begun
        if begun and (self._openings is None or self._openings.done()):
            self._openings = self.spawn(self._give_up_openings())

    async def _give_up_openings(self) -> None:
        """A request that stays half sent holds memory and one of the streams that peers are granted."""
        while begun := self.core.requests.openings.begun:
            await asyncio.sleep(self.config.request_timeout)
            self.core.give_up_openings(begun)
            self.act()

    def stream_reset(self, stream_id: int, code: int) -> None:
        self._receiving = True
        try:
            self.core.stream_reset(stream_id, code)
        finally:
            self._receiving = False
        self.act()

    def stop_sending(self, stream_id: int, code: int) -> None:
        if not self.core.stop_sending(stream_id, code):
            self.scheduler.stopped(self.transport, stream_id, code)
        self.act()

    def datagram(self, data: bytes) -> None:
        self.core.datagram(data)
        self.act()

    def writable(self) -> None:
        self.asking.writable()
        self.pump()

    def connection_lost(self, lost: ConnectionLost) -> None:
        code: int = SessionErrorCode.INTERNAL_ERROR
        if lost.application:
            code = lost.code
        elif lost.remote and lost.code in _NOT_LET_IN:
            code = SessionErrorCode.UNAUTHORIZED
        reason = lost.reason or ("" if lost.application else f"QUIC error 0x{lost.code:x}")
        self._end(SessionClosed(code, reason, remote=lost.remote))

    # Octets out

    def pump(self) -> None:
        """Hands data to the transport as far as its watermark allows."""
        if not self.scheduler.idle and not self._pumping and not self.closed.done():
            self._pumping = True
            try:
                self.scheduler.adapt(self.transport.bandwidth_delay())
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

    # Credit for octets in

    def hold(self, octets: int) -> None:
        """An application keeps received payload that it has not used: the peer gets no credit for it."""
        self.held += octets
        self._balance -= octets

    def release(self, octets: int) -> None:
        """The application used what it held."""
        self.held -= octets
        self._balance += octets
        self._give_credit()

    def _give_credit(self) -> None:
        """Counts what the core keeps as well: streams that wait for their route."""
        kept = self.core.data.held
        self._balance += self._kept - kept
        self._kept = kept
        if self._balance > 0:
            credit, self._balance = self._balance, 0
            self.transport.consumed(credit)

    # Actions and events

    def act(self) -> None:
        """Carries out what the core wants done, and passes on what it tells.

        A handler of an event may call this again; what follows from that is passed on after it returns.
        """
        if self._receiving:
            return
        self._perform()
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while not self.closed.done() and (event := self.core.next_event()) is not None:
                self._dispatch(event)
                self._perform()
        finally:
            self._dispatching = False

    def _perform(self) -> None:
        actions = self.core.take_actions()
        for action in actions:
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
        self._give_credit()
        if actions:
            self.transport.flush()
            if self.transport.unsent() > self.config.max_backlog and not self._given_up:
                # Not at once: the end undoes only what whoever sends this has put down by then.
                self._given_up = True
                why = SessionErrorCode.INTERNAL_ERROR, "the peer does not read its answers"
                asyncio.get_running_loop().call_soon(self.close, *why)

    def _dispatch(self, event: Event) -> None:
        match event:
            case Answered():
                self.asking.answered(event)
            case UpdateAnswered():
                self.asking.update_answered(event)
            case RequestEnded(request=request):
                if request.is_local:
                    self.asking.ended(event)
                else:
                    self.responder.request_ended(self, request)
            case MessageReceived(request=request, message=message):
                owner = self.asking.owners.get(request)
                if owner is not None:
                    owner.message_received(message)
                elif not request.is_local:
                    self.responder.message_received(self, request, message)
            case RequestReceived(request=request):
                self.responder.request_received(self, request)
            case UpdateReceived(request=request, update=update, fault=fault):
                self.responder.update_received(self, request, update, fault)
            case GoawayReceived(request=None, message=message):
                resolve(self.goaway, message.uri)
            case GoawayReceived():
                pass
            case SetupReceived(options=options):
                resolve(self.established, options)
                self.responder.session_opened(self)

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

        Raises RequestRejected, DeadlineExceeded, SessionClosed, and LocalError for what cannot be sent. A
        request that is not waited for any longer, for whatever reason, is cancelled.
        """
        limit = self.config.request_timeout if timeout is None else timeout
        return await self.asking.ask(build, receiver, owner, limit)

    async def update(self, request: RequestState, parameters: Parameters) -> RequestOk:
        """Sends REQUEST_UPDATE and waits for its answer. Raises as `ask` does."""
        return await self.asking.update(request, parameters, self.config.request_timeout)

    def send(self, request: RequestState, message: Message, *, fin: bool = False) -> None:
        """Sends a message on a request stream; does nothing once the request or session has ended."""
        if request.phase is not Phase.ENDED and not request.fin_sent and not self.closed.done():
            self.core.requests.send(request, message, fin=fin)
            self.act()

    def cancel(self, request: RequestState, code: int = StreamErrorCode.CANCELLED) -> None:
        """Cancels a request, or takes back an offer."""
        self.core.requests.cancel(request, code)
        self.asking.forget(request)
        self.act()

    def finish(self, request: RequestState) -> None:
        """The request came to its end: no more data is expected for it."""
        self.core.requests.release(request)
        self.core.requests.finish(request)
        self.asking.forget(request)
        self.act()

    # Waiting and ending

    async def until(self, future: asyncio.Future[_T]) -> _T:
        """Waits for `future` or the end of the session, which raises SessionClosed."""
        futures: list[asyncio.Future[Any]] = [future, self.closed]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        future.cancel()
        raise self.closed.result()

    def check_open(self) -> None:
        """Raises SessionClosed once the session has ended."""
        if self.closed.done():
            raise self.closed.result()

    @property
    def peer_certificate(self) -> bytes | None:
        """DER of the certificate that the client showed, checked; None where none was asked for."""
        transport = self.transport
        return transport.peer_certificate if isinstance(transport, Authenticated) else None

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a task that ends with the session at the latest."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.closed.done():
            task.cancel()
        return task

    def leave(self, uri: str, timeout: float) -> None:
        """Sends GOAWAY; closes with GOAWAY_TIMEOUT after `timeout` seconds if requests remain; 0 never."""
        is_first = not self.core.goaway_sent
        self.core.goaway(uri, int(timeout * 1000))
        self.act()
        if is_first and timeout > 0 and not self.closed.done():
            self.spawn(self._await_leave(timeout))

    async def _await_leave(self, timeout: float) -> None:
        await asyncio.sleep(timeout)
        if self.core.requests.open:
            self.close(SessionErrorCode.GOAWAY_TIMEOUT, "requests remain after GOAWAY")

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
        futures: list[asyncio.Future[Any]] = [self.established, self.goaway]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()
        self.asking.session_ended(error)
        self.core.data.end(StreamErrorCode.SESSION_CLOSED)
        self.responder.session_closed(self)
        for task in tuple(self._tasks):
            task.cancel()
