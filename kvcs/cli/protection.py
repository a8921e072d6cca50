"""--encrypt and --decrypt: from key ring files to what protects and opens, also when the file changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from kvcs.cli.inputs import PATH
from kvcs.cli.text import one_line
from kvcs.errors import UsageError
from kvcs.key_ring import KeyRing
from kvcs.scopekey import load_scope_key

encrypt_option = click.option(
    "--encrypt",
    type=PATH,
    metavar="KEYRING",
    help="Encrypt everything with the current key of this key ring; SIGHUP reads it again.",
)
decrypt_option = click.option(
    "--decrypt",
    type=PATH,
    metavar="KEYRING",
    help="Use only what is encrypted with a key of this key ring; SIGHUP reads it again.",
)


def key_ring(path: Path | None, scope_key: Path) -> KeyRing | None:
    """The key ring in a file; None without one. Raises UsageError, now and when it is read again, also where a key is
    the scope key.
    """
    if path is None:
        return None
    return KeyRing.load(path, apart_from=load_scope_key(scope_key).octets)


def rereading(ring: KeyRing | None, note: Callable[[str], None]) -> Callable[[], None] | None:
    """What SIGHUP does where there is a key ring: reads it again, or says why its keys stay as they were."""
    if ring is None:
        return None

    def reread() -> None:
        kept = "; its keys stay as they were"
        try:
            ring.reload()
            kept = ""
            note(f"key ring read again; {describe(ring)}")
        except UsageError as fault:
            note(one_line(f"{fault}{kept}; SIGHUP again once that is put right"))

    return reread


def describe(ring: KeyRing) -> str:
    """The current key by its Key ID, and how many there are. Raises UsageError where there is none."""
    return f"current key {ring.current.key_id:x} of {len(ring.keys)}"
