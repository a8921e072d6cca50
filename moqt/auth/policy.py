"""What a policy is asked, and what it may answer: for every request, also for what lies in the cache (section 9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from moqt.errors import RequestErrorCode
from moqt.model import TrackNamespace
from moqt.protocol.tokens import Token

__all__ = ["Action", "AllowAll", "Policy", "Query", "Recheck", "Refusal", "Token"]


class Action(Enum):
    """What a session asks for."""

    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()
    PUBLISH = auto()
    SUBSCRIBE = auto()
    FETCH = auto()
    TRACK_STATUS = auto()
    REQUEST_UPDATE = auto()
    """A change of a request that was granted; one that only brings another token is not asked for as this."""

    @property
    def publishes(self) -> bool:
        """Whether it offers something; the others want something."""
        return self in {Action.PUBLISH_NAMESPACE, Action.PUBLISH}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One request. `namespace` is a prefix for SUBSCRIBE_NAMESPACE and SUBSCRIBE_TRACKS, which name no track.

    For REQUEST_UPDATE both are those of the request that it changes.
    """

    action: Action
    namespace: TrackNamespace
    track: bytes | None
    tokens: tuple[Token, ...]
    """Those of the request, then those of the session's SETUP, with aliases resolved."""
    of: Action | None = None
    """What the request asked for that is changed by REQUEST_UPDATE; otherwise `action` or None."""
    certificate: bytes | None = None
    """DER of the certificate that the client showed, which was checked; None where none was asked for."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not; goes to the peer as REQUEST_ERROR."""

    reason: str
    code: RequestErrorCode = RequestErrorCode.UNAUTHORIZED
    retry: int = 0
    """After how many milliseconds another try may do better; 0 for never."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """Granted, but to be decided again: a running request ends once that is refused."""

    after: float
    """Seconds."""


class Policy(Protocol):
    """Decides about requests. Called synchronously, often: an answer must be at hand."""

    def decide(self, query: Query) -> Refusal | Recheck | None:
        """None allows the request for as long as it runs."""


class AllowAll:
    """Everybody may do everything: for loopback and for networks that are trusted."""

    def decide(self, query: Query) -> Refusal | None:
        return None
