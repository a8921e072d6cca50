"""What a C4M token says (CWT claims of RFC 8392, and those of CAT-4-MOQT), apart from how it is sealed.

A claim can restrict what a token is good for. So one that is not known here makes the token useless; none is
passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from moqt.auth.scopes import Scope, scopes_of
from moqt.errors import TokenFault

ISSUER, SUBJECT, AUDIENCE, EXPIRES, NOT_BEFORE, ISSUED_AT, TOKEN_ID = range(1, 8)
VERSION, MOQT, REVALIDATE = 310, 327, 328
"""327 and 328 are those of the C4M vectors; its text leaves them open."""

RESTRICTIVE = {
    8: "cnf",
    282: "geohash",
    308: "catreplay",
    309: "catpor",
    311: "catnip",
    312: "catu",
    313: "catm",
    314: "catalpn",
    315: "cath",
    316: "catgeoiso3166",
    317: "catgeocoord",
    318: "catgeoalt",
    321: "catdpop",
}
"""Claims that are known, to be refused with their names."""

MAX_TEXT = 1024
MAX_AUDIENCES = 32
MAX_TOKEN_ID = 64
MAX_TIME = 1 << 40
"""Seconds since 1970; some 35000 years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of one token. Times in seconds since 1970."""

    issuer: str | None = None
    subject: str | None = None
    audience: tuple[str, ...] = ()
    expires: float | None = None
    not_before: float | None = None
    issued_at: float | None = None
    token_id: bytes | None = None
    """`cti`; what logs may show of a token."""
    scopes: tuple[Scope, ...] = ()
    revalidate: float | None = None
    """Seconds after which a running request is to be decided again; None for never."""


def claims_of(document: object) -> Claims:
    """The claims in a decoded map. Raises TokenFault for what is malformed, and for what is not known here."""
    if not isinstance(document, Mapping):
        raise TokenFault("its claims are no map")
    given = dict(document)
    if given.pop(VERSION, 1) not in (1, "CAT-v1"):
        raise TokenFault("its version of CAT (catv) is not known here")
    read = {name: kind(given.pop(label)) for label, name, kind in _KNOWN if label in given}
    if given:
        label = min(given, key=str)
        name = RESTRICTIVE.get(label) if isinstance(label, int) else None
        shown = name or (str(label) if type(label) is int else "with a name of its own")
        raise TokenFault(f"it has a claim, {shown}, that is not known here and may restrict it")
    return Claims(**read)


def _text(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        raise TokenFault("iss, sub and aud must be text")
    return value


def _audience(value: object) -> tuple[str, ...]:
    listed = value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(listed) <= MAX_AUDIENCES:
        raise TokenFault(f"aud must name 1 to {MAX_AUDIENCES}")
    return tuple(_text(item) for item in listed)


def _number(value: object, most: float = MAX_TIME) -> float:
    if type(value) not in (int, float) or not isfinite(value) or not 0 <= value <= most:  # type: ignore[arg-type, operator]
        raise TokenFault("exp, nbf, iat and moqt-reval must be numbers from 0")
    return value  # type: ignore[return-value]


def _token_id(value: object) -> bytes:
    if not isinstance(value, bytes) or not 1 <= len(value) <= MAX_TOKEN_ID:
        raise TokenFault(f"cti must have 1 to {MAX_TOKEN_ID} octets")
    return value


def _interval(value: object) -> float | None:
    return _number(value) or None


_KNOWN: tuple[tuple[int, str, Callable[[object], Any]], ...] = (
    (ISSUER, "issuer", _text),
    (SUBJECT, "subject", _text),
    (AUDIENCE, "audience", _audience),
    (EXPIRES, "expires", _number),
    (NOT_BEFORE, "not_before", _number),
    (ISSUED_AT, "issued_at", _number),
    (TOKEN_ID, "token_id", _token_id),
    (MOQT, "scopes", scopes_of),
    (REVALIDATE, "revalidate", _interval),
)


def claim_map(claims: Claims, scopes: list[Any]) -> dict[int, object]:
    """The map to encode for `claims`; `scopes` is the `moqt` claim as it is to be written."""
    audience: object = list(claims.audience)
    found: dict[int, object] = {
        ISSUER: claims.issuer,
        SUBJECT: claims.subject,
        AUDIENCE: audience or None,
        EXPIRES: claims.expires,
        NOT_BEFORE: claims.not_before,
        ISSUED_AT: claims.issued_at,
        TOKEN_ID: claims.token_id,
        MOQT: scopes or None,
        REVALIDATE: claims.revalidate,
    }
    return {label: _plain(value) for label, value in found.items() if value is not None}


def _plain(value: object) -> object:
    """Whole seconds as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
