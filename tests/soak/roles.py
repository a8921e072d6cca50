"""The two processes of a long transfer; see tests/bench/worker.py."""

from __future__ import annotations

import logging
import time

from kvcs.bench.memory import Watch
from kvcs.bench.plan import Plan
from kvcs.bench.worker import identity_of, say, server_tls, until_told
from kvcs.consumer import Consumer
from kvcs.formats.safetensors import KvFile, KvFileSink, KvFileSource
from kvcs.publisher import Publisher, produce
from kvcs.retrieval import Options
from moqt import ClientTls
from moqt.quic import backend

PATIENT = Options(stall=300.0)
"""Other programs may keep a machine busy for long."""


class KeyUpdates(logging.Handler):
    """Counts what the transport says of them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "new keys" in record.getMessage()


async def publish_long(plan: Plan) -> None:
    """Serves the cache file; says how often it asked for new keys, and what memory it took."""
    updates = KeyUpdates()
    logging.getLogger("moqt.quic").setLevel(logging.INFO)
    logging.getLogger("moqt.quic").addHandler(updates)
    identity = identity_of(plan)
    with KvFile(plan.file) as file:
        async with Publisher(config=plan.config, backend=backend(plan.backend)) as publisher:
            publication = publisher.publish(identity)
            await produce(publication, KvFileSource(file, identity.descriptor))
            server = await publisher.listen("127.0.0.1", 0, tls=server_tls(plan))
            watch = Watch()
            say(url=server.url)
            watch.start()
            await until_told()
            say(anonymous=watch.stop(), key_updates=updates.count)


async def subscribe_again(plan: Plan, url: str) -> None:
    """Retrieves it `repeat` times over one session, each time verified into a file."""
    identity = identity_of(plan)
    target = plan.file.with_name("received.safetensors")
    octets, watch, started = 0, Watch(), time.monotonic()
    async with await Consumer.connect(
        url,
        tls=ClientTls(ca_file=plan.certificates / "ca.pem"),
        config=plan.config,
        backend=backend(plan.backend),
    ) as consumer:
        watch.start()
        for _ in range(plan.options["repeat"]):
            with KvFileSink(target, identity.descriptor, len(identity.block_keys)) as sink:
                retrieval = consumer.retrieve(identity, sink, PATIENT)
                async for _layer in retrieval:
                    pass
                report = await retrieval.finish()
                sink.finish(report.blocks)
            octets += report.octets
        memory = watch.stop()
    say(seconds=time.monotonic() - started, octets=octets, anonymous=memory)
