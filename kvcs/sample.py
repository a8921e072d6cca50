"""Caches of random numbers, the same for the same seed everywhere: for tests, benchmarks and trying things out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import PROFILE
from kvcs.payload import Component

_VOCABULARY = 32_000
_TOKEN_STREAM = 1 << 20
"""Which random stream makes the token ids; those below make layers."""


def sample_descriptor(
    *, layers: int, kv_heads: int, head_dim: int, dtype: str, block_tokens: int, seed: int
) -> Descriptor:
    """The descriptor of a sample; the seed stands for the weights."""
    digest = hashlib.sha256(f"kvcs-sample {seed}".encode("ascii")).hexdigest()
    return Descriptor.from_json(
        {
            "profile": PROFILE.name,
            "model": "kvcs-sample",
            "revision": f"sha256:{digest}",
            "tokenizer": f"sha256:{digest}",
            "layers": layers,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "dtype": dtype,
            "block_tokens": block_tokens,
            "layout": "thd",
        }
    )


def sample_tokens(tokens: int, seed: int) -> list[int]:
    """Token ids below the vocabulary's size."""
    ids: list[int] = (_words(seed, _TOKEN_STREAM, tokens) % np.uint64(_VOCABULARY)).tolist()
    return ids


def sample_layers(
    descriptor: Descriptor, tokens: int, seed: int
) -> Iterator[tuple[memoryview, memoryview]]:
    """K and V of each layer. Every bit pattern occurs: NaNs, infinities and subnormals are meant."""
    for layer in range(descriptor.layers):
        yield (
            _octets(seed, 2 * layer, tokens * descriptor.token_size(Component.K)),
            _octets(seed, 2 * layer + 1, tokens * descriptor.token_size(Component.V)),
        )


def _words(seed: int, stream: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    # Bit generators are stable between versions of numpy; the distributions above them are not.
    return np.random.PCG64([seed, stream]).random_raw(count).astype("<u8", copy=False)


def _octets(seed: int, stream: int, length: int) -> memoryview:
    return _words(seed, stream, -(-length // 8)).view(np.uint8)[:length].data
