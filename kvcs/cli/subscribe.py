"""`kvcs subscribe`: finds a KV cache, receives it layer by layer, and stores it once all of it is verified."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from kvcs.cli import access, endpoints, inputs, mutual, protection, signals, signatures, transport
from kvcs.cli.logs import verbose_option
from kvcs.cli.main import status_of
from kvcs.cli.plan import plan, show
from kvcs.cli.text import one_line
from kvcs.consumer import Consumer
from kvcs.errors import Incomplete, KvcsError, PublicationNotFound, Unauthorised, UsageError
from kvcs.formats.safetensors import KvFileSink
from kvcs.progress import LayerProgress, layer_progress, megabytes
from kvcs.report import Report, describe_absent
from kvcs.retrieval import Options
from moqt import Backend, ClientTls, Config, Credential
from moqt.errors import ConnectError, MoqtError

MAX_PUBLICATIONS = 4
"""Publications of one peer that are tried: each one may cost a stall."""
MAX_MOVES = 8
"""Peers that name another URL as they leave, in all that is followed: they could go on for ever."""

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to retrieve, and from whom; the first peer that has it gives all of it."""

    urls: list[str]
    prompt: inputs.Prompt
    output: Path
    options: Options
    tls: ClientTls
    config: Config = Config()  # noqa: RUF009 - frozen
    credential: Credential | None = None
    backend: Backend | None = None


class Fetching:
    """One run: tries the peers in turn, and stores the cache."""

    def __init__(self, job: Job, progress: LayerProgress) -> None:
        self.report = Report()
        self._job = job
        self._progress = progress
        self._until: float | None = None
        self._faults: list[tuple[str, KvcsError, Report]] = []
        """What went wrong, with the URL and how far it came."""
        self._untold = ""
        self._shown = -1
        """The last layer that was shown: a second peer gives the first ones again."""

    async def run(self) -> None:
        """Returns when the file is stored. Raises KvcsError, UsageError for the output's sake included."""
        job, started = self._job, time.monotonic()
        if job.options.deadline is not None:
            self._until = asyncio.get_running_loop().time() + job.options.deadline
        try:
            await self._first()
        finally:
            self.report.seconds = self.report.seconds or time.monotonic() - started

    async def _first(self) -> None:
        """Retrieves from the first peer that can give all of it; raises the gravest of what all said otherwise.

        Each starts anew: what two of them publish need not be of one production (C8).
        """
        places, known = deque(self._job.urls), set(self._job.urls)
        while places and not (self._faults and self._over()):
            self._tell_fault()
            url = places.popleft()
            self.report = Report(source=url)
            try:
                moved = await self._from(url)
            except OSError as fault:  # of the file: those of the network are MoqtErrors
                raise _cannot_write(self._job.output, fault) from None
            except UsageError:
                raise
            except KvcsError as fault:
                self._failed(url, fault)
                continue
            if self.report.status == "complete":
                return
            most = len(self._job.urls) + MAX_MOVES
            if moved is not None and moved not in known and len(known) < most:
                known.add(moved)
                places.appendleft(moved)
        _, gravest, self.report = max(self._faults, key=lambda entry: entry[1].exit_status)
        if len(self._faults) > 1:
            raise type(gravest)("; ".join(f"{url}: {fault}" for url, fault, _ in self._faults))
        raise gravest

    def _failed(self, url: str, fault: KvcsError) -> None:
        self._tell_fault()
        self._faults.append((url, fault, self.report))
        self._untold = one_line(f"{url}: {fault}")

    def _tell_fault(self) -> None:
        """Shows the last fault once something follows it; one that nothing follows is how the command ends."""
        if self._untold and not self._over():
            self._progress.note(self._untold)
        self._untold = ""

    async def _from(self, url: str) -> str | None:
        """Tries the publications of one peer in turn, as another one may be whole (C8).

        Returns where to go on if the peer said that before it left. Raises KvcsError where there is no session.
        """
        tried: frozenset[bytes] = frozenset()
        with _sink(self._job):
            pass  # whether the output can be written shows before anybody is asked
        async with await self._connect(url) as consumer:
            self._progress.note(f"connected to {url}")
            while True:
                self._tell_fault()
                self.report = Report(source=url)
                try:
                    with _sink(self._job) as sink:
                        await self._retrieve(consumer, sink, tried)
                        sink.finish(self.report.blocks)
                    return None
                except UsageError:
                    raise
                except KvcsError as fault:
                    if not tried or not isinstance(fault, PublicationNotFound):
                        self._failed(url, fault)
                    publication = self.report.publication
                    tried |= {publication} if publication else set()
                    moved = consumer.session.moved
                    over = self._over() or moved is not None or consumer.session.closed is not None
                    if publication is None or over or len(tried) >= MAX_PUBLICATIONS:
                        return self._elsewhere(moved)

    def _elsewhere(self, moved: str | None) -> str | None:
        """The URI of a GOAWAY, if one can go there."""
        if not moved:
            return None
        try:
            (url,) = endpoints.checked_urls([moved])
            endpoints.check_insecure([url], insecure=not self._job.tls.verify)
        except UsageError as fault:
            self._progress.note(one_line(f"the peer leaves and names no place to go on: {fault}"))
            return None
        self._progress.note(f"the peer leaves; going on at {url}")
        return url

    def _over(self) -> bool:
        return self._until is not None and asyncio.get_running_loop().time() >= self._until

    async def _retrieve(
        self, consumer: Consumer, sink: KvFileSink, tried: frozenset[bytes]
    ) -> None:
        options = replace(self._job.options, exclude=tried)
        if tried:
            options = replace(options, wait=0.0)
        if self._until is not None:
            left = max(self._until - asyncio.get_running_loop().time(), 0.001)
            options = replace(options, deadline=left)
        retrieval = consumer.retrieve(self._job.prompt.identity, sink, options)
        self.report = retrieval.report
        try:
            async for layer in retrieval:
                if layer > self._shown:
                    self._shown = layer
                    self._progress.layer(layer, retrieval.assembly.octets)
            await retrieval.finish()
        except MoqtError as fault:
            raise _as_ours(fault) from fault
        finally:
            await retrieval.cancel()

    async def _connect(self, url: str) -> Consumer:
        job = self._job
        try:
            async with asyncio.timeout_at(self._until):
                return await Consumer.connect(
                    url,
                    tls=job.tls,
                    config=job.config,
                    credential=job.credential,
                    backend=job.backend,
                )
        except TimeoutError:
            raise Incomplete("incomplete: the deadline passed before there was a session") from None
        except ConnectError as fault:
            raise KvcsError(endpoints.hint(fault)) from None
        except MoqtError as fault:
            raise _as_ours(fault) from fault


