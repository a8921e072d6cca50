"""`kvcs publish`: offers a KV cache file, by listening or through relays, until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from kvcs import loops
from kvcs.cli import access, endpoints, inputs, mutual, protection, signals, signatures, transport
from kvcs.cli.logs import verbose_option
from kvcs.cli.plan import plan, show
from kvcs.cli.text import one_line
from kvcs.errors import KvcsError, PublicationStopped, SourceChanged, UsageError
from kvcs.formats.safetensors import KvFile, KvFileSource
from kvcs.key_ring import KeyRing
from kvcs.payload import Component, size_advice
from kvcs.producer_keys import shown_key_id
from kvcs.progress import LayerProgress, layer_progress
from kvcs.publication import Publication
from kvcs.publisher import Publisher, produce
from kvcs.report import Report, not_guaranteed
from kvcs.signing import Signer
from moqt import Backend, ClientTls, Credential, ServerTls
from moqt.errors import ConnectError, MoqtError, RequestRejected

LOOK = 0.5
"""Seconds between looks at whether the file is still what it was."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to publish, where, and for how long. Seconds."""

    prompt: inputs.Prompt
    source: KvFileSource
    blocks: int
    components: str
    listen: tuple[str, int] | None
    relays: list[str]
    server_tls: ServerTls | None
    client_tls: ClientTls
    live_rate: float | None
    linger: float | None
    max_cache_duration: float | None
    signer: Signer | None
    key_ring: KeyRing | None
    ready_file: Path | None
    credential: Credential | None = None
    backend: Backend | None = None


