"""`kvcs sample`: a KV cache file of random numbers, the same for the same seed everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from kvcs.formats.safetensors import MAX_TOKENS, write_kv_file
from kvcs.kvsp.descriptor import (
    ELEMENT_SIZES,
    MAX_BLOCK_TOKENS,
    MAX_DIMENSION,
    MAX_LAYERS,
    Descriptor,
)
from kvcs.kvsp.identity import PROFILE
from kvcs.payload import Component, size_advice

_VOCABULARY = 32_000
_TOKEN_STREAM = 1 << 20
"""Which random stream makes the token ids; those below make layers."""


@click.command("sample")
@click.option("--layers", type=click.IntRange(1, MAX_LAYERS), default=4, show_default=True)
@click.option("--kv-heads", type=click.IntRange(1, MAX_DIMENSION), default=8, show_default=True)
@click.option("--head-dim", type=click.IntRange(1, MAX_DIMENSION), default=128, show_default=True)
@click.option("--tokens", type=click.IntRange(1, MAX_TOKENS), default=64, show_default=True)
@click.option("--dtype", type=click.Choice(list(ELEMENT_SIZES)), default="bf16", show_default=True)
@click.option(
    "--block-tokens", type=click.IntRange(1, MAX_BLOCK_TOKENS), default=16, show_default=True
)
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, show_default=True)
@click.option("--output", type=Path, required=True, metavar="FILE", help="File to write.")
def command(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    tokens: int,
    dtype: str,
    block_tokens: int,
    seed: int,
    output: Path,
) -> None:
    """Write a KV cache file (kvcs-kv/1) of random numbers, with token ids and a descriptor."""
    descriptor = sample_descriptor(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        block_tokens=block_tokens,
        seed=seed,
    )
    token_ids = sample_tokens(tokens, seed)
    write_kv_file(
        output,
        descriptor,
        tokens,
        sample_layers(descriptor, tokens, seed),
        token_ids=token_ids,
        model="kvcs-sample",
    )
    advice = size_advice(descriptor.section_size(Component.K))
    if advice:
        click.echo(f"warning: {advice}", err=True)


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
