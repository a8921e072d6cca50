"""Who answers the peer, and who hears of a request of ours: the two interfaces above a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moqt.errors import MoqtError
from moqt.protocol.requests import RequestState
from moqt.wire.messages import Message, RequestUpdate

if TYPE_CHECKING:
    from moqt.connection import Driver


class RequestOwner(Protocol):
    """Hears of a request of ours."""

    def request_opened(self, request: RequestState) -> None:
        """It is about to be sent."""

    def message_received(self, message: Message) -> None:
        """PUBLISH_DONE, PUBLISH_STATE_NOTIFY, NAMESPACE, NAMESPACE_DONE or PUBLISH_SKIPPED."""

    def request_ended(self, error: MoqtError | None) -> None:
        """The peer ended it early, or the session is gone (`error`)."""


class Responder(Protocol):
    """Answers the peer's requests. Calls are synchronous and never nested; what takes time goes into
    `Driver.spawn`. The tokens of a request, with their aliases resolved, are in `RequestState.tokens`, those of
    an update that is not answered in `update_tokens`."""

    def session_opened(self, driver: Driver) -> None:
        """The peer's SETUP arrived."""

    def request_received(self, driver: Driver, request: RequestState) -> None:
        """Owes an answer with `Driver.send`."""

    def update_received(
        self, driver: Driver, request: RequestState, update: RequestUpdate, fault: str | None
    ) -> None:
        """Owes a RequestOk or RequestError; with `fault`, the latter with INVALID_FILTER."""

    def message_received(self, driver: Driver, request: RequestState, message: Message) -> None:
        """A later message on a request of the peer."""

    def request_ended(self, driver: Driver, request: RequestState) -> None:
        """The peer is done with a request, or cancelled it."""

    def session_closed(self, driver: Driver) -> None:
        """The last call for this session."""
