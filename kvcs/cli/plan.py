"""What --dry-run shows: names, sizes, and an estimate of what goes over the wire."""

from __future__ import annotations

import json

import click

from kvcs.cli.inputs import Prompt
from kvcs.naming import MANIFEST, MANIFEST_COSE, DataTrack, content_prefix
from kvcs.payload import HEADER_SIZE, Component
from kvcs.progress import megabytes
from kvcs.sealing import sealed_length

WIRE_FACTOR = 1.08
"""Octets on the wire for one of payload: IP, UDP, QUIC and MOQT around it at datagrams of 1200."""
LINKS = {"100 Mbit/s": 100e6, "1 Gbit/s": 1e9, "10 Gbit/s": 10e9}


def plan(
    prompt: Prompt,
    blocks: int,
    layers: int,
    *,
    components: str = "k+v",
    live_rate: float | None = None,
    signed: bool = False,
    encrypted: bool = False,
) -> dict[str, object]:
    """The facts in the order they are shown. Sizes are octets, times seconds."""
    identity, descriptor = prompt.identity, prompt.descriptor
    anchor = identity.anchor(blocks)
    prefix = content_prefix(identity.scope_id, identity.compat_id, anchor)
    parts = (Component.KV,) if components == "kv" else (Component.K, Component.V)
    tracks = [MANIFEST_COSE if signed else MANIFEST]
    tracks += [DataTrack(part, "raw", 0).name for part in parts]
    sizes = {part.label: HEADER_SIZE + descriptor.section_size(part) for part in parts}
    if encrypted:
        sizes = {label: sealed_length(size) for label, size in sizes.items()}
    octets = layers * blocks * sum(sizes.values())
    wire = int(octets * WIRE_FACTOR)
    times = {link: round(wire * 8 / speed, 4) for link, speed in LINKS.items()}
    if live_rate is not None:
        times["production"] = round(layers / live_rate, 4)
    return {
        "scope_id": identity.scope_id.hex(),
        "compatibility_id": identity.compat_id.hex(),
        "anchor_key": anchor.hex(),
        "namespace_prefix": [field.hex() for field in prefix],
        "tracks": [name.decode("ascii") for name in tracks],
        "layers": layers,
        "blocks": blocks,
        "block_tokens": descriptor.block_tokens,
        "objects": layers * blocks * len(parts),
        "object_bytes": sizes,
        "bytes": octets,
        "estimated_wire_bytes": wire,
        "estimated_seconds": times,
    }


def show(facts: dict[str, object], *, as_json: bool) -> None:
    """Prints a plan on stdout."""
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        match value:
            case list():
                text = " ".join(str(item) for item in value)
            case dict():
                text = ", ".join(f"{key}: {item}" for key, item in value.items())
            case int() if name.endswith("bytes"):
                text = f"{value} ({megabytes(value)})"
            case _:
                text = str(value)
        click.echo(f"{name.replace('_', ' '):22} {text}")
