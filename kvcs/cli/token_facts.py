"""What `kvcs token` tells of a token: its claims in words, and what a relay would say to it. Never the token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from kvcs.access.compact import is_compact
from kvcs.access.compact import take_apart as compact_parts
from kvcs.access.cwt import NAMES, claims_in, take_apart
from kvcs.access.policy import CAT, AccessPolicy
from kvcs.cli.text import one_line
from kvcs.errors import TokenError
from kvcs.naming import PROTOCOL
from kvcs.producer_keys import shown_key_id
from kvcs.scopes import PUBLICATION_FIELDS
from moqt import Query, Token
from moqt.auth import ACTION_NUMBERS, NOT_GRANTED, Action, Claims, Match, MatchKind, Scope
from moqt.auth import Refusal as Refused
from moqt.errors import TokenFault

Facts = dict[str, Any]

_NAMES = {
    numbers[0]: action.name.lower()
    for action, numbers in ACTION_NUMBERS.items()
    if len(numbers) == 1
}
_PREFIXES = {Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE_TRACKS}
_NAMESPACES = {*_PREFIXES, Action.PUBLISH_NAMESPACE}


def moment(seconds: float | None) -> str | None:
    """A time as people and programs read it, in UTC."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} seconds after 1970"


def read(token: bytes) -> Facts:
    """What a token says. Raises TokenError where it is none, or says what is not known here."""
    try:
        if is_compact(token):
            algorithm, key_id, payload, _ = compact_parts(token)
            form = "compact"
        else:
            opened = take_apart(token)
            algorithm, key_id, payload = opened.algorithm, opened.key_id, opened.parts.payload
            form = "CWT"
        claims = claims_in(payload)
    except TokenFault as fault:
        raise TokenError(_sentence(fault)) from None
    kid = None if key_id is None else shown_key_id(key_id)
    return {"form": form, "algorithm": NAMES[algorithm], "kid": kid, **_claims(claims)}


def _sentence(fault: TokenFault) -> str:
    text = str(fault)
    return text if text.startswith("token: ") else f"token: {text}"


def _claims(claims: Claims) -> Facts:
    return {
        "iss": claims.issuer,
        "sub": claims.subject,
        "aud": list(claims.audience),
        "exp": moment(claims.expires),
        "nbf": moment(claims.not_before),
        "iat": moment(claims.issued_at),
        "cti": claims.token_id.hex() if claims.token_id is not None else None,
        "revalidate": claims.revalidate,
        "scopes": [_scope(scope) for scope in claims.scopes],
    }


def _scope(scope: Scope) -> Facts:
    fields = [_match(match) for match in scope.namespace]
    return {
        "actions": [_NAMES.get(number, str(number)) for number in sorted(scope.actions)],
        "namespace": fields,
        "longer": not scope.exact_length,
        "track": None if scope.track is None else _match(scope.track),
    }


def _match(match: Match) -> str:
    shown = shown_key_id(match.octets).strip('"')
    return {MatchKind.PREFIX: f"{shown}*", MatchKind.SUFFIX: f"*{shown}"}.get(match.kind, shown)


def show(facts: Facts, *, as_json: bool) -> None:
    """For people a line each, otherwise one object."""
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        if name == "scopes":
            for scope in value:
                _show_scope(scope)
        elif value not in (None, []):
            text = ", ".join(value) if isinstance(value, list) else value
            said = {True: "yes", False: "no"}.get(text, text) if isinstance(text, bool) else text
            click.echo(f"{name:12} {one_line(str(said))}")


def _show_scope(scope: Facts) -> None:
    where = " / ".join(scope["namespace"]) or "anything"
    end = "" if scope["longer"] else ", and nothing longer"
    track = "" if scope["track"] is None else f", track {scope['track']}"
    said = one_line(f"{', '.join(scope['actions'])}: {where}{end}{track}")
    click.echo(f"{'allows':12} {said}")


@dataclass(frozen=True)
class Verdict:
    """What a relay would say."""

    facts: Facts
    reason: str | None
    """Why not."""


def question(
    action: Action, scope: bytes | None, fields: tuple[bytes, ...] | None, track: str | None
) -> Query:
    """What a relay would be asked; for a scope about all of it, or about a publication in it."""
    if fields is None:
        assert scope is not None
        fields = (PROTOCOL, scope)
        if action not in _PREFIXES:
            fields += tuple(bytes(size) for size in (32, 32, 16))
            assert len(fields) == PUBLICATION_FIELDS
    name = None if action in _NAMESPACES else (track or "").encode("utf-8", "surrogateescape")
    return Query(action=action, namespace=fields, track=name, tokens=())


def check(policy: AccessPolicy, token: bytes, asked: Query | None, scope: bytes | None) -> Verdict:
    """What a relay with this policy says to the token, and to what is asked for with it."""
    facts: Facts = {"accepted": False}
    try:
        claims = policy.claims(Token(CAT, token))
    except TokenFault as fault:
        facts["reason"] = reason = _sentence(fault).removeprefix("token: ")
        return Verdict(facts, reason)
    facts |= _claims(claims)
    broken = policy.fault(claims)
    if broken is not None:
        facts["reason"] = broken.reason
        return Verdict(facts, broken.reason)
    facts["accepted"] = True
    if asked is None and scope is not None:
        every = {
            action: _grants(policy, token, question(action, scope, None, None)) for action in Action
        }
        facts["granted"] = [
            action.name.lower() for action, reason in every.items() if reason is None
        ]
        if not facts["granted"]:
            return Verdict(facts, "it grants nothing in this scope")
    if asked is not None:
        refusal = _grants(policy, token, asked)
        facts["granted"] = [] if refusal is not None else [asked.action.name.lower()]
        if refusal is not None:
            facts["reason"] = refusal
            return Verdict(facts, refusal)
    return Verdict(facts, None)


def _grants(policy: AccessPolicy, token: bytes, asked: Query) -> str | None:
    query = Query(
        action=asked.action,
        namespace=asked.namespace,
        track=asked.track,
        tokens=(Token(CAT, token),),
    )
    decision = policy.decide(query)
    if not isinstance(decision, Refused):
        return None
    if decision.reason == NOT_GRANTED:
        return f"it does not grant {asked.action.name.lower()} there"
    return decision.reason
