"""The life of a request stream, as tables (draft-22 sections 2.5 and 3).

Rules that hold for every request stream:

- The requester's first message names the request; the responder's first message answers it, with the OK of
  that kind or with REQUEST_ERROR. After that each side may send what the tables below list.
- REQUEST_UPDATE is answered in order by REQUEST_OK or REQUEST_ERROR; an answer that answers nothing is a
  violation. A refused update ends the request.
- FIN says "no more messages from me" and is no cancellation. It comes after everything that its sender owes.
- RESET_STREAM and STOP_SENDING cancel.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from moqt.errors import LocalError, ProtocolViolation
from moqt.protocol.streams import Receiver
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Message,
    MessageReader,
    Namespace,
    NamespaceDone,
    Publish,
    PublishDone,
    PublishNamespace,
    PublishSkipped,
    PublishStateNotify,
    Request,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
)

OK_OF: dict[type[Request], type[Message]] = {
    Subscribe: SubscribeOk,
    Publish: RequestOk,
    Fetch: FetchOk,
    TrackStatus: RequestOk,
    PublishNamespace: RequestOk,
    SubscribeNamespace: RequestOk,
    SubscribeTracks: RequestOk,
}
"""The message that accepts a request."""

FROM_REQUESTER: dict[type[Request], frozenset[type[Message]]] = {
    Subscribe: frozenset({RequestUpdate}),
    Publish: frozenset({RequestUpdate, PublishDone, PublishStateNotify}),
    Fetch: frozenset({RequestUpdate}),
    TrackStatus: frozenset(),
    PublishNamespace: frozenset({RequestUpdate}),
    SubscribeNamespace: frozenset({RequestUpdate}),
    SubscribeTracks: frozenset({RequestUpdate}),
}
"""What the requester may send after its first message."""

FROM_RESPONDER: dict[type[Request], frozenset[type[Message]]] = {
    Subscribe: frozenset({PublishDone, PublishStateNotify}),
    Publish: frozenset({RequestUpdate}),
    Fetch: frozenset(),
    TrackStatus: frozenset(),
    PublishNamespace: frozenset(),
    SubscribeNamespace: frozenset({Namespace, NamespaceDone}),
    SubscribeTracks: frozenset({PublishSkipped}),
}
"""What the responder may send after it accepted."""


class Phase(Enum):
    """Where a request stands."""

    PENDING = auto()
    """Asked, not answered."""
    ESTABLISHED = auto()
    """Accepted."""
    ENDED = auto()
    """Refused, done, cancelled or lost; nothing more is sent or expected."""


@dataclass(eq=False, slots=True, kw_only=True)
class RequestState:
    """One request stream, from either side. `is_local` says that this end asked."""

    stream_id: int
    message: Request
    is_local: bool
    phase: Phase = Phase.PENDING
    answer: Message | None = None
    fin_sent: bool = False
    fin_received: bool = False
    done: bool = False
    """PUBLISH_DONE has crossed in either direction."""
    goaway_sent: bool = False
    goaway_received: bool = False
    updates: deque[RequestUpdate] = field(default_factory=deque)
    """REQUEST_UPDATEs without an answer, whoever sent them; only one side may update."""
    updates_received: deque[RequestUpdate] = field(default_factory=deque)
    namespaces: set[tuple[bytes, ...]] = field(default_factory=set)
    """Suffixes announced on a SUBSCRIBE_NAMESPACE stream and not taken back."""
    reader: MessageReader = field(default_factory=MessageReader)
    receiver: Receiver | None = None
    """Where the data of a request of ours goes."""
    routes: list[int] = field(default_factory=list)
    """Request IDs under which fetch or fill streams may come back."""
    alias_pending: bool = False
    """A SUBSCRIBE of ours whose Track Alias is not known yet."""

    @property
    def request_id(self) -> int:
        return self.message.request_id

    @property
    def kind(self) -> type[Request]:
        return type(self.message)

    @property
    def alias(self) -> int | None:
        """The Track Alias of an accepted SUBSCRIBE, or of a PUBLISH."""
        if isinstance(self.message, Publish):
            return self.message.track_alias
        return self.answer.track_alias if isinstance(self.answer, SubscribeOk) else None

    def _allowed(self, message: Message, *, by_requester: bool) -> str | None:
        """None when `message` may cross now, else what is wrong."""
        kind, name = self.kind, type(message).__name__
        if isinstance(message, Goaway):
            return None
        if self.done and type(message) not in (RequestOk, RequestError):
            return f"{name} after PUBLISH_DONE"
        if self.phase is Phase.PENDING and not by_requester:
            if isinstance(message, (OK_OF[kind], RequestError)):
                return None
            return f"{name} before the answer to {kind.__name__}"
        if isinstance(message, (RequestOk, RequestError)):
            return None if self._answers_update(by_requester) else f"{name} answers nothing"
        allowed = FROM_REQUESTER if by_requester else FROM_RESPONDER
        if type(message) not in allowed[kind]:
            side = "requester" if by_requester else "responder"
            return f"{name} from the {side} of {kind.__name__}"
        return None

    def _answers_update(self, by_requester: bool) -> bool:
        sent_by_us = by_requester == self.is_local
        return bool(self.updates_received if sent_by_us else self.updates)

    def note(self, message: Message, *, sent: bool) -> None:
        """Checks a message that crosses on this stream and moves the state.

        Raises LocalError when `sent` and not allowed, ProtocolViolation when received and not allowed.
        """
        by_requester = sent == self.is_local
        fault = self._allowed(message, by_requester=by_requester)
        if fault is None and isinstance(message, NamespaceDone):
            fault = None if message.suffix in self.namespaces else "NAMESPACE_DONE before NAMESPACE"
        if fault is None and isinstance(message, Goaway):
            crossed = self.goaway_sent if sent else self.goaway_received
            fault = "second GOAWAY on one stream" if crossed else None
        if fault is not None:
            raise LocalError(fault) if sent else ProtocolViolation(fault)
        self._move(message, sent=sent, by_requester=by_requester)

    def _move(self, message: Message, *, sent: bool, by_requester: bool) -> None:
        match message:
            case RequestUpdate():
                (self.updates if sent else self.updates_received).append(message)
            case RequestOk() | RequestError() | SubscribeOk() | FetchOk():
                if self.phase is Phase.PENDING and not by_requester:
                    self.answer = message
                    refused = isinstance(message, RequestError)
                    self.phase = Phase.ENDED if refused else Phase.ESTABLISHED
                else:
                    (self.updates_received if sent else self.updates).popleft()
            case PublishDone():
                self.done = True
            case Goaway():
                if sent:
                    self.goaway_sent = True
                else:
                    self.goaway_received = True
            case Namespace():
                self.namespaces.add(message.suffix)
            case NamespaceDone():
                self.namespaces.discard(message.suffix)


class RequestIds:
    """Checks the peer's Request IDs: right parity, never twice, in whatever order streams arrive."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._low = first
        self._seen: set[int] = set()

    def take(self, request_id: int) -> str | None:
        """None for a new valid ID, else what is wrong."""
        if request_id % 2 != self._first % 2:
            return f"Request ID {request_id} has the wrong parity"
        if request_id < self._low or request_id in self._seen:
            return f"Request ID {request_id} was used before"
        self._seen.add(request_id)
        while self._low in self._seen:
            self._seen.discard(self._low)
            self._low += 2
        return None