def _as_ours(fault: MoqtError) -> KvcsError:
    """The same with the exit status that it has."""
    status = status_of(fault)
    for kind in (Incomplete, Unauthorised):
        if kind.exit_status == status:
            return kind(str(fault))
    return KvcsError(str(fault))


def _sink(job: Job) -> KvFileSink:
    identity, options = job.prompt.identity, job.options
    whole = len(identity.block_keys)
    blocks = min(options.blocks or whole, whole)
    return KvFileSink(
        job.output,
        identity.descriptor,
        blocks,
        layers=options.layers,
        token_ids=job.prompt.tokens[: blocks * identity.descriptor.block_tokens],
        whole_blocks=whole,
    )


def _cannot_write(output: Path, fault: OSError) -> UsageError:
    return UsageError(f"output: cannot write {output}: {fault.strerror}")


def check_output(output: Path, *needed: Path | None) -> None:
    """Raises UsageError where the output would take the place of a file that is needed, such as the key."""
    try:
        taken = output.exists() and any(path and output.samefile(path) for path in needed)
    except OSError as fault:
        raise _cannot_write(output, fault) from None
    if taken:
        raise UsageError(f"output: {output} is read as well; name another")


def parse_layers(text: str) -> range:
    """A-B, inclusive, or one layer."""
    match = _RANGE.fullmatch(text)
    if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
        raise UsageError(f"layers: expected A-B, zero-based and inclusive, got {text!r}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def subscribe(job: Job, *, as_json: bool) -> int:
    """Runs a job; returns the exit status or raises what ended it."""
    layers = job.options.layers or range(job.prompt.descriptor.layers)
    progress = layer_progress(Console(stderr=True), "usable", len(layers))
    fetching = Fetching(job, progress)
    try:
        signals.run(fetching.run(), protection.rereading(job.options.key_ring, progress.note))
    except KvcsError as fault:
        _note(fetching.report, fault.status, str(fault))
        raise
    except KeyboardInterrupt:
        _note(fetching.report, "incomplete", "interrupted")
        raise
    finally:
        progress.close()
        if as_json:
            click.echo(json.dumps(fetching.report.to_json()))
    if not as_json:
        click.echo(summary(fetching.report, job.output))
        if caveat := describe_absent(fetching.report):
            click.echo(f"kvcs: notice: {caveat}", err=True)
    return 0


def _note(report: Report, status: str, error: str) -> None:
    report.status, report.error = status, one_line(error)


def summary(report: Report, output: Path) -> str:
    """The last line for people."""
    first = report.first_layer_seconds or 0.0
    return one_line(
        f"{output}: {report.layers} layers, {report.blocks} blocks, {megabytes(report.octets)} in "
        f"{report.seconds:.2f} s ({mbit_s(report):.1f} Mbit/s), first layer after {first:.3f} s"
    )


def mbit_s(report: Report) -> float:
    """Verified Data a second, in millions of bits."""
    return report.octets * 8e-6 / max(report.seconds, 1e-6)


@click.command("subscribe")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@inputs.scope_key_option
@click.option(
    "--descriptor",
    type=inputs.PATH,
    required=True,
    metavar="FILE",
    help="Compatibility Descriptor, JSON.",
)
@click.option(
    "--tokens",
    type=inputs.PATH,
    required=True,
    metavar="FILE",
    help="Token ids: a JSON array, a .npy file, or a KV cache file.",
)
@click.option("--output", type=inputs.PATH, required=True, metavar="FILE", help="File to write.")
@click.option("--layers", metavar="A-B", help="Only these, zero-based and inclusive.")
@click.option("--blocks", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option(
    "--deadline", type=inputs.some_seconds, metavar="S", help="Bounds the whole, in seconds."
)
@click.option(
    "--wait",
    type=inputs.seconds,
    default=Options().wait,
    show_default=True,
    metavar="S",
    help="How long to wait for a publication that is not there yet.",
)
@signatures.require_signature_option
@protection.decrypt_option
@click.option("--no-probe", is_flag=True, help="Do not ask for shorter prefixes.")
@click.option("--ca", type=inputs.PATH, metavar="FILE", help="Whom to trust, PEM.")
@mutual.client_options
@click.option("--insecure", is_flag=True, help="Check no certificate; on loopback only.")
@access.auth_token_option
@transport.quic_option
@inputs.dry_run_option
@inputs.json_option
@verbose_option
def command(
    *,
    urls: tuple[str, ...],
    scope_key: Path,
    descriptor: Path,
    tokens: Path,
    output: Path,
    layers: str | None,
    blocks: int | None,
    deadline: float | None,
    wait: float,
    require_signature: tuple[Path, ...],
    decrypt: Path | None,
    no_probe: bool,
    ca: Path | None,
    insecure: bool,
    credential: Credential | None,
    quic: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Receive a KV cache from the first URL that has it."""
    with inputs.reporting(as_json=as_json):
        prompt = inputs.read_prompt(scope_key, descriptor, tokens)
        checked = endpoints.checked_urls(urls)
        job = Job(
            urls=checked,
            prompt=prompt,
            output=output,
            options=Options(
                layers=_layers(layers, prompt.descriptor.layers),
                blocks=blocks,
                deadline=deadline,
                wait=wait,
                probe=not no_probe,
                signed_by=signatures.trusted_keys(require_signature),
                key_ring=protection.key_ring(decrypt, scope_key),
            ),
            tls=mutual.client_tls(endpoints.client_tls(checked, ca, insecure)),
            credential=credential,
            backend=transport.backend(quic),
        )
        check_output(output, scope_key, descriptor, tokens, ca, decrypt)
    if dry_run:
        _show_plan(job, as_json=as_json)
        return 0
    return subscribe(job, as_json=as_json)


def _layers(text: str | None, most: int) -> range | None:
    wanted = parse_layers(text) if text is not None else None
    if wanted is not None and wanted.stop > most:
        raise UsageError(f"layers: the model has 0-{most - 1}, got {text}")
    return wanted


def _show_plan(job: Job, *, as_json: bool) -> None:
    prompt, options = job.prompt, job.options
    whole = len(prompt.identity.block_keys)
    layers = prompt.descriptor.layers if options.layers is None else len(options.layers)
    facts = plan(
        prompt,
        min(options.blocks or whole, whole),
        layers,
        signed=options.signed_by is not None,
        encrypted=options.key_ring is not None,
    )
    show(facts, as_json=as_json)
