"""A prompt of 200 tokens in three passes, 72 + 72 + 56; each becomes a segment of whole blocks.

python examples/chunked_prefill.py descriptor.json certs
"""

import asyncio
import sys
from pathlib import Path

import numpy as np

from kvcs import ArraySink, Consumer, Identity, Prefill, Publisher, load_descriptor
from kvcs.formats.numpy import storage_dtype
from moqt import ClientTls, ServerTls


async def main(descriptor_file: Path, certs: Path) -> None:
    d = load_descriptor(descriptor_file)
    identity = Identity.derive(b"a key of 16 to 64 octets", d, range(200))
    shape = d.layers, 200, d.kv_heads, d.head_dim
    k = np.arange(np.prod(shape)).reshape(shape).astype(storage_dtype(d.dtype))
    tls = ServerTls(certificate=certs / "server.pem", private_key=certs / "server-key.pem")
    async with Publisher() as publisher:
        server = await publisher.listen("127.0.0.1", 0, tls=tls)
        prefill, first = Prefill(publisher, identity), 0
        for tokens in (72, 72, 56):
            step = prefill.begin_pass(tokens)
            for layer in range(d.layers):
                step.put_layer(layer, *[k[layer, first : first + tokens]] * 2)
            first += tokens
            print(f"{tokens} tokens:", step.segment.blocks if step.segment else 0, "blocks")
        left = prefill.end()
        copy = np.zeros_like(k[:, : 200 - left])
        ca = ClientTls(ca_file=certs / "ca.pem")
        async with await Consumer.connect(server.url, tls=ca) as consumer:
            await consumer.retrieve(identity, ArraySink(d, list(copy), list(copy))).finish()
        print("identical:", bool((copy == k[:, : 200 - left]).all()), f"without {left} tokens")


asyncio.run(main(*map(Path, sys.argv[1:])))
