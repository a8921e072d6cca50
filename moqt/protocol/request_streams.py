"""The request streams of one session (draft-22 sections 2.4 to 2.6 and 3). `requests.py` says what may cross now."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from moqt.config import SessionConfig
from moqt.errors import (
    LocalError,
    ProtocolViolation,
    RequestErrorCode,
    SessionErrorCode,
    StreamErrorCode,
)
from moqt.model import FullTrackName
from moqt.protocol.actions import Action, Reset, Send, Stop
from moqt.protocol.checks import check_answer, check_request, check_sent
from moqt.protocol.events import (
    Answered,
    Event,
    GoawayReceived,
    MessageReceived,
    RequestEnded,
    RequestReceived,
    UpdateAnswered,
    UpdateReceived,
)
from moqt.protocol.openings import Opening, Openings
from moqt.protocol.requests import Phase, RequestIds, RequestState, encode
from moqt.protocol.streams import DataStreams, Receiver
from moqt.protocol.tokens import TokenCache
from moqt.wire.filters import InvalidFilter
from moqt.wire.messages import (
    Goaway,
    Message,
    MessageType,
    Publish,
    PublishNamespace,
    Request,
    RequestError,
    RequestOk,
    RequestUpdate,
    SetupOptions,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
    decode_message,
)
from moqt.wire.parameters import Parameters

_NO_REQUEST = TrackStatus(0, FullTrackName((), b""))
"""Stands in a request until its own message is read."""
_OFFERS = (PublishNamespace, Publish)

_RETRY_MS = 1000
"""When a peer may ask again that was refused with EXCESSIVE_LOAD."""


class _Session(Protocol):
    """What requests have to know of their session."""

    is_client: bool
    config: SessionConfig
    peer_options: SetupOptions | None
    goaway_sent: bool
    data: DataStreams
    tokens: TokenCache

    def close(self, code: SessionErrorCode, reason: str) -> None: ...


class RequestStreams:
    """Every request of one session, from both sides."""

    def __init__(self, session: _Session, actions: list[Action], events: deque[Event]) -> None:
        self._session = session
        self._data = session.data
        self._actions = actions
        self._events = events
        self.goaway_received = False
        self.open: dict[int, RequestState] = {}
        """Requests whose streams are still open, by stream ID."""
        self.next_id = 0 if session.is_client else 1
        """The Request ID that the next request of this end has to have."""
        self._peer_ids = RequestIds(1 if session.is_client else 0)
        self.openings = Openings(is_client=session.is_client)
        self._data.is_ours = self._issued

    # Requests of ours

    def _issued(self, request_id: int) -> bool:
        return request_id < self.next_id and request_id % 2 == self.next_id % 2

    def ask(
        self, stream_id: int, message: Request, receiver: Receiver | None = None
    ) -> RequestState:
        """Opens a request on a fresh bidirectional stream. Data that comes back goes to `receiver`.

        Raises LocalError after a GOAWAY, and when the message cannot be encoded.
        """
        if self.goaway_received:
            raise LocalError("the peer sent GOAWAY; open a new session for new requests")
        encoded = encode(message)
        self.next_id += 2
        request = RequestState(
            stream_id=stream_id, message=message, is_local=True, receiver=receiver
        )
        self.open[stream_id] = request
        self._add_route(request, message.request_id, message.parameters)
        if isinstance(message, Subscribe):
            request.alias_pending = True
            self._data.expect_alias(message.track)
        self._send(stream_id, encoded)
        return request

    def _add_route(self, request: RequestState, request_id: int, parameters: Parameters) -> None:
        """Where the fetch or fill stream goes that answers under `request_id`."""
        receiver = request.receiver
        if receiver is not None:
            order = parameters.fill and parameters.fill.group_order
            order = order or request.message.parameters.group_order or receiver.group_order
            request.routes.append(request_id)
            self._data.add_request(request_id, receiver, order)

    def update(self, request: RequestState, parameters: Parameters) -> RequestUpdate:
        """Sends REQUEST_UPDATE; its fill stream, if it asks for one, goes to the request's receiver."""
        limit = self._session.peer_options.max_request_updates if self._session.peer_options else 0
        if limit and len(request.updates) >= limit:
            raise LocalError(f"the peer takes {limit} unanswered REQUEST_UPDATEs at a time")
        message = RequestUpdate(self.next_id, parameters)
        self.send(request, message)
        self.next_id += 2
        if parameters.fill is not None:
            self._add_route(request, message.request_id, parameters)
        return message

    # Messages on request streams

    def send(self, request: RequestState, message: Message, *, fin: bool = False) -> None:
        """Sends an answer or a later message. Raises LocalError where the protocol forbids it now."""
        if request.phase is Phase.ENDED or request.fin_sent:
            raise LocalError(f"{type(message).__name__} on a request that has ended")
        request.check(message, sent=True)
        check_sent(message, by_client=self._session.is_client)
        if fin and (debt := request.debt_after(message)):
            raise LocalError(f"FIN before {debt}")
        encoded = encode(message, request)
        request.move(message, sent=True)
        request.fin_sent = fin
        self._send(request.stream_id, encoded, fin)
        self._settle(request)

    def finish(self, request: RequestState) -> None:
        """Sends FIN: no more messages from this end. Raises LocalError while it owes one."""
        if not request.fin_sent and request.stream_id in self.open:
            if debt := request.debt():
                raise LocalError(f"FIN before {debt}")
            request.fin_sent = True
            self._send(request.stream_id, b"", True)
            self._settle(request)

    def cancel(self, request: RequestState, code: int = StreamErrorCode.CANCELLED) -> None:
        """Cancels in every direction that is open. Its data streams are refused from now on."""
        self.release(request)
        if self.open.pop(request.stream_id, None) is None:
            return
        self._abandon(request, code)
        self._end(request)

    def release(self, request: RequestState) -> None:
        """Forgets where data of a request goes; streams that still come are refused."""
        for request_id in request.routes:
            self._data.remove_request(request_id)
        request.routes.clear()
        receiver, request.receiver = request.receiver, None
        if request.alias is not None and receiver is not None:
            self._data.remove_alias(request.alias, receiver)

    def accept_publish(self, request: RequestState, receiver: Receiver) -> None:
        """Routes the Objects of the peer's PUBLISH to `receiver`; to be called before its RequestOk."""
        if not isinstance(request.message, Publish):
            raise LocalError("only a PUBLISH is accepted with a receiver")
        request.receiver = receiver
        try:
            self._data.add_alias(request.message.track_alias, request.message.track, receiver)
            self._data.replay()
        except ProtocolViolation as violation:
            self._session.close(violation.code, violation.reason)

    def _send(self, stream_id: int, data: bytes, fin: bool = False) -> None:
        self._actions.append(Send(stream_id, data, fin))

    def _abandon(self, request: RequestState, code: int) -> None:
        if not request.fin_sent:
            self._actions.append(Reset(request.stream_id, code))
        if not request.fin_received:
            self._actions.append(Stop(request.stream_id, code))
            self.openings.drain(request.stream_id)

    def _settle(self, request: RequestState) -> None:
        if request.fin_sent and request.fin_received:
            self.open.pop(request.stream_id, None)
            if request.phase is not Phase.ENDED and not request.is_local:
                self._fail(request, None)  # the responder hears that the peer has had everything
            self._end(request)

    def _end(self, request: RequestState) -> None:
        request.phase = Phase.ENDED
        self._alias_settled(request)

    def _alias_settled(self, request: RequestState) -> None:
        if request.alias_pending:
            request.alias_pending = False
            assert isinstance(request.message, Subscribe)
            self._data.alias_settled(request.message.track)

    # What the peer sends

    def receive(self, stream_id: int, data: bytes, fin: bool) -> None:
        """Takes octets of a bidirectional stream. Raises ProtocolViolation."""
        request = self.open.get(stream_id)
        if request is not None:
            request.reader.feed(data)
        elif (opening := self.openings.receive(stream_id, data, fin)) is not None:
            request = self._first(stream_id, opening, fin)
        if request is None:
            return
        while (framed := request.reader.next()) is not None:
            if request.phase is not Phase.ENDED:
                self._message(request, *framed)
        if fin:
            self._fin(request)

    def _first(self, stream_id: int, opening: Opening, fin: bool) -> RequestState | None:
        """The request that a stream begins with; None when it is refused here."""
        request = RequestState(
            stream_id=stream_id, message=_NO_REQUEST, is_local=False, reader=opening.reader
        )
        refusal = self._open(request, opening)
        if refusal is not None:
            code, reason = refusal
            retry = _RETRY_MS + 1 if code is RequestErrorCode.EXCESSIVE_LOAD else 0
            self._send(stream_id, encode(RequestError(code, retry, reason, None)), True)
            if not fin:
                self.openings.drain(stream_id)
            return None
        self.open[stream_id] = request
        self._events.append(RequestReceived(request=request))
        return request

    def _open(self, request: RequestState, opening: Opening) -> tuple[RequestErrorCode, str] | None:
        """Takes the message that opens a request; with the code and the reason if it is refused here."""
        tokens = self._session.tokens
        try:
            message = decode_message(opening.message_type, opening.body)
        except InvalidFilter as fault:
            assert fault.request_id is not None
            self._check_id(fault.request_id)
            if fault.parameters is not None:
                tokens.resolve(fault.parameters.authorization_tokens)
            return RequestErrorCode.INVALID_FILTER, fault.reason
        assert isinstance(message, Request)
        self._check_id(message.request_id)
        check_request(message)
        request.message = message
        request.tokens = tokens.resolve(message.parameters.authorization_tokens)
        if self._session.goaway_sent:
            return RequestErrorCode.GOING_AWAY, "this session is ending"
        asked = sum(not other.is_local for other in self.open.values())
        if asked >= self._session.config.max_requests:
            return RequestErrorCode.EXCESSIVE_LOAD, "too many requests"
        return None

    def _check_id(self, request_id: int) -> None:
        fault = self._peer_ids.take(request_id)
        if fault is not None:
            raise ProtocolViolation(fault, SessionErrorCode.INVALID_REQUEST_ID)

    def _message(self, request: RequestState, message_type: int, body: bytes) -> None:
        fault: InvalidFilter | None = None
        try:
            message = decode_message(
                message_type,
                body,
                request.kind,
                by_requester=not request.is_local,
                update=request.phase is not Phase.PENDING,
            )
        except InvalidFilter as invalid:
            if message_type != MessageType.REQUEST_UPDATE:
                raise ProtocolViolation("a request inside a request stream") from None
            assert invalid.request_id is not None
            parameters = invalid.parameters or Parameters()
            message, fault = RequestUpdate(invalid.request_id, parameters), invalid
        request.check(message, sent=False)
        first_answer = request.is_local and request.phase is Phase.PENDING
        match message:
            case RequestUpdate():
                self._update_received(request, message, fault)
            case Goaway():
                self._goaway(request, message)
            case _ if first_answer:
                self._answered(request, message)
            case RequestOk() | RequestError():
                self._update_answered(request, message)
            case _:
                request.move(message, sent=False)
                self._events.append(MessageReceived(request=request, message=message))

    def _update_received(
        self, request: RequestState, update: RequestUpdate, fault: InvalidFilter | None
    ) -> None:
        self._check_id(update.request_id)
        tokens = self._session.tokens.resolve(update.parameters.authorization_tokens)
        if request.fin_sent:
            return  # it crossed our last message, and no answer can follow that
        request.move(update, sent=False)
        if tokens:
            request.update_tokens[update.request_id] = tokens
        limit = self._session.config.max_request_updates
        if limit and len(request.updates_received) > limit:
            raise ProtocolViolation(
                f"more than {limit} unanswered updates", SessionErrorCode.TOO_MANY_REQUEST_UPDATES
            )
        reason = fault.reason if fault is not None else None
        self._events.append(UpdateReceived(request=request, update=update, fault=reason))

    def _update_answered(self, request: RequestState, message: RequestOk | RequestError) -> None:
        """One REQUEST_ERROR may stand for all updates that are not answered yet."""
        if not request.update_failed:
            last = len(request.updates) if isinstance(message, RequestError) else 1
            for update in list(request.updates)[:last]:
                self._events.append(UpdateAnswered(request=request, update=update, message=message))
        request.move(message, sent=False)

    def _goaway(self, request: RequestState, message: Goaway) -> None:
        if message.uri and not self._session.is_client:
            raise ProtocolViolation("GOAWAY with a URI from a client")
        request.move(message, sent=False)
        self._events.append(GoawayReceived(request=request, message=message))

    def _answered(self, request: RequestState, message: Message) -> None:
        check_answer(request.message, message, at_server=not self._session.is_client)
        request.move(message, sent=False)
        if isinstance(message, RequestError):
            self.release(request)
            self.finish(request)
        elif isinstance(message, SubscribeOk) and request.receiver is not None:
            assert isinstance(request.message, Subscribe)
            self._data.add_alias(message.track_alias, request.message.track, request.receiver)
        self._events.append(Answered(request=request, message=message))
        self._alias_settled(request)

    def _fin(self, request: RequestState) -> None:
        if request.reader.pending:
            raise ProtocolViolation("FIN inside a message")
        request.fin_received = True
        if request.phase is not Phase.ENDED and self._fails_by_fin(request):
            self._fail(request, None)
            self.finish(request)
        elif request.is_local and not request.receiver and request.kind not in _OFFERS:
            self.finish(request)  # who takes data does that once it has everything
        self._settle(request)

    def _fails_by_fin(self, request: RequestState) -> bool:
        """Whether the peer's FIN ends the request before what it owes, or all that the request is for."""
        if not request.is_local:
            return isinstance(request.message, Publish) and not request.done
        if request.phase is Phase.PENDING:
            return True
        match request.message:
            case Subscribe():
                return not request.done
            case SubscribeNamespace() | SubscribeTracks():
                return True
        return request.update_failed

    def cancelled(self, stream_id: int, code: int, *, receiving: bool) -> None:
        """The peer reset its side of a stream (`receiving`), or does not want ours."""
        request = self.open.pop(stream_id, None)
        if receiving:
            self.openings.reset(stream_id)
        if request is None:
            if not receiving:
                self.openings.stopped(stream_id)
            return
        request.fin_received |= receiving
        request.fin_sent |= not receiving
        self._abandon(request, code)
        if request.phase is not Phase.ENDED and not (request.done and request.is_local):
            self._fail(request, code)
        self._end(request)

    def _fail(self, request: RequestState, code: int | None) -> None:
        self._events.append(RequestEnded(request=request, code=code))
        self.release(request)
        self._end(request)
