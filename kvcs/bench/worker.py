"""One process of a benchmark round: a publisher or a consumer, of KVCS or of plain streams.

Talks JSON lines: a publisher prints its URL, waits for the end of its input, and prints its memory; a consumer prints
its result.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from kvcs import loops
from kvcs.bench.memory import Watch
from kvcs.bench.plan import KV_HEADS, LAYERS, SCOPE_KEY, Plan
from kvcs.bench.trust import protection, requirements
from kvcs.consumer import Consumer
from kvcs.formats.safetensors import KvFile, KvFileSink, KvFileSource
from kvcs.kvsp.identity import Identity
from kvcs.publisher import Publisher, produce
from kvcs.sample import sample_descriptor
from moqt import ClientTls, ServerTls, format_authority, parse_url, quic_backend
from moqt.plain import receive_plain, serve_plain


def say(**values: object) -> None:
    """A JSON line for the parent process."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


async def until_told() -> None:
    """Returns at the end of the input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        await reader.read()
    finally:
        pipe.close()


def server_tls(plan: Plan) -> ServerTls:
    """The certificate that every round shows."""
    return ServerTls(
        certificate=plan.certificates / "server.pem",
        private_key=plan.certificates / "server-key.pem",
    )


def identity_of(plan: Plan) -> Identity:
    """Of the cache that every round transfers."""
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
    identity = identity_of(plan)
    with KvFile(plan.file) as file:
        async with Publisher(config=plan.config, backend=quic_backend(plan.backend)) as publisher:
            publication = publisher.publish(identity, **protection(plan))
            await produce(publication, KvFileSource(file, identity.descriptor))
            server = await publisher.listen("127.0.0.1", 0, tls=server_tls(plan))
            watch, used = Watch(), time.process_time()
            say(url=server.url)
            watch.start()
            await until_told()
            say(anonymous=watch.stop(), cpu=time.process_time() - used)


async def subscribe(plan: Plan, url: str) -> None:
    """Retrieves it into a file, verified."""
    identity = identity_of(plan)
    tls = ClientTls(ca_file=plan.certificates / "ca.pem")
    target = plan.file.with_name("received.safetensors")
    async with await Consumer.connect(
        url, tls=tls, config=plan.config, backend=quic_backend(plan.backend)
    ) as consumer:
        watch, used = Watch(), time.process_time()
        watch.start()
        with KvFileSink(target, identity.descriptor, len(identity.block_keys)) as sink:
            retrieval = consumer.retrieve(identity, sink, requirements(plan))
            async for _ in retrieval:
                pass
            report = await retrieval.finish()
            used = time.process_time() - used
            memory = watch.stop()
            sink.finish(report.blocks)
    say(
        cpu=used,
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
        tls=server_tls(plan),
        config=plan.config,
        backend=quic_backend(plan.backend),
    )
    say(url=f"moqt://{format_authority(*listener.address)}")
    await until_told()
    listener.close()
    await listener.wait_closed()
    say(anonymous=0)


async def take_plain(plan: Plan, url: str) -> None:
    """Counts them."""
    seconds = await receive_plain(
        parse_url(url),
        plan.octets,
        tls=ClientTls(ca_file=plan.certificates / "ca.pem"),
        config=plan.config,
        backend=quic_backend(plan.backend),
    )
    say(seconds=seconds, octets=plan.octets)


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "publish": publish,
    "subscribe": subscribe,
    "send-plain": send_plain,
    "take-plain": take_plain,
}
"""Servers take the plan; clients take the plan and the URL to dial."""


def main() -> None:
    """worker PLAN ROLE [URL]"""
    plan, role, *url = Plan.load(sys.argv[1]), *sys.argv[2:]
    loops.run(ROLES[role](plan, *url), plan.loop)


if __name__ == "__main__":
    main()
