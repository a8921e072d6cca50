"""Who may do what through a relay: a policy is asked for every request, also for what lies in the cache (section 9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from moqt.errors import RequestErrorCode
from moqt.model import TrackNamespace
from moqt.protocol.tokens import Token

__all__ = ["Action", "AllowAll", "Policy", "Query", "Refusal", "Token"]


class Action(Enum):
    """What a session asks for."""

    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()
    PUBLISH = auto()
    SUBSCRIBE = auto()
    FETCH = auto()
    TRACK_STATUS = auto()

    @property
    def publishes(self) -> bool:
        """Whether it offers something; the others want something."""
        return self in {Action.PUBLISH_NAMESPACE, Action.PUBLISH}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One request. `namespace` is a prefix for SUBSCRIBE_NAMESPACE and SUBSCRIBE_TRACKS, which name no track."""

    action: Action
    namespace: TrackNamespace
    track: bytes | None
    tokens: tuple[Token, ...]
    """Those of the request, then those of the session's SETUP, with aliases resolved."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not; goes to the peer as REQUEST_ERROR."""

    reason: str
    code: RequestErrorCode = RequestErrorCode.UNAUTHORIZED


class Policy(Protocol):
    """Decides about requests. Called synchronously, often: an answer must be at hand."""

    def decide(self, query: Query) -> Refusal | None:
        """None allows the request."""


class AllowAll:
    """Everybody may do everything: for loopback and for networks that are trusted."""

    def decide(self, query: Query) -> Refusal | None:
        return None
