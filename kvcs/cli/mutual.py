"""Who both ends of a session are: --client-cert, --client-key, --server-name; --client-ca; and SIGHUP for certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvcs.access.identities import EitherPolicy, IdentityPolicy, load_identities
from kvcs.cli import endpoints
from kvcs.cli.inputs import PATH
from kvcs.cli.text import one_line
from kvcs.errors import UsageError
from moqt import ClientTls, Server, ServerTls
from moqt.auth import Policy
from moqt.errors import LocalError

_META = "kvcs.cli.mutual"


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    context.meta.setdefault(_META, {})[parameter.name] = value
    return value


def _given(name: str) -> Any:
    return click.get_current_context().meta.get(_META, {}).get(name)


def _option(*words: str, **more: Any) -> Callable[[Any], Any]:
    """An option that is kept here, so that commands need not hand it on."""
    return click.option(*words, callback=_keep, expose_value=False, **more)


def client_options(command: Any) -> Any:
    """--client-cert FILE, --client-key FILE and --server-name NAME, for those who dial."""
    for add in (
        _option(
            "--server-name",
            metavar="NAME",
            help="Whose certificate to expect; default: the host's.",
        ),
        _option("--client-key", type=PATH, metavar="FILE", help="Its private key."),
        _option(
            "--client-cert",
            type=PATH,
            metavar="FILE",
            help="Certificate chain to show to a server that asks for one.",
        ),
    ):
        command = add(command)
    return command


server_options = _option(
    "--client-ca",
    type=PATH,
    metavar="FILE",
    help="Let in only clients whose certificate leads to one of these.",
)
"""For those who listen."""

scopes_option = _option(
    "--client-scopes",
    type=PATH,
    metavar="FILE",
    help="What each certificate allows, JSON: docs/relay.md. Needs --client-ca.",
)
"""For relays."""


class ClientScopes:
    """What certificates allow at a relay, from a file that can be read again."""

    def __init__(self) -> None:
        """Raises UsageError for a file that cannot be used."""
        self._path: Path | None = _given("client_scopes")
        self._policy: IdentityPolicy | None = None
        if self._path is None:
            return
        if _given("client_ca") is None:
            raise UsageError(
                "--client-scopes needs --client-ca: who shows no certificate is nobody"
            )
        self._policy = load_identities(self._path)

    def beside(self, tokens: Policy | None) -> Policy | None:
        """`tokens`, and this: either grants. None where there is neither."""
        if tokens is None or self._policy is None:
            return self._policy or tokens
        return EitherPolicy(tokens, self._policy)

    def reload(self, note: Callable[[str], None]) -> None:
        """Reads the file again; where that fails what it said stays, and a notice says so."""
        if self._path is None or self._policy is None:
            return
        try:
            self._policy.replace(load_identities(self._path))
            note(f"client scopes read again: {self._path}")
        except UsageError as fault:
            note(one_line(f"{fault}; what clients may do stays as it was"))


def client_tls(tls: ClientTls) -> ClientTls:
    """The same with what the flags say. Raises UsageError for files that cannot be used."""
    certificate, key = _given("client_cert"), _given("client_key")
    if (certificate is None) is not (key is None):
        raise UsageError("--client-cert and --client-key go together")
    if certificate is not None and key is not None:
        endpoints.check_pair("client-cert", certificate, "client-key", key)
    return replace(tls, certificate=certificate, private_key=key, server_name=_given("server_name"))


def server_tls(certificate: Path | None, key: Path | None) -> ServerTls | None:
    """What is shown, and who is let in; None leaves it to a throw-away certificate. Raises UsageError."""
    authorities = _given("client_ca")
    if authorities is not None:
        endpoints.certificates("client-ca", authorities)
    if certificate is None or key is None:
        if authorities is not None:
            raise UsageError("--client-ca goes with --listen, --cert and --key")
        return None
    return ServerTls(certificate=certificate, private_key=key, client_ca=authorities)


class Hangup:
    """What SIGHUP does: reads certificates again, and whatever else there is to read; nothing to read, nothing done."""

    def __init__(
        self,
        tls: ServerTls | None,
        note: Callable[[str], None],
        other: Callable[[], None] | None = None,
    ) -> None:
        self.server: Server | None = None
        """Set once it listens."""
        self._tls = tls
        self._note = note
        self._other = other

    @property
    def action(self) -> Callable[[], None] | None:
        """For `signals.caught`; None leaves SIGHUP an end like others."""
        return None if self._tls is None and self._other is None else self._run

    def _run(self) -> None:
        if self._other is not None:
            self._other()
        if self._tls is None or self.server is None:
            return
        try:
            self.server.reload(self._tls)
            self._note(f"certificate read again: {self._tls.certificate}")
        except LocalError as fault:
            self._note(one_line(f"{fault}; the old certificate is kept"))
