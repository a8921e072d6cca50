"""Every error of the package, and the registries of the codes that go on the wire (draft-22 section 8).

MoqtError
├── LocalError            the caller broke a rule of this API; nothing was sent
├── ConnectError          no session came to be: unreachable, no common ALPN, certificate refused
├── DeadlineExceeded      a wait reached its deadline
├── SessionClosed         the session ended, by whichever side
└── RemoteError           the peer did something
    ├── ProtocolViolation the peer broke a rule of the protocol; closes the session with `code`
    ├── RequestRejected   the peer answered a request with REQUEST_ERROR
    ├── StreamReset       the peer reset a stream, or its connection was lost in the middle of one
    └── MalformedTrack    the objects of a track contradict each other; ends its requests only
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar


class SessionErrorCode(IntEnum):
    """Codes of CONNECTION_CLOSE."""

    NO_ERROR = 0x0
    INTERNAL_ERROR = 0x1
    UNAUTHORIZED = 0x2
    PROTOCOL_VIOLATION = 0x3
    INVALID_REQUEST_ID = 0x4
    DUPLICATE_TRACK_ALIAS = 0x5
    KEY_VALUE_FORMATTING_ERROR = 0x6
    INVALID_PATH = 0x8
    MALFORMED_PATH = 0x9
    GOAWAY_TIMEOUT = 0x10
    CONTROL_MESSAGE_TIMEOUT = 0x11
    DATA_STREAM_TIMEOUT = 0x12
    AUTH_TOKEN_CACHE_OVERFLOW = 0x13
    DUPLICATE_AUTH_TOKEN_ALIAS = 0x14
    MALFORMED_AUTH_TOKEN = 0x16
    UNKNOWN_AUTH_TOKEN_ALIAS = 0x17
    EXPIRED_AUTH_TOKEN = 0x18
    INVALID_AUTHORITY = 0x19
    MALFORMED_AUTHORITY = 0x1A
    TOO_MANY_REQUEST_UPDATES = 0x1B


class RequestErrorCode(IntEnum):
    """Codes of REQUEST_ERROR."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TIMEOUT = 0x2
    NOT_SUPPORTED = 0x3
    MALFORMED_AUTH_TOKEN = 0x4
    EXPIRED_AUTH_TOKEN = 0x5
    GOING_AWAY = 0x6
    EXCESSIVE_LOAD = 0x9
    DOES_NOT_EXIST = 0x10
    INVALID_RANGE = 0x11
    MALFORMED_TRACK = 0x12
    UNINTERESTED = 0x20
    PREFIX_OVERLAP = 0x30
    NAMESPACE_TOO_LARGE = 0x31
    UNSUPPORTED_EXTENSION = 0x33
    REDIRECT = 0x34
    CONFLICTING_FILTERS = 0x35
    INVALID_FILTER = 0x36


class PublishDoneCode(IntEnum):
    """Status codes of PUBLISH_DONE."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TRACK_ENDED = 0x2
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    EXPIRED = 0x6
    UPDATE_FAILED = 0x8
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


class StreamErrorCode(IntEnum):
    """Codes of RESET_STREAM and STOP_SENDING."""

    INTERNAL_ERROR = 0x0
    CANCELLED = 0x1
    DELIVERY_TIMEOUT = 0x2
    SESSION_CLOSED = 0x3
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    UNKNOWN_OBJECT_STATUS = 0x6
    EXPIRED_AUTH_TOKEN = 0x7
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


_Code = TypeVar("_Code", SessionErrorCode, RequestErrorCode, PublishDoneCode, StreamErrorCode)


def lookup(registry: type[_Code], value: int) -> _Code:
    """The registry's member for `value`; a code that nobody registered counts as INTERNAL_ERROR."""
    try:
        return registry(value)
    except ValueError:
        return registry["INTERNAL_ERROR"]


class MoqtError(Exception):
    """Base of everything this package raises on purpose."""


class LocalError(MoqtError):
    """The caller broke a rule of this API."""


class ConnectError(MoqtError):
    """No session came to be. `kind` is "unreachable", "alpn", "tls" or "refused"."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class DeadlineExceeded(MoqtError):
    """A wait reached its deadline; the text says what was waited for."""


class SessionClosed(MoqtError):
    """The session ended. `remote` tells whether the peer closed it; `code` may be unregistered."""

    def __init__(self, code: int, reason: str = "", *, remote: bool) -> None:
        name = lookup(SessionErrorCode, code).name
        by = "the peer closed the session" if remote else "the session was closed"
        super().__init__(f"{by}: {name} (0x{code:x})" + (f": {reason}" if reason else ""))
        self.code = code
        self.reason = reason
        self.remote = remote


class PayloadUnavailable(MoqtError):
    """A published Object's payload cannot be read any more, or is not what it was."""


class RemoteError(MoqtError):
    """The peer did something that an application has to know."""


class ProtocolViolation(RemoteError):
    """The peer broke a rule of the protocol. The session is closed with `code`."""

    def __init__(
        self, reason: str, code: SessionErrorCode = SessionErrorCode.PROTOCOL_VIOLATION
    ) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class RequestRejected(RemoteError):
    """The peer answered with REQUEST_ERROR.

    `retry_interval` is in milliseconds plus one; 0 says do not retry.
    """

    def __init__(self, code: int, reason: str = "", *, retry_interval: int = 0) -> None:
        self.code = lookup(RequestErrorCode, code)
        super().__init__(f"{self.code.name} (0x{code:x})" + (f": {reason}" if reason else ""))
        self.wire_code = code
        self.reason = reason
        self.retry_interval = retry_interval


class TokenFault(MoqtError):
    """An authorisation token that cannot be used. The text says why and quotes nothing of it."""


class UntrustedToken(TokenFault):
    """A token that is whole, but not sealed with a key that is trusted here."""


class TrackAborted(RemoteError):
    """The publisher ended a subscription before the end of the track."""

    def __init__(self, code: PublishDoneCode, reason: str = "") -> None:
        super().__init__(
            f"the publisher ended the track: {code.name}" + (f": {reason}" if reason else "")
        )
        self.code = code
        self.reason = reason


class StreamReset(RemoteError):
    """A stream ended without FIN."""

    def __init__(self, code: int, what: str = "stream") -> None:
        self.code = lookup(StreamErrorCode, code)
        super().__init__(f"{what} was reset: {self.code.name} (0x{code:x})")
        self.wire_code = code


class MalformedTrack(RemoteError):
    """The objects of a track contradict each other (draft-22 section 8.5)."""
