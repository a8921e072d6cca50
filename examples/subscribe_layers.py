"""Uses each layer of a KV cache as soon as it is verified, while later ones are still under way.

python examples/subscribe_layers.py moqt://127.0.0.1:4443 certs/ca.pem scope.key descriptor.json tokens.json
"""

import asyncio
import sys
from pathlib import Path

import numpy as np

from kvcs import ArraySink, Consumer, Identity, load_descriptor, load_scope_key, load_tokens
from kvcs.formats.numpy import storage_dtype
from moqt import ClientTls


async def main(url: str, ca: str, key: str, descriptor_file: str, tokens_file: str) -> None:
    descriptor = load_descriptor(Path(descriptor_file))
    tokens = load_tokens(Path(tokens_file))
    identity = Identity.derive(load_scope_key(Path(key)).octets, descriptor, tokens)
    shape = (
        len(identity.block_keys) * descriptor.block_tokens,
        descriptor.kv_heads,
        descriptor.head_dim,
    )
    dtype = storage_dtype(descriptor.dtype)
    k = [np.empty(shape, dtype) for _ in range(descriptor.layers)]
    v = [np.empty(shape, dtype) for _ in range(descriptor.layers)]
    async with await Consumer.connect(url, tls=ClientTls(ca_file=Path(ca))) as consumer:
        retrieval = consumer.retrieve(identity, ArraySink(descriptor, k, v))
        async for layer in retrieval:  # in order; k[layer] and v[layer] are whole and verified
            print(f"layer {layer}: {k[layer].flat[0]} {v[layer].flat[-1]}", flush=True)
        report = await retrieval.finish()  # raises if anything is missing
        print(report.status, report.objects)


asyncio.run(main(*sys.argv[1:]))
