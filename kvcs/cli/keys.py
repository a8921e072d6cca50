"""`kvcs keys`: the identifiers of a prompt."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvcs.formats.tokens import load_descriptor, load_tokens
from kvcs.kvsp.identity import Identity, block_keys_digest
from kvcs.naming import content_prefix
from kvcs.scopekey import load_scope_key


@click.command("keys")
@click.option("--scope-key", type=Path, required=True, metavar="FILE", help="Key of the scope.")
@click.option(
    "--descriptor", type=Path, required=True, metavar="FILE", help="Compatibility Descriptor, JSON."
)
@click.option(
    "--tokens",
    type=Path,
    required=True,
    metavar="FILE",
    help="Token ids: a JSON array, a .npy file, or a KV cache file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(scope_key: Path, descriptor: Path, tokens: Path, as_json: bool) -> None:
    """Show Scope ID, Compatibility ID and Block Keys of a prompt."""
    key = load_scope_key(scope_key)
    identity = Identity.derive(key.octets, load_descriptor(descriptor), load_tokens(tokens))
    form = f"scope key read as {key.form}"
    shown = keys_json(identity)
    if as_json:
        click.echo(form, err=True)
        click.echo(json.dumps(shown))
        return
    click.echo(f"{form} ({len(key.octets)} octets)")
    for name in ("scope_id", "compatibility_id", "anchor_key", "block_keys_sha256"):
        click.echo(f"{name:18} {shown[name]}")
    for index, block_key in enumerate(identity.block_keys):
        click.echo(f"block {index:<12} {block_key.hex()}")


def keys_json(identity: Identity) -> dict[str, str | list[str]]:
    """What `--json` prints, in lower-case hex."""
    keys = identity.block_keys
    prefix = content_prefix(identity.scope_id, identity.compat_id, keys[-1])
    return {
        "scope_id": identity.scope_id.hex(),
        "compatibility_id": identity.compat_id.hex(),
        "anchor_key": keys[-1].hex(),
        "block_keys": [block_key.hex() for block_key in keys],
        "block_keys_sha256": block_keys_digest(keys).hex(),
        "namespace_prefix": [field.hex() for field in prefix],
    }
