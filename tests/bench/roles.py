"""What the processes of a case do, beyond a publisher and a consumer of one cache; see kvcs/bench/worker.py."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from kvcs.bench.memory import Watch
from kvcs.bench.plan import Plan
from kvcs.bench.worker import identity_of, say, server_tls, until_told
from kvcs.consumer import Consumer
from kvcs.formats.safetensors import KvFile, KvFileSink, KvFileSource
from kvcs.kvsp.identity import Identity
from kvcs.publisher import Publisher
from kvcs.retrieval import Options
from moqt import ClientTls, Location, TrackNamespace, format_authority, parse_url
from moqt.quic import backend
from tests.bench.ticker import Ticker
from tests.support.shaper import shaped

SEGMENT_FILE = "append"
"""Its appearance in the plan's directory makes `publish-growing` publish its second segment."""
POLL = 0.002


async def shape(plan: Plan, url: str) -> None:
    """A shaped network before the server at `url`."""
    where = parse_url(url)
    async with shaped((where.host, where.port), **plan.options["shape"]) as shaper:
        say(url=f"moqt://{format_authority(*shaper.address)}")
        await until_told()
        say(dropped=shaper.down.counters.dropped)


async def connected(plan: Plan, url: str) -> Consumer:
    """A consumer with the plan's transport."""
    return await Consumer.connect(
        url,
        tls=ClientTls(ca_file=plan.certificates / "ca.pem"),
        config=plan.config,
        backend=backend(plan.backend),
    )


def put_layers(publisher: Publisher, identity: Identity, file: KvFile, blocks: int) -> None:
    """Publishes the first `blocks` blocks of the file as segment 0."""
    publication = publisher.publish(identity, blocks)
    source = KvFileSource(file, identity.descriptor)
    segment = publication.segments[0]
    for layer in range(identity.descriptor.layers):
        segment.put_source_layer(layer, source, segment.measure(source, layer))


async def publish_growing(plan: Plan) -> None:
    """Serves all blocks but one, and appends a segment with that one when it is told."""
    identity = identity_of(plan)
    signal = Path(plan.directory, SEGMENT_FILE)
    signal.unlink(missing_ok=True)
    with KvFile(plan.file) as file:
        async with Publisher(config=plan.config, backend=backend(plan.backend)) as publisher:
            put_layers(publisher, identity, file, plan.blocks - 1)
            server = await publisher.listen("127.0.0.1", 0, tls=server_tls(plan))
            say(url=server.url)
            while not signal.exists():  # noqa: ASYNC110 - the other side is another process
                await asyncio.sleep(POLL)
            appended = time.monotonic()
            publisher.publications[0].append(1)
            await until_told()
            say(anonymous=0, appended_at=appended)


async def first_layer(plan: Plan, url: str) -> None:
    """After a transfer that opens the window: time to the first layer, and when a new manifest came."""
    identity = identity_of(plan)
    blocks = plan.blocks - 1
    warm = plan.options["warm_layers"]
    async with await connected(plan, url) as consumer:
        with KvFileSink(plan.file.with_name("warm"), identity.descriptor, blocks) as sink:
            await consumer.retrieve(
                identity, sink, Options(layers=range(warm), blocks=blocks)
            ).finish()
            sink.abort()
        with KvFileSink(plan.file.with_name("received"), identity.descriptor, blocks) as sink:
            retrieval = consumer.retrieve(identity, sink, Options(blocks=blocks))
            async for layer in retrieval:
                if layer == 1:
                    break
            Path(plan.directory, SEGMENT_FILE).touch()
            while len(getattr(retrieval.assembly.manifest, "segments", ())) < 2:  # noqa: ASYNC110
                await asyncio.sleep(POLL)
            seen = time.monotonic()
            octets = retrieval.assembly.octets
            await retrieval.cancel()
            sink.abort()
    first = retrieval.report.first_layer_seconds
    say(seconds=1, octets=octets, first_layer_seconds=first, manifest_at=seen)


