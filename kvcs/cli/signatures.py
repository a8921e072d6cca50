"""--sign and --require-signature: from key files to what signs and what checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from kvcs.cli.inputs import PATH
from kvcs.keyfiles import load_private_key, load_public_keys
from kvcs.signing import Signer, TrustedKeys

sign_option = click.option(
    "--sign",
    type=PATH,
    metavar="KEY",
    help="Sign the manifest with this private key: PEM, JWK or COSE_Key.",
)
require_signature_option = click.option(
    "--require-signature",
    type=PATH,
    multiple=True,
    metavar="KEYS",
    help="Use only what one of these producers' public keys has signed; may be repeated.",
)


def signer(key: Path | None) -> Signer | None:
    """What signs with the key in a file; raises UsageError."""
    return None if key is None else Signer(load_private_key(key))


def trusted_keys(files: Sequence[Path]) -> TrustedKeys | None:
    """What checks with the keys in files; None without any, raises UsageError."""
    return TrustedKeys(load_public_keys(files)) if files else None