class Serving:
    """One run: opens, produces, serves until a signal, the end of --linger, or a fault."""

    def __init__(self, job: Job, progress: LayerProgress) -> None:
        absent = not_guaranteed(signed=job.signer is not None, encrypted=job.key_ring is not None)
        self.report = Report(not_guaranteed=absent)
        self._job = job
        self._progress = progress
        self._started = time.monotonic()
        reread = protection.rereading(job.key_ring, progress.note)
        self._hangup = mutual.Hangup(job.server_tls, progress.note, reread)

    async def run(self) -> None:
        """Returns when all is withdrawn. Raises KvcsError or MoqtError."""
        job, stop = self._job, asyncio.Event()
        try:
            with ExitStack() as stack, signals.caught(stop.set, self._hangup.action):
                async with Publisher(backend=job.backend) as publisher:
                    publication = publisher.publish(
                        job.prompt.identity,
                        job.blocks,
                        components=job.components,
                        max_cache_duration=job.max_cache_duration,
                        signer=job.signer,
                        key_ring=job.key_ring,
                    )
                    self.report.publication = publication.name.publication_id
                    self.report.blocks = job.blocks
                    await self._open(publisher, publication, stack)
                    await self._serve(publication, stop)
        finally:
            self.report.seconds = time.monotonic() - self._started

    async def _open(self, publisher: Publisher, publication: Publication, stack: ExitStack) -> None:
        job = self._job
        ready: dict[str, object] = {}
        if job.listen is not None:
            ready |= await self._listen(publisher, job.listen, stack)
        absent: dict[str, ConnectError] = {}
        for url in job.relays:
            try:
                await self._announce(publisher, url)
            except ConnectError as error:
                if error.kind != "unreachable":
                    raise
                absent[url] = error
            else:
                ready.setdefault("url", url)
        for url, fault in absent.items():
            if not ready:
                raise fault
            await self._announce(publisher, url, retry=True)
        self.report.source = str(ready["url"])
        ready["namespace"] = [field.hex() for field in publication.name.namespace]
        ready["publication"] = publication.name.publication_id.hex()
        if job.ready_file is not None:
            write_ready_file(job.ready_file, ready)
        if job.signer is not None:
            name = shown_key_id(job.signer.key_id)
            self._progress.note(f"signed with {job.signer.algorithm.label} key {name}")
        if job.key_ring is not None:
            self._progress.note(f"encrypted, {protection.describe(job.key_ring)}")
        self._progress.note(f"publication {publication.name.publication_id.hex()}")

    async def _announce(self, publisher: Publisher, url: str, *, retry: bool = False) -> None:
        """Raises ConnectError, and RequestRejected with the relay's name in it."""
        tls, credential = self._job.client_tls, self._job.credential
        try:
            link = await publisher.announce(url, tls=tls, credential=credential, retry=retry)
        except RequestRejected as rejected:
            reason = f"{url} did not take the publication: {rejected.reason or 'no reason given'}"
            raise RequestRejected(rejected.wire_code, reason) from None
        if link.connected:
            self._progress.note(f"announced to {url}")
        else:
            self._progress.note(f"{url} cannot be reached yet; it is tried again and again")

    async def _listen(
        self, publisher: Publisher, where: tuple[str, int], stack: ExitStack
    ) -> dict[str, object]:
        job = self._job
        if job.server_tls is not None:
            server = self._hangup.server = await publisher.listen(*where, tls=job.server_tls)
            self._progress.note(f"serving at {server.url}")
            return {"url": server.url}
        if job.ready_file is not None:
            ca = endpoints.place_of_ca(job.ready_file.absolute())
        else:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvcs-ca-"))
            ca = Path(directory) / endpoints.CA_NAME
        with endpoints.throw_away(where[0], ca) as tls:
            server = await publisher.listen(*where, tls=tls)
        self._progress.note(f"serving at {server.url}")
        self._progress.note(f"throw-away CA for subscribers (--ca): {ca}")
        return {"url": server.url, "ca": str(ca)}

    async def _serve(self, publication: Publication, stop: asyncio.Event) -> None:
        work = [
            asyncio.create_task(self._produce(publication)),
            asyncio.create_task(self._guard(publication)),
            asyncio.create_task(publication.stopped.wait()),
            asyncio.create_task(stop.wait()),
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        if publication.error is not None:
            raise publication.error
        if stop.is_set():
            self._progress.note("withdrawing; subscribers have 5 s to finish")

    async def _produce(self, publication: Publication) -> None:
        """Publishes all layers; returns at the end of --linger, without it never."""
        job = self._job
        try:
            await produce(publication, job.source, rate=job.live_rate, on_layer=self._published)
        except SourceChanged as error:
            publication.stop(error)
        except PublicationStopped:
            return
        else:
            self.report.status = "complete"
            self._progress.close()
            self._progress.note(f"all {self.report.layers} layers are published")
            await asyncio.sleep(0 if job.linger is None else job.linger)
            if job.linger is None:
                await asyncio.Event().wait()

    def _published(self, layer: int) -> None:
        report, descriptor = self.report, self._job.prompt.descriptor
        if report.first_layer_seconds is None:
            report.first_layer_seconds = time.monotonic() - self._started
        report.layers = layer + 1
        report.octets += self._job.blocks * descriptor.section_size(Component.KV)
        report.objects += self._job.blocks * (1 if self._job.components == "kv" else 2)
        self._progress.layer(layer)

    async def _guard(self, publication: Publication) -> None:
        """Looks at the file even while nobody reads it."""
        while True:
            await asyncio.sleep(LOOK)
            try:
                self._job.source.check_unchanged()
            except SourceChanged as error:
                publication.stop(error)
                return


def write_ready_file(path: Path, content: dict[str, object]) -> None:
    """The ready file, whole from the moment it can be seen."""
    aside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        aside.write_text(json.dumps(content) + "\n", "utf-8")
        aside.replace(path)
    except OSError as fault:
        aside.unlink(missing_ok=True)
        raise UsageError(f"ready file: cannot write {path}: {fault.strerror}") from None


def publish(job: Job, *, as_json: bool) -> int:
    """Runs a job; returns the exit status or raises what ended it."""
    progress = layer_progress(Console(stderr=True), "published", job.source.layers)
    serving = Serving(job, progress)
    report = serving.report
    try:
        loops.run(serving.run())
    except ConnectError as fault:
        report.status, report.error = "error", endpoints.hint(fault)
        raise KvcsError(report.error) from None
    except (KvcsError, MoqtError) as fault:
        report.status, report.error = "error", one_line(str(fault))
        raise
    finally:
        progress.close()
        if as_json:
            click.echo(json.dumps(report.to_json()))
    return 0


@click.command("publish")
@click.argument("file", type=inputs.PATH)
@click.option("--listen", metavar="HOST:PORT", help="Serve here; without a port 4443.")
@click.option("--relay", "relays", multiple=True, metavar="URL", help="Announce to this relay.")
@inputs.scope_key_option
@click.option("--descriptor", type=inputs.PATH, metavar="FILE", help="Default: the file's own.")
@click.option("--tokens", type=inputs.PATH, metavar="FILE", help="Default: the file's own.")
@click.option(
    "--live-rate",
    type=inputs.rate,
    metavar="LAYERS/S",
    help="Play a production that takes its time.",
)
@click.option(
    "--linger", type=inputs.seconds, metavar="S", help="End S seconds after the last layer."
)
@click.option(
    "--max-cache-duration", type=inputs.seconds, metavar="S", help="How long relays may keep it."
)
@click.option(
    "--components",
    type=click.Choice(["k+v", "kv"]),
    default="k+v",
    show_default=True,
    help="Two tracks or one.",
)
@signatures.sign_option
@protection.encrypt_option
@click.option("--cert", type=inputs.PATH, metavar="FILE", help="Certificate chain for --listen.")
@click.option("--key", type=inputs.PATH, metavar="FILE", help="Its private key.")
@click.option("--ca", type=inputs.PATH, metavar="FILE", help="Whom to trust as relay.")
@mutual.server_options
@mutual.client_options
@click.option("--insecure", is_flag=True, help="Trust any relay; on loopback only.")
@click.option("--ready-file", type=inputs.PATH, metavar="FILE", help="Written once it serves.")
@access.auth_token_option
@transport.quic_option
@inputs.dry_run_option
@inputs.json_option
@verbose_option
def command(
    *,
    file: Path,
    listen: str | None,
    relays: tuple[str, ...],
    scope_key: Path,
    descriptor: Path | None,
    tokens: Path | None,
    live_rate: float | None,
    linger: float | None,
    max_cache_duration: float | None,
    components: str,
    sign: Path | None,
    encrypt: Path | None,
    cert: Path | None,
    key: Path | None,
    ca: Path | None,
    insecure: bool,
    ready_file: Path | None,
    credential: Credential | None,
    quic: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Publish a KV cache FILE until SIGINT or SIGTERM."""
    with ExitStack() as stack:
        with inputs.reporting(as_json=as_json):
            cache = stack.enter_context(KvFile(file))
            prompt = inputs.prompt_of(cache, scope_key, descriptor, tokens)
            where, urls = _places(listen, relays, cert, key, ready_file, dry_run=dry_run)
            job = Job(
                prompt=prompt,
                source=KvFileSource(cache, prompt.descriptor),
                blocks=min(cache.blocks, len(prompt.identity.block_keys)),
                components=components,
                listen=where,
                relays=urls,
                server_tls=mutual.server_tls(cert, key),
                client_tls=mutual.client_tls(endpoints.client_tls(urls, ca, insecure)),
                live_rate=live_rate,
                linger=linger,
                max_cache_duration=max_cache_duration,
                signer=signatures.signer(sign),
                key_ring=protection.key_ring(encrypt, scope_key),
                ready_file=ready_file,
                credential=credential,
                backend=transport.backend(quic, where),
            )
        _notices(job, cache)
        return (_show_plan if dry_run else publish)(job, as_json=as_json)


def _show_plan(job: Job, *, as_json: bool) -> int:
    facts = plan(
        job.prompt,
        job.blocks,
        job.source.layers,
        components=job.components,
        live_rate=job.live_rate,
        signed=job.signer is not None,
        encrypted=job.key_ring is not None,
    )
    show(facts, as_json=as_json)
    return 0


def _places(
    listen: str | None,
    relays: tuple[str, ...],
    cert: Path | None,
    key: Path | None,
    ready_file: Path | None,
    *,
    dry_run: bool,
) -> tuple[tuple[str, int] | None, list[str]]:
    if listen is None and not relays and not dry_run:
        raise UsageError("say where to publish: --listen HOST:PORT or --relay URL")
    where = None
    if listen is not None:
        where = endpoints.parse_listen(listen)
        endpoints.check_listen_tls(where[0], cert, key)
    elif cert is not None or key is not None:
        raise UsageError("--cert and --key are what --listen shows; there is no --listen")
    check_ready_file(ready_file)
    return where, endpoints.checked_urls(relays)


def check_ready_file(path: Path | None) -> None:
    """Raises UsageError where no ready file can be written."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UsageError(f"ready file: {path} is not a place for a file")


def _notices(job: Job, cache: KvFile) -> None:
    """What a user has to know before it starts, on stderr."""
    descriptor = job.prompt.descriptor
    if job.blocks < cache.blocks:
        left = cache.tokens - job.blocks * descriptor.block_tokens
        notice: str | None = (
            f"{cache.path}: tokens are known for {job.blocks} of {cache.blocks} blocks; "
            f"the last {left} tokens are left out"
        )
    else:
        notice = job.source.notice
    if notice:
        click.echo(f"kvcs: notice: {one_line(notice)}", err=True)
    component = Component.KV if job.components == "kv" else Component.K
    advice = size_advice(descriptor.section_size(component))
    if advice:
        click.echo(f"kvcs: warning: {advice}", err=True)