async def pipeline(plan: Plan, url: str) -> None:
    """One retrieval for each of the plan's factors, by an engine that takes that many layer times a layer.

    What the engine's sleeps came to is reported, so that late timers of the loop count as its work.
    """
    identity = identity_of(plan)
    layer_time = plan.octets / identity.descriptor.layers * 8 / plan.options["shape"]["rate"]
    loop = asyncio.get_running_loop()
    times, computes = [], []
    async with await connected(plan, url) as consumer:
        for factor in (0.0, *plan.options["factors"]):
            with KvFileSink(
                plan.file.with_name("received"), identity.descriptor, plan.blocks
            ) as sink:
                started = loop.time()
                worked = 0.0
                retrieval = consumer.retrieve(identity, sink)
                async for _ in retrieval:
                    begun = loop.time()
                    await asyncio.sleep(factor * layer_time)
                    worked += loop.time() - begun
                times.append(loop.time() - started)
                computes.append(worked)
                await retrieval.finish()
                sink.abort()
    say(
        seconds=times[1],
        octets=plan.octets,
        times=times[1:],
        computes=computes[1:],
        layer_time=layer_time,
        factors=plan.options["factors"],
    )


async def subscribe_many(plan: Plan, url: str) -> None:
    """`count` consumers at once, each with a session of its own, `repeat` times one after the other."""
    identity = identity_of(plan)
    loop = asyncio.get_running_loop()
    ticker = Ticker()
    consumers = [await connected(plan, url) for _ in range(plan.options["count"])]

    async def one(number: int) -> int:
        octets = 0
        for _ in range(plan.options["repeat"]):
            target = plan.file.with_name(f"received-{number}")
            with KvFileSink(target, identity.descriptor, plan.blocks) as sink:
                octets += (await consumers[number].retrieve(identity, sink).finish()).octets
                sink.abort()
        return octets

    ticker.start()
    started = loop.time()
    octets = sum(await asyncio.gather(*(one(number) for number in range(len(consumers)))))
    seconds = loop.time() - started
    late = await ticker.stop()
    for consumer in consumers:
        await consumer.session.close()
    say(seconds=seconds, octets=octets, late=late)


async def publish_ticking(plan: Plan) -> None:
    """Serves the cache file and watches its own memory and loop, from the first subscription on."""
    identity = identity_of(plan)
    with KvFile(plan.file) as file:
        async with Publisher(config=plan.config, backend=backend(plan.backend)) as publisher:
            put_layers(publisher, identity, file, plan.blocks)
            publication = publisher.publications[0]
            publication.end()
            server = await publisher.listen("127.0.0.1", 0, tls=server_tls(plan))
            watch, ticker = Watch(), Ticker()
            track = publication.tracks[1].name
            say(
                url=server.url, namespace=[p.hex() for p in track.namespace], track=track.name.hex()
            )
            watch.start()
            ticker.start()
            await until_told()
            late = await ticker.stop()
            say(anonymous=watch.stop(), late=late)


async def stop_reading(plan: Plan, url: str, *address: str) -> None:
    """Fetches a track, reads one Object, then nothing for a while, then the rest."""
    namespace: TrackNamespace = tuple(bytes.fromhex(part) for part in address[:-1])
    loop = asyncio.get_running_loop()
    ticker, watch = Ticker(), Watch()
    async with await connected(plan, url) as consumer:
        watch.start()
        ticker.start()
        started = loop.time()
        fetch = await consumer.session.fetch(namespace, bytes.fromhex(address[-1]))
        items = aiter(fetch)
        octets = len(getattr(await anext(items), "payload", b""))
        ahead = 0
        until = loop.time() + plan.options["pause"]
        while loop.time() < until:
            await asyncio.sleep(0.05)
            ahead = max(ahead, consumer.session.driver.held)
        async for item in items:
            octets += len(getattr(item, "payload", b""))
        seconds = loop.time() - started
        late = await ticker.stop()
        assert fetch.end == Location(identity_of(plan).descriptor.layers - 1, plan.blocks - 1)
    say(seconds=seconds, octets=octets, ahead=ahead, late=late, anonymous=watch.stop())
