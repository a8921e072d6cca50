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
from moqt.protocol.tokens import Token
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
    encode_message,
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

_MAX_WITHDRAWN = 1024
"""Namespaces taken back that are remembered: a relay may say so once for each publisher it lost."""

_MAX_SPREAD = 4096
"""IDs that may be missing among those used. A cancelled request can lose its ID for good."""


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
    """The publisher's PUBLISH_DONE has crossed."""
    goaway_sent: bool = False
    goaway_received: bool = False
    updates: deque[RequestUpdate] = field(default_factory=deque)
    """REQUEST_UPDATEs of this end without an answer."""
    updates_received: deque[RequestUpdate] = field(default_factory=deque)
    """REQUEST_UPDATEs of the peer without an answer."""
    update_failed: bool = False
    """An update was refused: the request is coming to its end."""
    tokens: tuple[Token, ...] = ()
    """What a request of the peer is authorised by."""
    update_tokens: dict[int, tuple[Token, ...]] = field(default_factory=dict)
    """What the peer's updates without an answer were sent with, by their Request IDs."""
    namespaces: set[tuple[bytes, ...]] = field(default_factory=set)
    """Suffixes announced on a SUBSCRIBE_NAMESPACE stream and not taken back."""
    withdrawn: set[tuple[bytes, ...]] = field(default_factory=set)
    """Suffixes that were taken back."""
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

    def debt(self) -> str | None:
        """What this end has to send before its FIN; None when nothing."""
        if self.phase is Phase.ENDED:
            return None
        if self.phase is Phase.PENDING and not self.is_local:
            return "the answer"
        publishes = self.kind is (Publish if self.is_local else Subscribe)
        return "PUBLISH_DONE" if publishes and not self.done else None

    def debt_after(self, message: Message) -> str | None:
        """What this end still has to send before its FIN once `message` is sent."""
        if isinstance(message, PublishDone):
            return None
        if self.phase is Phase.PENDING and not self.is_local and not isinstance(message, Goaway):
            return "PUBLISH_DONE" if isinstance(message, SubscribeOk) else None
        return self.debt()

    def check(self, message: Message, *, sent: bool) -> None:
        """Raises LocalError when `sent` and not allowed now, ProtocolViolation when received and not."""
        fault = self._fault(message, sent=sent, by_requester=sent == self.is_local)
        if fault is not None:
            raise LocalError(fault) if sent else ProtocolViolation(fault)

    def _fault(self, message: Message, *, sent: bool, by_requester: bool) -> str | None:
        kind, name = self.kind, type(message).__name__
        if isinstance(message, Goaway):
            crossed = self.goaway_sent if sent else self.goaway_received
            return "second GOAWAY on one stream" if crossed else None
        if self.phase is Phase.PENDING and not by_requester:
            if isinstance(message, (OK_OF[kind], RequestError)):
                return None
            return f"{name} before the answer to {kind.__name__}"
        if isinstance(message, (RequestOk, RequestError)):
            owed = self.updates_received if sent else self.updates
            return None if owed else f"{name} answers nothing"
        allowed = FROM_REQUESTER if by_requester else FROM_RESPONDER
        if type(message) not in allowed[kind]:
            side = "requester" if by_requester else "responder"
            return f"{name} from the {side} of {kind.__name__}"
        by_publisher = by_requester is (kind is Publish)
        # What a subscriber sends may cross PUBLISH_DONE on its way.
        if self.done and (by_publisher or sent):
            return f"{name} after PUBLISH_DONE"
        if sent and isinstance(message, RequestUpdate) and self.update_failed:
            return "REQUEST_UPDATE after one that was refused"
        if isinstance(message, NamespaceDone) and message.suffix not in self.namespaces:
            repeated = not sent and message.suffix in self.withdrawn
            return None if repeated else "NAMESPACE_DONE before NAMESPACE"
        return None

    def move(self, message: Message, *, sent: bool) -> None:
        """Notes a message that `check` allowed and that crosses now."""
        match message:
            case RequestUpdate():
                (self.updates if sent else self.updates_received).append(message)
            case RequestOk() | RequestError() | SubscribeOk() | FetchOk():
                self._move_answer(message, sent=sent)
            case PublishDone():
                self.done = True
            case Goaway():
                if sent:
                    self.goaway_sent = True
                else:
                    self.goaway_received = True
            case Namespace():
                self.namespaces.add(message.suffix)
                self.withdrawn.discard(message.suffix)
            case NamespaceDone():
                self.namespaces.discard(message.suffix)
                if len(self.withdrawn) < _MAX_WITHDRAWN:
                    self.withdrawn.add(message.suffix)

    def _move_answer(self, message: Message, *, sent: bool) -> None:
        refused = isinstance(message, RequestError)
        if self.phase is Phase.PENDING and sent != self.is_local:
            self.answer = message
            self.phase = Phase.ENDED if refused else Phase.ESTABLISHED
        else:
            update = (self.updates_received if sent else self.updates).popleft()
            self.update_tokens.pop(update.request_id, None)
            self.update_failed |= refused


class UsedIds:
    """Which IDs of an ascending series were used, in whatever order they came.

    Few are remembered: an ID that comes after thousands of later ones counts as used.
    """

    def __init__(self, first: int, step: int) -> None:
        self._low = first
        self._step = step
        self._seen: set[int] = set()

    def take(self, value: int) -> bool:
        """Uses an ID; False when it was used before."""
        if value < self._low or value in self._seen:
            return False
        self._seen.add(value)
        if len(self._seen) > _MAX_SPREAD:
            self._low = min(self._seen)
        while self._low in self._seen:
            self._seen.discard(self._low)
            self._low += self._step
        return True


class RequestIds:
    """Checks the peer's Request IDs: right parity, never twice, in whatever order streams arrive."""

    def __init__(self, first: int) -> None:
        self._parity = first % 2
        self._used = UsedIds(first, 2)

    def take(self, request_id: int) -> str | None:
        """None for a new valid ID, else what is wrong."""
        if request_id % 2 != self._parity:
            return f"Request ID {request_id} has the wrong parity"
        if not self._used.take(request_id):
            return f"Request ID {request_id} was used before"
        return None


def encode(message: Message, request: RequestState | None = None) -> bytes:
    """A message with its framing, as it stands on the stream of `request` now.

    Raises LocalError for what no peer would accept.
    """
    try:
        return encode_message(
            message,
            None if request is None else request.kind,
            by_requester=request is None or request.is_local,
            update=request is not None and request.phase is not Phase.PENDING,
        )
    except ValueError as error:
        raise LocalError(str(error)) from None
