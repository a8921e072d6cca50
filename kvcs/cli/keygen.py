"""`kvcs keygen`: a producer's keys, which sign manifests, and key rings of a scope, which encrypt publications."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import click

from kvcs.access.keys import generate_shared, write_shared
from kvcs.cli import inputs
from kvcs.errors import UsageError
from kvcs.key_ring import KeyRing, RingKey, load_keys, write_keys
from kvcs.keyfiles import write_key_pair
from kvcs.producer_keys import Algorithm, generate
from kvcs.secure_objects import Suite

_ALGORITHMS = {algorithm.label: algorithm for algorithm in reversed(Algorithm)}
_SHARED = "HS256"


@click.command("keygen")
@click.option("--output", type=inputs.PATH, metavar="FILE", help="Private key to write.")
@click.option(
    "--alg",
    type=click.Choice([*_ALGORITHMS, _SHARED], case_sensitive=False),
    default=Algorithm.EDDSA.label,
    show_default=True,
    help="Ed25519, or ECDSA on P-256; HS256 for tokens, with one key for issuer and relay.",
)
@click.option(
    "--ring", type=inputs.PATH, metavar="FILE", help="Key ring to make, or to add a key to."
)
@click.option(
    "--suite",
    type=click.Choice(list(Suite.__members__), case_sensitive=False),
    default=Suite.AES_128_GCM_SHA256_128.name,
    show_default=True,
    help="What the key of the ring is for.",
)
@click.option(
    "--after",
    type=inputs.seconds,
    metavar="S",
    help="Use the ring's new key in S seconds only; give everybody the ring meanwhile.",
)
@click.option(
    "--retire",
    type=inputs.seconds,
    metavar="S",
    help="Refuse the ring's older keys in S seconds.",
)
@inputs.json_option
def command(
    *,
    output: Path | None,
    alg: str,
    ring: Path | None,
    suite: str,
    after: float | None,
    retire: float | None,
    as_json: bool,
) -> int:
    """Make keys: a producer's pair (--output), or a key ring that a scope's members share (--ring).

    With --output, FILE signs (`publish --sign`) and FILE.pub is for consumers, both PEM. With --ring, FILE gets a new
    key (`publish --encrypt`, `subscribe --decrypt`); it is for members of the scope only.

    The same pairs seal authorisation tokens; with HS256 FILE is one JWK, for those who make and check them.
    """
    with inputs.reporting(as_json=as_json):
        if (output is None) is (ring is None):
            raise UsageError("say what to make: --output FILE for a key pair, or --ring FILE")
        if output is not None:
            pair = _ALGORITHMS.get(alg)
            facts, advice = _shared(output) if pair is None else _pair(output, pair)
        else:
            assert ring is not None
            facts, advice = _ring(ring, Suite[suite], after, retire)
    if as_json:
        click.echo(json.dumps(facts))
        return 0
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' '):12} {value}")
    click.echo(advice)
    return 0


def _pair(output: Path, algorithm: Algorithm) -> tuple[dict[str, object], str]:
    key = generate(algorithm)
    public = write_key_pair(output, key)
    facts: dict[str, object] = {
        "kid": key.key_id.hex(),
        "algorithm": key.algorithm.label,
        "private_key": str(output),
        "public_key": str(public),
    }
    return facts, f"keep {output} to yourself; give {public} to those who --require-signature"


def _shared(output: Path) -> tuple[dict[str, object], str]:
    key = generate_shared()
    write_shared(output, key)
    kid = key.key_id.decode("ascii")
    facts: dict[str, object] = {"kid": kid, "algorithm": _SHARED, "shared_key": str(output)}
    return facts, f"{output} makes tokens and checks them: for the issuer and its relays only"


def _ring(
    path: Path, suite: Suite, after: float | None, retire: float | None
) -> tuple[dict[str, object], str]:
    """Adds a key. Retired keys are kept: who has a publication that they protect shall be told so."""
    now = int(time.time())
    older = load_keys(path) if path.exists() else []
    if retire is not None:
        end = now + int(retire)
        older = [replace(key, retire_after=min(end, key.retire_after or end)) for key in older]
    first = not older and after is None  # usable wherever clocks differ
    key = RingKey.generate(suite, not_before=None if first else now + int(after or 0))
    keys = KeyRing([*older, key]).keys
    write_keys(path, keys)
    facts: dict[str, object] = {
        "kid": f"{key.key_id:x}",
        "suite": suite.name,
        "key_ring": str(path),
        "keys": len(keys),
    }
    return (
        facts,
        f"give {path} to members of the scope only, each of whom can read and publish with it",
    )
