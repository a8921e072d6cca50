"""--auth-keys and what goes with it, and --auth-token: from flags to a policy, and to the token that is shown."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvcs.access.keys import load_ring
from kvcs.access.policy import CAT, AccessPolicy
from kvcs.access.tokenfile import TokenFile, token_octets
from kvcs.cli import inputs
from kvcs.cli.text import one_line
from kvcs.errors import UsageError
from moqt import Credential, SessionConfig, Token
from moqt.auth import Terms

_log = logging.getLogger(__name__)

DEFAULTS = Terms()
TOKEN_CACHE = 16384
"""Octets of tokens that a session may register: a few dozen of usual ones."""


def auth_keys_options(command: Any) -> Any:
    """--auth-keys FILE and how tokens are looked at; a command takes them as **auth."""
    options = (
        click.option(
            "--auth-keys",
            type=inputs.PATH,
            multiple=True,
            metavar="FILE",
            help="Take tokens of these keys only: public PEM, JWK (Set), COSE_Key; may be repeated.",
        ),
        *terms_options(),
    )
    for option in reversed(options):
        command = option(command)
    return command


def terms_options() -> tuple[Any, ...]:
    """What a token must say beside its scopes."""
    return (
        click.option(
            "--auth-issuer", multiple=True, metavar="NAME", help="Take tokens of this issuer (iss)."
        ),
        click.option(
            "--auth-audience",
            multiple=True,
            metavar="NAME",
            help="Take tokens for this name (aud).",
        ),
        click.option(
            "--auth-leeway",
            type=inputs.seconds,
            default=DEFAULTS.leeway,
            show_default=True,
            metavar="S",
            help="How far clocks may differ.",
        ),
        click.option("--c4m-compact", is_flag=True, help="Take the form of C4M's examples too."),
    )


def terms_of(
    *, auth_issuer: tuple[str, ...], auth_audience: tuple[str, ...], auth_leeway: float
) -> Terms:
    """From the flags."""
    return Terms(
        issuers=frozenset(auth_issuer), audiences=frozenset(auth_audience), leeway=auth_leeway
    )


class RelayAccess:
    """The policy of a relay, whose keys can be read again."""

    def __init__(
        self,
        *,
        auth_keys: tuple[Path, ...],
        auth_issuer: tuple[str, ...],
        auth_audience: tuple[str, ...],
        auth_leeway: float,
        c4m_compact: bool,
    ) -> None:
        """Raises UsageError for files that hold no keys, and for flags that need some."""
        self._files = auth_keys
        self.policy: AccessPolicy | None = None
        if auth_keys:
            terms = terms_of(
                auth_issuer=auth_issuer, auth_audience=auth_audience, auth_leeway=auth_leeway
            )
            self.policy = AccessPolicy(load_ring(auth_keys), terms=terms, compact=c4m_compact)
        elif auth_issuer or auth_audience or c4m_compact:
            raise UsageError("flags about tokens need --auth-keys FILE to check them with")

    @property
    def session(self) -> SessionConfig:
        """With room for tokens that peers register, where tokens are looked at."""
        room = TOKEN_CACHE if self.policy is not None else 0
        return SessionConfig(auth_token_cache=room)

    def reload(self) -> None:
        """Reads the keys again; where that fails the old ones stay, and a warning says so."""
        if self.policy is None:
            return
        try:
            ring = load_ring(self._files)
        except UsageError as fault:
            _log.warning("keys stay as they were: %s", one_line(str(fault)))
            return
        self.policy.replace_keys(ring)
        click.echo(f"kvcs: {len(ring)} keys to check tokens with", err=True)


def _credential(ctx: click.Context, param: click.Parameter, value: str | None) -> Credential | None:
    if value is None:
        return None
    if ctx.get_parameter_source(param.name or "") is ParameterSource.ENVIRONMENT:
        octets = token_octets(value.encode("utf-8", "surrogateescape"))
        if octets is not None:
            token = Token(CAT, octets)
            return lambda: token
    return TokenFile(Path(value))


auth_token_option = click.option(
    "--auth-token",
    "credential",
    metavar="FILE",
    callback=_credential,
    help="Token to show; KVCS_AUTH_TOKEN may hold a file's name or the token itself.",
)
"""A command is given a credential; the variable may hold the token itself."""
