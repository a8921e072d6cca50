"""`kvcs sample`: a KV cache file of random numbers, the same for the same seed everywhere."""

from __future__ import annotations

from pathlib import Path

import click

from kvcs.formats.safetensors import MAX_TOKENS, write_kv_file
from kvcs.kvsp.descriptor import (
    ELEMENT_SIZES,
    MAX_BLOCK_TOKENS,
    MAX_DIMENSION,
    MAX_LAYERS,
)
from kvcs.payload import Component, size_advice
from kvcs.sample import sample_descriptor, sample_layers, sample_tokens


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
