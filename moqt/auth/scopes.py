"""The `moqt` claim of a C4M token: which actions it grants on which names.

moqt    = [ + scope ]
scope   = [ [ + action ], ? [ + nsmatch ], ? trackmatch ]
nsmatch = match / nil        match = bstr (exact) / [1, bstr] (prefix) / [2, bstr] (suffix)

The i-th nsmatch is for the i-th namespace field. Longer namespaces are included, unless the last nsmatch is nil.
Octets are compared as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from moqt.auth.policy import Action
from moqt.errors import TokenFault
from moqt.model import TrackNamespace

MAX_SCOPES = 64
MAX_FIELDS = 32
"""Of a namespace, and so of what is matched with it."""
MAX_ACTIONS = 32


class MatchKind(IntEnum):
    """How a field is compared."""

    EXACT = 0
    PREFIX = 1
    SUFFIX = 2


ACTION_NUMBERS: dict[Action, tuple[int, ...]] = {
    Action.PUBLISH_NAMESPACE: (2,),
    Action.SUBSCRIBE_NAMESPACE: (3,),
    Action.SUBSCRIBE: (4,),
    Action.REQUEST_UPDATE: (5,),
    Action.PUBLISH: (6,),
    Action.FETCH: (7,),
    Action.TRACK_STATUS: (8,),
    # C4M has no number for it: it is told of namespaces and gets what is published in them.
    Action.SUBSCRIBE_TRACKS: (3, 4),
}
"""C4M's numbers that an action needs, all of them."""

_ON_PREFIXES = frozenset({Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE_TRACKS})


@dataclass(frozen=True, slots=True)
class Match:
    """What one name has to be, or to begin or end with."""

    kind: MatchKind
    octets: bytes

    def fits(self, name: bytes) -> bool:
        """Whether `name` is as asked for."""
        match self.kind:
            case MatchKind.PREFIX:
                return name.startswith(self.octets)
            case MatchKind.SUFFIX:
                return name.endswith(self.octets)
        return name == self.octets


@dataclass(frozen=True, slots=True)
class Scope:
    """Actions on the names that fit."""

    actions: frozenset[int]
    namespace: tuple[Match, ...] = ()
    exact_length: bool = False
    """No longer namespaces: the last nsmatch was nil."""
    track: Match | None = None

    def grants(
        self, number: int, namespace: TrackNamespace, track: bytes | None, *, below: bool = False
    ) -> bool:
        """Whether it allows action `number`. Without a `track` the whole namespace is meant, so that a scope
        for some tracks does not do; with `below` also everything longer.
        """
        if number not in self.actions or len(namespace) < len(self.namespace):
            return False
        if self.exact_length and (below or len(namespace) != len(self.namespace)):
            return False
        pairs = zip(self.namespace, namespace, strict=False)
        if not all(match.fits(field) for match, field in pairs):
            return False
        return self.track is None or (track is not None and self.track.fits(track))


def permits(
    scopes: Iterable[Scope], action: Action, namespace: TrackNamespace, track: bytes | None
) -> bool:
    """Whether one of the scopes allows `action`; nothing is allowed that none of them says."""
    below = action in _ON_PREFIXES
    listed = tuple(scopes)
    return all(
        any(scope.grants(number, namespace, track, below=below) for scope in listed)
        for number in ACTION_NUMBERS[action]
    )


def scopes_of(claim: object) -> tuple[Scope, ...]:
    """The scopes in a decoded `moqt` claim: arrays as lists or tuples. Raises TokenFault."""
    return tuple(_scope(item) for item in _array(claim, "moqt", 1, MAX_SCOPES))


def _scope(item: object) -> Scope:
    parts = _array(item, "a scope", 1, 3)
    numbers = _array(parts[0], "a scope's actions", 1, MAX_ACTIONS)
    actions = {number for number in numbers if type(number) is int and number >= 0}
    if len(actions) != len(numbers):
        raise TokenFault("a scope's actions must be different numbers from 0")
    matches: list[object] = []
    if len(parts) > 1:
        matches = list(_array(parts[1], "a scope's namespace", 1, MAX_FIELDS + 1))
    exact_length = bool(matches) and matches[-1] is None
    fields = tuple(_match(part) for part in (matches[:-1] if exact_length else matches))
    track = _match(parts[2]) if len(parts) > 2 else None
    return Scope(frozenset(actions), fields, exact_length, track)


def _match(part: object) -> Match:
    if isinstance(part, bytes):
        return Match(MatchKind.EXACT, part)
    if isinstance(part, list | tuple) and len(part) == 2:
        kind, octets = part
        if type(kind) is int and kind in (1, 2) and isinstance(octets, bytes):
            return Match(MatchKind(kind), octets)
    raise TokenFault("a match must be octets, [1, octets] or [2, octets]")


def _array(value: object, what: str, least: int, most: int) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple) or not least <= len(value) <= most:
        raise TokenFault(f"{what} must be an array of {least} to {most}")
    return value
