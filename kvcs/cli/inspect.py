"""`kvcs inspect`: what a KV cache file holds."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvcs.cli.text import one_line
from kvcs.formats.safetensors import TOKEN_IDS, KvFile
from kvcs.payload import Component, size_advice


@click.command("inspect")
@click.argument("file", type=Path)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(file: Path, as_json: bool) -> None:
    """Show what a KV cache FILE (kvcs-kv/1) holds."""
    with KvFile(file) as cache:
        facts = describe(cache)
        sections = {
            part.label: cache.block_tokens * cache.token_size(part)
            for part in (Component.K, Component.V)
        }
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        click.echo(f"{name:16} {one_line(text)}")
    for label, octets in sections.items():
        advice = size_advice(octets)
        click.echo(f"{label + ' objects':16} {octets} octets" + (f"; {advice}" if advice else ""))


def describe(cache: KvFile) -> dict[str, object]:
    """The facts in the order they are shown."""
    left = cache.tokens % cache.block_tokens
    return {
        "format": cache.metadata["format"],
        "model": cache.model,
        "layers": f"{cache.layers[0]}-{cache.layers[-1]}",
        "part": cache.is_part,
        "tokens": cache.tokens,
        "block_tokens": cache.block_tokens,
        "blocks": cache.blocks,
        "tokens_left_out": left,
        "kv_heads": cache.kv_heads,
        "head_dim": cache.head_dim,
        "v_head_dim": cache.v_head_dim,
        "dtype": cache.dtype,
        "octets": sum(info.end - info.begin for info in cache.tensors.values()),
        "token_ids": TOKEN_IDS in cache.tensors,
        "descriptor": None if cache.descriptor is None else dict(cache.descriptor.json),
    }
