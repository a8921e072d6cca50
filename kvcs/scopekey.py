"""The scope key, as its file gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvcs.errors import UsageError
from kvcs.reading import read_up_to, unreadable

_HEX = re.compile(rb"(?:[0-9A-Fa-f]{2}){16,64}")
_LONGEST = 130
"""128 hex digits and a line end."""


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """16 to 64 octets of key, and the form they were read from."""

    octets: bytes = field(repr=False)
    form: Literal["hex", "octets"]

    @classmethod
    def from_bytes(cls, data: bytes) -> ScopeKey:
        """Hex if `data`, less one line end, is 32 to 128 hex digits of even count, else its octets as they are."""
        text = data.removesuffix(b"\n").removesuffix(b"\r") if data.endswith(b"\n") else data
        if _HEX.fullmatch(text):
            return cls(bytes.fromhex(text.decode("ascii")), "hex")
        if not 16 <= len(data) <= 64:
            length = f"more than {_LONGEST}" if len(data) > _LONGEST else str(len(data))
            raise UsageError(
                f"scope key: expected 16 to 64 octets, or 32 to 128 hex digits of even count, got {length} octets"
            )
        return cls(data, "octets")


def load_scope_key(path: Path) -> ScopeKey:
    """The scope key in a file; raises `UsageError`."""
    try:
        data = read_up_to(path, _LONGEST + 1)
    except OSError as fault:
        raise unreadable("scope key", path, fault, "--scope-key or KVCS_SCOPE_KEY") from None
    return ScopeKey.from_bytes(data)
