"""One process of a benchmark round: a publisher or a consumer, of KVCS or of plain streams.

Talks JSON lines: a publisher prints its URL, waits for the end of its input, and prints its memory; a consumer prints
its result.
"""

from __future__ import annotations

import asyncio
import json
import sys

from kvcs.bench.memory import Watch
from kvcs.bench.plan import KV_HEADS, LAYERS, SCOPE_KEY, Plan
from kvcs.cli.sample import sample_descriptor
from kvcs.consumer import Consumer
from kvcs.formats.safetensors import KvFile, KvFileSink, KvFileSource
from kvcs.kvsp.identity import Identity
from kvcs.publisher import Publisher, produce
from moqt import ClientTls, ServerTls, format_authority, parse_url
from moqt.plain import receive_plain, serve_plain
from moqt.quic import backend


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201 - the parent process reads it


async def _until_told() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        await reader.read()
    finally:
        pipe.close()


def _tls(plan: Plan) -> ServerTls:
    return ServerTls(
        certificate=plan.certificates / "server.pem",
        private_key=plan.certificates / "server-key.pem",
    )


def _identity(plan: Plan) -> Identity:
    with KvFile(plan.file) as file:
        tokens = file.token_ids()
    assert tokens is not None
    descriptor = sample_descriptor(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=128,
        dtype="bf16",
        block_tokens=plan.block_tokens,
        seed=0,
    )
    return Identity.derive(SCOPE_KEY, descriptor, tokens)


async def publish(plan: Plan) -> None:
    """Serves the cache file, complete before the consumer is told."""
    identity = _identity(plan)
    with KvFile(plan.file) as file:
        async with Publisher(config=plan.config, backend=backend(plan.backend)) as publisher:
            publication = publisher.publish(identity)
            await produce(publication, KvFileSource(file, identity.descriptor))
            server = await publisher.listen("127.0.0.1", 0, tls=_tls(plan))
            watch = Watch()
            _say(url=server.url)
            watch.start()
            await _until_told()
            _say(anonymous=watch.stop())


async def subscribe(plan: Plan, url: str) -> None:
    """Retrieves it into a file, verified."""
    identity = _identity(plan)
    tls = ClientTls(ca_file=plan.certificates / "ca.pem")
    target = plan.file.with_name("received.safetensors")
    async with await Consumer.connect(
        url, tls=tls, config=plan.config, backend=backend(plan.backend)
    ) as consumer:
        watch = Watch()
        watch.start()
        with KvFileSink(target, identity.descriptor, len(identity.block_keys)) as sink:
            retrieval = consumer.retrieve(identity, sink)
            async for _ in retrieval:
                pass
            report = await retrieval.finish()
            memory = watch.stop()
            sink.finish(report.blocks)
    _say(
        seconds=report.seconds,
        first_layer_seconds=report.first_layer_seconds,
        octets=report.octets,
        anonymous=memory,
    )


async def send_plain(plan: Plan) -> None:
    """The same octets on the same streams: one a layer and component."""
    listener = await serve_plain(
        "127.0.0.1",
        0,
        streams=[(component, plan.blocks) for _ in range(LAYERS) for component in (1, 2)],
        piece=bytes(plan.object_kib << 10),
        tls=_tls(plan),
        config=plan.config,
        backend=backend(plan.backend),
    )
    _say(url=f"moqt://{format_authority(*listener.address)}")
    await _until_told()
    listener.close()
    await listener.wait_closed()
    _say(anonymous=0)


async def take_plain(plan: Plan, url: str) -> None:
    """Counts them."""
    seconds = await receive_plain(
        parse_url(url),
        plan.octets,
        tls=ClientTls(ca_file=plan.certificates / "ca.pem"),
        config=plan.config,
        backend=backend(plan.backend),
    )
    _say(seconds=seconds, octets=plan.octets)


def main() -> None:
    """worker PLAN publish | subscribe URL | send-plain | take-plain URL"""
    plan, role = Plan.load(sys.argv[1]), sys.argv[2]
    if role == "publish":
        asyncio.run(publish(plan))
    elif role == "send-plain":
        asyncio.run(send_plain(plan))
    elif role == "subscribe":
        asyncio.run(subscribe(plan, sys.argv[3]))
    else:
        asyncio.run(take_plain(plan, sys.argv[3]))


if __name__ == "__main__":
    main()
