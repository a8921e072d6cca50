"""`kvcs keygen`: a producer's keys, with which manifests are signed and signatures are checked."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvcs.cli import inputs
from kvcs.keyfiles import write_key_pair
from kvcs.producer_keys import Algorithm, generate

_ALGORITHMS = {algorithm.label: algorithm for algorithm in reversed(Algorithm)}


@click.command("keygen")
@click.option(
    "--output", type=inputs.PATH, required=True, metavar="FILE", help="Private key to write."
)
@click.option(
    "--alg",
    type=click.Choice(list(_ALGORITHMS), case_sensitive=False),
    default=Algorithm.EDDSA.label,
    show_default=True,
    help="Ed25519, or ECDSA on P-256.",
)
@inputs.json_option
def command(*, output: Path, alg: str, as_json: bool) -> int:
    """Make a producer's key pair: FILE signs (`publish --sign`), FILE.pub is for consumers.

    Both are PEM. The key identifier (kid) comes from the public key, so both sides find the same one.
    """
    with inputs.reporting(as_json=as_json):
        key = generate(_ALGORITHMS[alg])
        public = write_key_pair(output, key)
    facts = {
        "kid": key.key_id.hex(),
        "algorithm": key.algorithm.label,
        "private_key": str(output),
        "public_key": str(public),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return 0
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' '):12} {value}")
    click.echo(f"keep {output} to yourself; give {public} to those who --require-signature")
    return 0
