"""Publishes a KV cache while it is computed: each layer from two numpy arrays. `make certs` makes the certificates.

python examples/publish_numpy.py scope.key descriptor.json tokens.json certs
"""

import asyncio
import sys
from pathlib import Path

import numpy as np

from kvcs import Identity, Publisher, load_descriptor, load_scope_key, load_tokens
from kvcs.formats.numpy import storage_dtype
from moqt import ServerTls


async def main(scope_key: Path, descriptor_file: Path, tokens_file: Path, certs: Path) -> None:
    d, tokens = load_descriptor(descriptor_file), load_tokens(tokens_file)
    identity = Identity.derive(load_scope_key(scope_key).octets, d, tokens)
    shape = len(identity.block_keys) * d.block_tokens, d.kv_heads, d.head_dim
    tls = ServerTls(certificate=certs / "server.pem", private_key=certs / "server-key.pem")
    async with Publisher() as publisher:
        server = await publisher.listen("127.0.0.1", 0, tls=tls)
        publication = publisher.publish(identity)
        print(server.url, flush=True)
        for layer in range(d.layers):
            await asyncio.sleep(0.1)  # the model is at work
            k = np.full(shape, layer, storage_dtype(d.dtype))
            publication.segments[0].put_layer(layer, k, k)  # copied: the arrays are free again
        publication.end()
        await asyncio.Event().wait()


try:
    asyncio.run(main(*map(Path, sys.argv[1:])))
except KeyboardInterrupt:
    pass
