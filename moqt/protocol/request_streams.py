"""The request streams of one session (draft-22 sections 2.4 to 2.6 and 3): who asked what, and what may cross now.

`requests.py` says what is allowed; this module moves messages.
"""

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
from moqt.protocol.actions import Action, Reset, Send, Stop
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
from moqt.protocol.requests import Phase, RequestIds, RequestState
from moqt.protocol.streams import DataStreams, Receiver
from moqt.wire.filters import InvalidFilter
from moqt.wire.messages import (
    Goaway,
    Message,
    MessageReader,
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
    decode_message,
    encode_message,
)
from moqt.wire.parameters import Parameters

_FIRST_MESSAGES: frozenset[int] = frozenset(
    {
        MessageType.TRACK_STATUS,
        MessageType.SUBSCRIBE,
        MessageType.PUBLISH,
        MessageType.FETCH,
        MessageType.PUBLISH_NAMESPACE,
        MessageType.SUBSCRIBE_NAMESPACE,
        MessageType.SUBSCRIBE_TRACKS,
    }
)


class _Session(Protocol):
    """What requests have to know of their session."""

    is_client: bool
    config: SessionConfig
    peer_options: SetupOptions | None
    goaway_sent: bool
    data: DataStreams


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
        self._next_id = 0 if session.is_client else 1
        self._peer_ids = RequestIds(1 if session.is_client else 0)
        self._opening: dict[int, MessageReader] = {}
        self._draining: set[int] = set()
        """Cancelled streams on which the peer may still be sending."""
        self._data.is_ours = self._issued

    # Requests of ours

    def allocate_request_id(self) -> int:
        """The next Request ID of this end."""
        request_id = self._next_id
        self._next_id += 2
        return request_id

    def _issued(self, request_id: int) -> bool:
        return request_id < self._next_id and request_id % 2 == self._next_id % 2

    def ask(
        self, stream_id: int, message: Request, receiver: Receiver | None = None
    ) -> RequestState:
        """Opens a request on a fresh bidirectional stream. Data that comes back goes to `receiver`.

        Raises LocalError after a GOAWAY, and ValueError when the message cannot be encoded.
        """
        if self.goaway_received:
            raise LocalError("the peer sent GOAWAY; open a new session for new requests")
        encoded = encode_message(message)
        request = RequestState(
            stream_id=stream_id, message=message, is_local=True, receiver=receiver
        )
        self.open[stream_id] = request
        self._add_route(request, message.request_id)
        if isinstance(message, Subscribe):
            request.alias_pending = True
            self._data.awaiting_alias += 1
        self._send(stream_id, encoded)
        return request

    def _add_route(self, request: RequestState, request_id: int) -> None:
        if request.receiver is not None:
            request.routes.append(request_id)
            self._data.add_request(request_id, request.receiver)

    def update(self, request: RequestState, parameters: Parameters) -> RequestUpdate:
        """Sends REQUEST_UPDATE; its fill stream, if it asks for one, goes to the request's receiver."""
        limit = self._session.peer_options.max_request_updates if self._session.peer_options else 0
        if limit and len(request.updates) >= limit:
            raise LocalError(f"the peer takes {limit} unanswered REQUEST_UPDATEs at a time")
        message = RequestUpdate(self.allocate_request_id(), parameters)
        self.send(request, message)
        self._add_route(request, message.request_id)
        return message

    # Messages on request streams

    def send(self, request: RequestState, message: Message, *, fin: bool = False) -> None:
        """Sends an answer or a later message. Raises LocalError where the protocol forbids it now."""
        if request.phase is Phase.ENDED or request.fin_sent:
            raise LocalError(f"{type(message).__name__} on a request that has ended")
        was_answered = request.phase is not Phase.PENDING
        request.note(message, sent=True)
        encoded = encode_message(
            message,
            request.kind,
            by_requester=request.is_local,
            update=was_answered,
        )
        request.fin_sent = fin
        self._send(request.stream_id, encoded, fin)
        self._settle(request)

    def finish(self, request: RequestState) -> None:
        """Sends FIN: no more messages from this end."""
        if not request.fin_sent and request.stream_id in self.open:
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
        if request.alias is not None and request.receiver is not None:
            self._data.remove_alias(request.alias, request.receiver)

    def accept_publish(self, request: RequestState, receiver: Receiver) -> None:
        """Routes the Objects of the peer's PUBLISH to `receiver`; to be called before its RequestOk."""
        if not isinstance(request.message, Publish):
            raise LocalError("only a PUBLISH is accepted with a receiver")
        request.receiver = receiver
        self._data.add_alias(request.message.track_alias, request.message.track, receiver)
        self._data.replay()

    def _send(self, stream_id: int, data: bytes, fin: bool = False) -> None:
        self._actions.append(Send(stream_id, data, fin))

    def _abandon(self, request: RequestState, code: int) -> None:
        if not request.fin_sent:
            self._actions.append(Reset(request.stream_id, code))
        if not request.fin_received:
            self._actions.append(Stop(request.stream_id, code))
            self._draining.add(request.stream_id)

    def _settle(self, request: RequestState) -> None:
        if request.fin_sent and request.fin_received:
            self.open.pop(request.stream_id, None)
            self._end(request)

    def _end(self, request: RequestState) -> None:
        request.phase = Phase.ENDED
        self._alias_settled(request)

    def _alias_settled(self, request: RequestState) -> None:
        if request.alias_pending:
            request.alias_pending = False
            self._data.awaiting_alias -= 1
            self._data.replay()

    # What the peer sends

    def receive(self, stream_id: int, data: bytes, fin: bool) -> None:
        """Takes octets of a bidirectional stream. Raises ProtocolViolation."""
        request = self.open.get(stream_id)
        if request is not None:
            request.reader.feed(data)
        else:
            request = self._first(stream_id, data, fin)
        if request is None:
            return
        while (framed := request.reader.next()) is not None:
            if request.phase is not Phase.ENDED:
                self._message(request, *framed)
        if fin:
            self._fin(request)

    def _first(self, stream_id: int, data: bytes, fin: bool) -> RequestState | None:
        """The first message of a stream that the peer opened; None while it is not whole, or refused."""
        if stream_id in self._draining or (stream_id & 1 == 0) == self._session.is_client:
            if fin:
                self._draining.discard(stream_id)
            return None
        reader = self._opening.setdefault(stream_id, MessageReader())
        reader.feed(data)
        framed = reader.next()
        if framed is None:
            if fin:
                raise ProtocolViolation("FIN before the first message of a request")
            return None
        del self._opening[stream_id]
        message_type, body = framed
        if message_type not in _FIRST_MESSAGES:
            raise ProtocolViolation(f"a request stream begins with message 0x{message_type:x}")
        try:
            message = decode_message(message_type, body)
        except InvalidFilter as fault:
            assert fault.request_id is not None
            self._check_id(fault.request_id)
            self._refuse(stream_id, fin, RequestErrorCode.INVALID_FILTER, str(fault))
            return None
        assert isinstance(message, Request)
        self._check_id(message.request_id)
        if self._session.goaway_sent:
            self._refuse(stream_id, fin, RequestErrorCode.GOING_AWAY, "this session is ending")
            return None
        if len(self.open) >= self._session.config.max_requests:
            self._refuse(stream_id, fin, RequestErrorCode.EXCESSIVE_LOAD, "too many requests")
            return None
        request = RequestState(stream_id=stream_id, message=message, is_local=False, reader=reader)
        self.open[stream_id] = request
        self._events.append(RequestReceived(request=request))
        return request

    def _refuse(self, stream_id: int, fin: bool, code: RequestErrorCode, reason: str) -> None:
        self._send(stream_id, encode_message(RequestError(code, 0, reason, None)), True)
        if not fin:
            self._draining.add(stream_id)

    def _check_id(self, request_id: int) -> None:
        fault = self._peer_ids.take(request_id)
        if fault is not None:
            raise ProtocolViolation(fault, SessionErrorCode.INVALID_REQUEST_ID)

    def _message(self, request: RequestState, message_type: int, body: bytes) -> None:
        fault: str | None = None
        message: Message
        try:
            message = decode_message(
                message_type,
                body,
                request.kind,
                by_requester=not request.is_local,
                update=request.phase is not Phase.PENDING,
            )
        except InvalidFilter as invalid:
            assert invalid.request_id is not None
            message, fault = RequestUpdate(invalid.request_id, Parameters()), str(invalid)
        first_answer = request.is_local and request.phase is Phase.PENDING
        updated = request.updates[0] if request.updates else None
        request.note(message, sent=False)
        match message:
            case RequestUpdate():
                self._update_received(request, message, fault)
            case Goaway():
                self._goaway(request, message)
            case RequestOk() | RequestError() | SubscribeOk() if updated and not first_answer:
                assert not isinstance(message, SubscribeOk)
                self._events.append(
                    UpdateAnswered(request=request, update=updated, message=message)
                )
            case _ if first_answer:
                self._answered(request, message)
            case _:
                self._events.append(MessageReceived(request=request, message=message))

    def _update_received(
        self, request: RequestState, update: RequestUpdate, fault: str | None
    ) -> None:
        self._check_id(update.request_id)
        if len(request.updates_received) > self._session.config.max_request_updates:
            raise ProtocolViolation(
                f"more than {self._session.config.max_request_updates} unanswered updates",
                SessionErrorCode.TOO_MANY_REQUEST_UPDATES,
            )
        self._events.append(UpdateReceived(request=request, update=update, fault=fault))

    def _goaway(self, request: RequestState, message: Goaway) -> None:
        if message.uri and not self._session.is_client:
            raise ProtocolViolation("GOAWAY with a URI from a client")
        self._events.append(GoawayReceived(request=request, message=message))

    def _answered(self, request: RequestState, message: Message) -> None:
        if isinstance(message, RequestError):
            self._check_redirect(request, message)
            self.finish(request)
        elif isinstance(message, SubscribeOk) and request.receiver is not None:
            assert isinstance(request.message, Subscribe)
            self._data.add_alias(message.track_alias, request.message.track, request.receiver)
        self._events.append(Answered(request=request, message=message))
        self._alias_settled(request)

    def _check_redirect(self, request: RequestState, message: RequestError) -> None:
        redirect = message.redirect
        if redirect is None:
            return
        if redirect.uri and not self._session.is_client:
            raise ProtocolViolation("redirect to a URI from a client")
        by_prefix = (PublishNamespace, SubscribeNamespace, SubscribeTracks)
        if redirect.track.name and isinstance(request.message, by_prefix):
            raise ProtocolViolation("redirect of a namespace request to a track")

    def _fin(self, request: RequestState) -> None:
        if request.reader.pending:
            raise ProtocolViolation("FIN inside a message")
        request.fin_received = True
        sender_owes = isinstance(request.message, Subscribe if request.is_local else Publish)
        if request.phase is Phase.ENDED:
            pass
        elif (
            request.is_local
            and (
                request.phase is Phase.PENDING
                or isinstance(request.message, SubscribeNamespace | SubscribeTracks)
            )
        ) or (sender_owes and not request.done):
            self._events.append(RequestEnded(request=request, code=None))
            self._end(request)
            self.finish(request)
        elif request.is_local and not isinstance(request.message, PublishNamespace | Publish):
            self.finish(request)
        self._settle(request)

    def cancelled(self, stream_id: int, code: int, *, receiving: bool) -> None:
        """The peer reset its side of a stream (`receiving`), or does not want ours."""
        self._opening.pop(stream_id, None)
        if receiving:
            self._draining.discard(stream_id)
        request = self.open.pop(stream_id, None)
        if request is None:
            return
        if receiving:
            request.fin_received = True
        else:
            request.fin_sent = True
        self._abandon(request, code)
        had_ended = request.phase is Phase.ENDED or request.done
        self._end(request)
        if not had_ended:
            self._events.append(RequestEnded(request=request, code=code))
