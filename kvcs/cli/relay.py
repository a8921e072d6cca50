"""`kvcs relay`: a caching relay between publishers and consumers, until it is told to stop."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvcs import loops
from kvcs.cli import access, endpoints, inputs, mutual, signals, transport
from kvcs.cli.logs import verbose_option
from kvcs.cli.publish import check_ready_file, write_ready_file
from kvcs.errors import UsageError
from moqt import (
    Backend,
    ClientTls,
    Config,
    Credential,
    Relay,
    RelayConfig,
    ServerTls,
    TransportConfig,
    is_loopback,
)
from moqt.auth import Policy


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to relay, and where."""

    listen: tuple[str, int]
    upstreams: list[str]
    server_tls: ServerTls | None
    client_tls: ClientTls
    limits: RelayConfig
    config: Config
    ready_file: Path | None
    access: access.RelayAccess
    scopes: mutual.ClientScopes
    policy: Policy | None
    credential: Credential | None
    backend: Backend | None = None


async def run(job: Job) -> None:
    """Relays until a signal comes, then lets subscribers finish. Raises MoqtError where it cannot listen."""
    stop = asyncio.Event()

    def reread() -> None:
        job.access.reload()
        job.scopes.reload(_note)

    hangup = mutual.Hangup(job.server_tls, _note, reread if job.policy is not None else None)
    with ExitStack() as stack, signals.caught(stop.set, hangup.action):
        async with Relay(
            policy=job.policy,
            limits=job.limits,
            config=job.config,
            backend=job.backend,
        ) as relay:
            ready = await _listen(relay, job, stack)
            hangup.server = relay.servers[0]
            for url in job.upstreams:
                relay.add_upstream(url, tls=job.client_tls, credential=job.credential)
            if job.ready_file is not None:
                write_ready_file(job.ready_file, ready)
            click.echo(f"kvcs: relaying at {ready['url']}", err=True)
            await stop.wait()
            click.echo("kvcs: leaving; subscribers have 5 s to finish", err=True)
            await relay.drain()


def _note(text: str) -> None:
    click.echo(f"kvcs: {text}", err=True)


async def _listen(relay: Relay, job: Job, stack: ExitStack) -> dict[str, object]:
    if job.server_tls is not None:
        server = await relay.listen(*job.listen, tls=job.server_tls)
        return {"url": server.url}
    if job.ready_file is not None:
        ca = endpoints.place_of_ca(job.ready_file.absolute())
    else:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvcs-ca-"))
        ca = Path(directory) / endpoints.CA_NAME
    with endpoints.throw_away(job.listen[0], ca) as tls:
        server = await relay.listen(*job.listen, tls=tls)
    click.echo(f"kvcs: throw-away CA for its peers (--ca): {ca}", err=True)
    return {"url": server.url, "ca": str(ca)}


@click.command("relay")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where; without a port 4443.")
@click.option("--cert", type=inputs.PATH, metavar="FILE", help="Certificate chain to show.")
@click.option("--key", type=inputs.PATH, metavar="FILE", help="Its private key.")
@click.option(
    "--upstream", "upstreams", multiple=True, metavar="URL", help="A relay to ask in turn."
)
@click.option(
    "--cache-bytes",
    type=click.IntRange(min=0),
    default=RelayConfig().cache_bytes,
    show_default=True,
    metavar="N",
    help="What Objects may take in memory.",
)
@click.option("--ca", type=inputs.PATH, metavar="FILE", help="Whom to trust as upstream.")
@click.option("--insecure", is_flag=True, help="Trust any upstream; on loopback only.")
@click.option(
    "--idle-timeout",
    type=inputs.some_seconds,
    default=TransportConfig().idle_timeout,
    show_default=True,
    metavar="S",
    help="Silence after which a peer counts as lost.",
)
@click.option("--ready-file", type=inputs.PATH, metavar="FILE", help="Written once it listens.")
@mutual.server_options
@mutual.scopes_option
@mutual.client_options
@access.auth_keys_options
@access.auth_token_option
@transport.quic_option
@verbose_option
def command(
    *,
    listen: str,
    cert: Path | None,
    key: Path | None,
    upstreams: tuple[str, ...],
    cache_bytes: int,
    ca: Path | None,
    insecure: bool,
    idle_timeout: float,
    ready_file: Path | None,
    credential: Credential | None,
    quic: str,
    **auth: Any,
) -> int:
    """Relay between publishers and consumers, with a cache, until SIGINT or SIGTERM.

    With --auth-keys requests need a token, and with --client-scopes a certificate; with both, one of them. SIGHUP
    reads keys, certificates and scopes again.
    """
    where = endpoints.parse_listen(listen)
    endpoints.check_listen_tls(where[0], cert, key)
    rules = access.RelayAccess(**auth)
    scopes = mutual.ClientScopes()
    policy = scopes.beside(rules.policy)
    if policy is None and not is_loopback(where[0]):
        raise UsageError(
            f"--listen {where[0] or 'on all addresses'}: nothing says who may use this relay; "
            "without --auth-keys or --client-scopes it serves loopback only"
        )
    check_ready_file(ready_file)
    urls = endpoints.checked_urls(upstreams)
    job = Job(
        listen=where,
        upstreams=urls,
        server_tls=mutual.server_tls(cert, key),
        client_tls=mutual.client_tls(endpoints.client_tls(urls, ca, insecure)),
        limits=RelayConfig(cache_bytes=cache_bytes),
        config=Config(
            session=rules.session, transport=TransportConfig.noticing_within(idle_timeout)
        ),
        ready_file=ready_file,
        access=rules,
        scopes=scopes,
        policy=policy,
        credential=credential,
        backend=transport.backend(quic, where),
    )
    loops.run(run(job))
    return 0
