"""What a session core tells its driver, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from moqt.protocol.requests import RequestState
from moqt.wire.messages import Goaway, Message, RequestError, RequestOk, RequestUpdate, SetupOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReceived:
    """The peer's SETUP; the session is established."""

    options: SetupOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """The peer asks. Owes an answer with `SessionCore.send`."""

    request: RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The first answer to a request of ours: its OK or a RequestError."""

    request: RequestState
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReceived:
    """The peer wants a request changed. Owes a RequestOk or RequestError.

    With `fault` the update's filters are invalid: it can only be refused, with INVALID_FILTER.
    """

    request: RequestState
    update: RequestUpdate
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAnswered:
    """The answer to the oldest unanswered update of ours."""

    request: RequestState
    update: RequestUpdate
    message: RequestOk | RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    """PUBLISH_DONE, PUBLISH_STATE_NOTIFY, NAMESPACE, NAMESPACE_DONE or PUBLISH_SKIPPED."""

    request: RequestState
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class GoawayReceived:
    """The peer means to leave: the session, or one request when `request` is set."""

    request: RequestState | None
    message: Goaway


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """A request is over: cancelled with `code`, or with None by the FIN of the peer."""

    request: RequestState
    code: int | None


Event: TypeAlias = (
    SetupReceived
    | RequestReceived
    | Answered
    | UpdateReceived
    | UpdateAnswered
    | MessageReceived
    | GoawayReceived
    | RequestEnded
)
