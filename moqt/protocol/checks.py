"""Checks of single messages that need more than their own octets, but no state of the session."""

from __future__ import annotations

import re

from moqt.errors import LocalError, MalformedTrack, ProtocolViolation, SessionErrorCode
from moqt.model import Location, Properties
from moqt.wire.filters import LocationFilter, LocationFilterType
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Message,
    Publish,
    Request,
    RequestError,
    RequestOk,
    SetupOptions,
    SubscribeOk,
)
from moqt.wire.properties import check_track_properties

_CHARACTER = r"[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2}"
_PATH = re.compile(rf"(?:/(?:{_CHARACTER})*)*(?:\?(?:{_CHARACTER}|[/?])*)?")
_AUTHORITY = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})+)(?::[0-9]{0,5})?"
)
_RELATIVE = (LocationFilterType.RELATIVE_START, LocationFilterType.NEXT_OBJECT)


def check_setup(options: SetupOptions, *, by_server: bool) -> None:
    """PATH and AUTHORITY come from clients only, and look like parts of a URI (section 2.3)."""
    path, authority = options.path, options.authority
    if path is not None:
        if by_server:
            raise ProtocolViolation("PATH from a server", SessionErrorCode.INVALID_PATH)
        if not _PATH.fullmatch(path):
            raise ProtocolViolation("PATH is no path of a URI", SessionErrorCode.MALFORMED_PATH)
    if authority is not None:
        if by_server:
            raise ProtocolViolation("AUTHORITY from a server", SessionErrorCode.INVALID_AUTHORITY)
        if not _AUTHORITY.fullmatch(authority):
            raise ProtocolViolation(
                "AUTHORITY is no host[:port]", SessionErrorCode.MALFORMED_AUTHORITY
            )


def check_request(request: Request) -> None:
    """The Track Properties of a PUBLISH have values that they may have (section 5)."""
    if isinstance(request, Publish):
        _check_properties(request.properties)


def check_sent(message: Message, *, by_client: bool) -> None:
    """Raises LocalError for a URI that a server would have to go to (sections 2.6 and 3.11)."""
    redirect = message.redirect if isinstance(message, RequestError) else None
    if by_client and (
        (isinstance(message, Goaway) and message.uri) or (redirect is not None and redirect.uri)
    ):
        raise LocalError(f"{type(message).__name__} of a client names no URI")


def check_answer(request: Request, answer: Message, *, at_server: bool) -> None:
    """An answer fits its request (sections 3.8, 3.11 and 5)."""
    if isinstance(answer, RequestError):
        if answer.redirect is not None and answer.redirect.uri and at_server:
            raise ProtocolViolation("redirect to a URI from a client")
    elif isinstance(answer, SubscribeOk | FetchOk | RequestOk):
        _check_properties(answer.properties)
    if isinstance(answer, FetchOk) and isinstance(request, Fetch):
        asked = request.parameters.location_filter or LocationFilter.none()
        start = Location(0, 0) if asked.type in _RELATIVE else asked.resolve(None).start
        if answer.end < start:
            raise ProtocolViolation(f"FETCH_OK ends at {answer.end}, before its start {start}")


def _check_properties(properties: Properties) -> None:
    try:
        check_track_properties(properties)
    except MalformedTrack:
        return  # ends the request, not the session: whoever asked looks at them as well
