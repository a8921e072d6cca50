"""`kvcs demo`: a publisher process, a consumer process, and a KV cache that goes from one to the other.

The processes run `kvcs publish` and `kvcs subscribe`; what they write is shown side by side as it comes.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import kvcs
from kvcs.cli import inputs, signals, transport
from kvcs.cli.logs import verbose_option
from kvcs.cli.stage import Process, Stage, environment
from kvcs.cli.text import one_line
from kvcs.cli.verify import Different, compare
from kvcs.errors import Incomplete, KvcsError, UsageError
from kvcs.formats.safetensors import KvFile, write_kv_file
from kvcs.formats.tokens import load_descriptor
from kvcs.progress import megabytes
from kvcs.sample import sample_descriptor, sample_layers, sample_tokens

ROOT = Path(kvcs.__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
REAL_CACHE = DATA / "smollm2-135m-128tok.safetensors"
REAL_DESCRIPTOR = DATA / "smollm2-descriptor.json"

PATIENCE = 60.0
"""Seconds for either process; the demonstration needs a few."""
DIFFERENT = Different.exit_status
SAMPLE_TOKENS = 128
INTRODUCTION = "A KV cache goes to another process over MOQT while it is still being produced."


@dataclass
class Cast:
    """The files of a demonstration, all in a directory that is gone afterwards but for the cache itself."""

    directory: Path
    cache: Path
    descriptor: Path
    layers: int = 0
    title: str = ""
    key: Path = field(init=False)
    ready: Path = field(init=False)
    output: Path = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.directory / "scope.key"
        self.ready = self.directory / "ready.json"
        self.output = self.directory / "received.safetensors"
        self.key.write_text(secrets.token_hex(32) + "\n", "utf-8")
        (self.directory / "kvcs.toml").write_text("", "utf-8")
        described = load_descriptor(self.descriptor)
        with KvFile(self.cache) as cache:
            cache.check_descriptor(described)
            self.layers = described.layers
            octets = sum(tensor.end - tensor.begin for tensor in cache.tensors.values())
            name = one_line((cache.model or cache.path.name).partition(" (")[0])
            self.title = (
                f"{name}: {self.layers} layers, {cache.blocks} blocks of {cache.block_tokens} tokens, "
                f"{cache.dtype}, {megabytes(octets)}"
            )


async def play(console: Console, cast: Cast, rate: float, quic: str) -> bool:
    """Runs both processes; whether what was received is identical. Raises what went wrong."""
    stage = Stage(console, cast.layers)
    variables = environment(ROOT, cast.directory / "kvcs.toml")
    files = ["--scope-key", str(cast.key), "--descriptor", str(cast.descriptor)]
    served_by = transport.on_loopback(quic)
    places = ["--listen", "127.0.0.1:0", "--ready-file", str(cast.ready)]
    pace = ["--live-rate", str(rate), "--linger", str(PATIENCE)]
    stage.say(INTRODUCTION, "dim")
    stage.say(cast.title, "bold")
    if served_by != quic:
        stage.say(f"{quic} would listen on every address: the publisher runs {served_by}", "dim")
    async with AsyncExitStack() as processes:
        publish = ["publish", str(cast.cache), *files, "--quic", served_by, *places, *pace]
        publisher = await Process.start(variables, stage.publisher_said, *publish)
        processes.push_async_callback(publisher.end)
        await _ready(stage, publisher)
        ready = json.loads(cast.ready.read_text("utf-8"))
        stage.say(f"publisher  process {publisher.pid}, {ready['url']}, about {rate:g} layers/s")
        more = ["--ca", ready["ca"], "--tokens", str(cast.cache), "--output", str(cast.output)]
        subscribe = ["subscribe", ready["url"], *files, "--quic", quic, *more, "--json"]
        consumer = await Process.start(variables, stage.consumer_said, *subscribe)
        processes.push_async_callback(consumer.end)
        stage.say(f"consumer   process {consumer.pid}, certificate checked with a throw-away CA")
        try:
            async with asyncio.timeout(PATIENCE + cast.layers / rate):
                status, text = await consumer.output()
        except TimeoutError:
            raise Incomplete("the demonstration took too long") from None
        if status != 0:
            raise KvcsError(f"the consumer ended with status {status}: {consumer.last}")
    return _verdict(stage, cast, json.loads(text))


async def _ready(stage: Stage, publisher: Process) -> None:
    waiting = asyncio.create_task(stage.ready.wait())
    await asyncio.wait(
        {waiting, publisher.silent}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
    )
    waiting.cancel()
    if not stage.ready.is_set():
        raise KvcsError(f"the publisher does not serve: {publisher.last or 'it says nothing'}")


def _verdict(stage: Stage, cast: Cast, report: dict[str, Any]) -> bool:
    """Compares the two files, and says what came of it."""
    with KvFile(cast.cache) as sent, KvFile(cast.output) as received:
        result = compare(sent, received)
        whole = sent.blocks * sent.block_tokens
        # What does not fill a block is not published, and not missed here.
        complete = received.tokens == whole and received.layers == sent.layers
    identical = complete and not result.different
    speed = report["bytes"] * 8e-6 / max(report["seconds"], 1e-6)
    stage.say("")
    stage.say(
        f"{report['layers']} layers, {report['bytes']} bytes, {speed:.1f} Mbit/s, first layer "
        f"{report['first_layer_seconds']:.3f} s, identical: {'yes' if identical else 'no'}",
        "bold green" if identical else "bold red",
    )
    return identical


def _choose(file: Path | None, descriptor: Path | None, directory: Path) -> tuple[Path, Path]:
    """The cache to show and its descriptor: the one that was named, the repository's, or a sample."""
    if file is not None:
        return file, file if descriptor is None else descriptor
    if descriptor is not None:
        raise UsageError("--descriptor describes --file; there is no --file")
    if REAL_CACHE.is_file() and REAL_DESCRIPTOR.is_file():
        return REAL_CACHE, REAL_DESCRIPTOR
    click.echo("kvcs: notice: no checkout with the real cache; a random one is shown", err=True)
    sample = directory / "sample.safetensors"
    described = sample_descriptor(
        layers=30, kv_heads=3, head_dim=64, dtype="bf16", block_tokens=64, seed=0
    )
    layers = sample_layers(described, SAMPLE_TOKENS, 0)
    ids = sample_tokens(SAMPLE_TOKENS, 0)
    write_kv_file(sample, described, SAMPLE_TOKENS, layers, token_ids=ids, model="random numbers")
    return sample, sample


@click.command("demo")
@click.option(
    "--file", type=inputs.PATH, metavar="FILE", help="Another KV cache than the real one."
)
@click.option(
    "--descriptor",
    type=inputs.PATH,
    metavar="FILE",
    help="Its descriptor; default: the file's own.",
)
@click.option(
    "--rate",
    type=inputs.rate,
    default=10.0,
    show_default=True,
    metavar="LAYERS/S",
    help="Pace of the production.",
)
@transport.quic_option
@verbose_option
def command(*, file: Path | None, descriptor: Path | None, rate: float, quic: str) -> int:
    """Publish a real KV cache from one process and receive it in another, layer by layer.

    Ends with 0 if every byte that was received is the one that was published.
    """
    transport.backend(quic)
    with tempfile.TemporaryDirectory(prefix="kvcs-demo-") as name:
        cast = Cast(Path(name), *_choose(file, descriptor, Path(name)))
        return 0 if signals.run(play(Console(highlight=False), cast, rate, quic)) else DIFFERENT
