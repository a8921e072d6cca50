"""`kvcs token`: makes authorisation tokens for scopes, shows what one says, and checks one as a relay would."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from kvcs.access.keys import load_ring, load_sealing_key
from kvcs.access.making import ALLOW, make
from kvcs.access.policy import AccessPolicy
from kvcs.access.tokenfile import load_token, token_text, write_token
from kvcs.cli import access, inputs, token_facts
from kvcs.errors import TokenError, UsageError
from kvcs.kvsp.identity import PROFILE
from kvcs.naming import SCOPE_ID_SIZE
from kvcs.scopekey import load_scope_key
from moqt.auth import Action, Claims, Terms

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd]?)")
MAX_ALLOWED_TIME = 100 * 365 * 86400.0


def duration(text: str) -> float:
    """A flag's type: seconds, or a number with s, m, h or d."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_ALLOWED_TIME:
        raise click.BadParameter("expected a time such as 90, 30m, 12h or 7d.")
    return seconds


def octets(text: str) -> bytes:
    """A flag's type: hex digits."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise click.BadParameter("expected hex digits.") from None


def scope_id(text: str) -> bytes:
    """A flag's type: a Scope ID."""
    found = octets(text)
    if len(found) != SCOPE_ID_SIZE:
        raise click.BadParameter(f"expected {2 * SCOPE_ID_SIZE} hex digits, as `kvcs keys` shows.")
    return found


def allowed(text: str) -> tuple[str, ...]:
    """A flag's type: what a token allows, with commas."""
    words = tuple(word.strip() for word in text.split(","))
    if not set(words) <= ALLOW.keys():
        raise click.BadParameter(f"expected some of {', '.join(ALLOW)}, with commas.")
    return words


def namespace(text: str) -> tuple[bytes, ...]:
    """A flag's type: fields in hex, with slashes."""
    return tuple(octets(field) for field in text.split("/")) if text else ()


@click.group("token")
def command() -> None:
    """Make, show and check authorisation tokens."""


@command.command("make")
@click.option("--key", type=inputs.PATH, required=True, metavar="FILE", help="Key to seal it with.")
@click.option(
    "--scope", "scopes", type=scope_id, multiple=True, metavar="HEX", help="Scope ID it is for."
)
@click.option(
    "--scope-key", type=inputs.PATH, metavar="FILE", help="Or the key that this follows from."
)
@click.option(
    "--allow",
    type=allowed,
    default="subscribe,fetch",
    show_default=True,
    metavar="WORDS",
    help="Some of publish, subscribe, fetch; consumers need the last two.",
)
@click.option("--iss", metavar="NAME", help="Who issues it.")
@click.option("--aud", multiple=True, metavar="NAME", help="Whom it is for; may be repeated.")
@click.option(
    "--expires",
    type=duration,
    default="1h",
    show_default=True,
    metavar="TIME",
    help="For how long.",
)
@click.option("--starts", type=duration, metavar="TIME", help="Good only after this time.")
@click.option(
    "--revalidate",
    type=duration,
    metavar="TIME",
    help="Relays look at it again each TIME, and end what runs when it is good no longer.",
)
@click.option("--cti", type=octets, metavar="HEX", help="Its identifier; otherwise a random one.")
@click.option("--output", type=inputs.PATH, metavar="FILE", help="Where to; without it to stdout.")
def make_command(
    *,
    key: Path,
    scopes: tuple[bytes, ...],
    scope_key: Path | None,
    allow: tuple[str, ...],
    iss: str | None,
    aud: tuple[str, ...],
    expires: float,
    starts: float | None,
    revalidate: float | None,
    cti: bytes | None,
    output: Path | None,
) -> int:
    """Make a token: one line of base64url, to be kept as secret as a password."""
    if scope_key is not None:
        scopes = (*scopes, PROFILE.scope_id(load_scope_key(scope_key).octets))
    now = int(time.time())
    claims = Claims(
        issuer=iss,
        audience=aud,
        expires=now + int(expires + 0.999),
        not_before=None if starts is None else now + int(starts),
        issued_at=now,
        token_id=cti,
        revalidate=revalidate,
    )
    token, token_id = make(load_sealing_key(key), scopes, allow, claims)
    if output is None:
        click.echo(token_text(token))
    else:
        write_token(output, token)
        click.echo(
            f"{output}: token {token_id.hex()}, expires {token_facts.moment(claims.expires)}"
        )
    return 0


@command.command("show")
@click.argument("file", type=inputs.PATH)
@inputs.json_option
def show_command(*, file: Path, as_json: bool) -> int:
    """Show what the token in FILE says. Its seal is not checked."""
    facts = token_facts.read(load_token(file, "FILE"))
    token_facts.show(facts, as_json=as_json)
    return 0


def _words(action: Action) -> str:
    return action.name.lower().replace("_", "-")


_ACTIONS = {_words(action): action for action in Action}


def _check_options(function: Any) -> Any:
    for option in reversed(access.terms_options()):
        function = option(function)
    return function


@command.command("check")
@click.argument("file", type=inputs.PATH)
@click.option(
    "--auth-keys",
    type=inputs.PATH,
    multiple=True,
    required=True,
    metavar="FILE",
    help="As a relay has them.",
)
@_check_options
@click.option("--action", type=click.Choice(list(_ACTIONS)), help="Whether it grants this.")
@click.option("--scope", type=scope_id, metavar="HEX", help="In this scope.")
@click.option(
    "--namespace", "fields", type=namespace, metavar="HEX/...", help="Or on this namespace."
)
@click.option("--track", metavar="NAME", help="And this track.")
@click.option("--at", type=float, metavar="SECONDS", help="When, since 1970; otherwise now.")
@inputs.json_option
def check_command(
    *,
    file: Path,
    auth_keys: tuple[Path, ...],
    c4m_compact: bool,
    action: str | None,
    scope: bytes | None,
    fields: tuple[bytes, ...] | None,
    track: str | None,
    at: float | None,
    as_json: bool,
    **terms: Any,
) -> int:
    """Check the token in FILE as a relay would: seal, issuer, audience, time, and what it grants.

    Status 0 when it is accepted, and grants what is asked for; 5 when not, with the reason.
    """
    if action is None and (track is not None or fields is not None):
        raise UsageError("--namespace and --track say what an --action is about; there is none")
    if action is not None and (scope is None) is (fields is None):
        raise UsageError("--action is about --scope HEX or --namespace HEX/...: give one of them")
    now = time.time() if at is None else at
    named: Terms = access.terms_of(**terms)
    policy = AccessPolicy(load_ring(auth_keys), terms=named, compact=c4m_compact, clock=lambda: now)
    asked = None
    if action is not None:
        asked = token_facts.question(_ACTIONS[action], scope, fields, track)
    verdict = token_facts.check(policy, load_token(file, "FILE"), asked, scope)
    token_facts.show(verdict.facts, as_json=as_json)
    if verdict.reason is not None:
        raise TokenError(f"token: {verdict.reason}")
    return 0
