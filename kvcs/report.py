"""What a retrieval came to, as people and `--json` see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kvcs.assembly import Gap
from kvcs.payload import DiscardReason


class Guarantee(Enum):
    """What digests alone do not give: who can replace data can replace its digest as well."""

    CONFIDENTIALITY = "confidentiality"
    """Relays cannot read the cache (X3)."""
    INTEGRITY = "integrity against relays"
    """Relays cannot put in other content (X5)."""
    AUTHENTICITY = "authenticity of the producer"
    """Other members of the scope cannot put in other content (M9)."""


def not_guaranteed(*, signed: bool, encrypted: bool = False) -> tuple[Guarantee, ...]:
    """What is left open where signatures, or encryption, or neither, are required."""
    given = {
        Guarantee.CONFIDENTIALITY: encrypted,
        Guarantee.INTEGRITY: signed or encrypted,
        Guarantee.AUTHENTICITY: signed,
    }
    return tuple(guarantee for guarantee, there in given.items() if not there)


@dataclass(kw_only=True)
class Report:
    """The end of a retrieval, or how far it is."""

    status: str = "incomplete"
    """complete, incomplete, not_found, unauthorised, conflict (of a signature, key or digest) or error."""
    publication: bytes | None = None
    source: str | None = None
    """URL of the peer that it came from."""
    layers: int = 0
    """Usable layers."""
    blocks: int = 0
    """Blocks of the prompt that were found and asked for."""
    octets: int = 0
    """Octets of verified Data."""
    objects: int = 0
    """Verified Objects."""
    discarded: int = 0
    """Objects that failed a check."""
    discarded_by_reason: dict[DiscardReason, int] = field(default_factory=dict)
    duplicates: int = 0
    recovered: int = 0
    """Objects that came only when they were asked for again."""
    seconds: float = 0.0
    first_layer_seconds: float | None = None
    missing: list[Gap] = field(default_factory=list)
    error: str | None = None
    not_guaranteed: tuple[Guarantee, ...] = ()
    """What nothing that was asked for protects; the digests are checked in any case (X5)."""

    def to_json(self) -> dict[str, object]:
        """The object that `kvcs subscribe --json` prints."""
        return {
            "status": self.status,
            "publication": self.publication.hex() if self.publication else None,
            "source": self.source,
            "layers": self.layers,
            "blocks": self.blocks,
            "bytes": self.octets,
            "objects": self.objects,
            "discarded": self.discarded,
            "recovered": self.recovered,
            "seconds": round(self.seconds, 6),
            "first_layer_seconds": None
            if self.first_layer_seconds is None
            else round(self.first_layer_seconds, 6),
            "missing": [gap.to_json() for gap in self.missing],
            "error": self.error,
            "not_guaranteed": [guarantee.value for guarantee in self.not_guaranteed],
        }


def unopened(discarded: Mapping[DiscardReason, int]) -> str:
    """How many Objects were refused for lack of protection or of the right key, and why; nothing if none."""
    said = {
        DiscardReason.UNPROTECTED: "were not encrypted",
        DiscardReason.KEY: "were encrypted with keys that the key ring lacks or has retired",
        DiscardReason.AUTHENTICATION: "did not open: altered on their way, or another key",
    }
    counts = [f"{discarded[r]} Objects {text}" for r, text in said.items() if discarded.get(r)]
    return "; ".join(counts)


def describe(gaps: list[Gap], most: int = 4) -> str:
    """Gaps in one line: track, layer and blocks, the first few spelt out."""
    shown = [
        f"{gap.track} layer {gap.layer} blocks "
        + ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in gap.blocks[:most])
        for gap in gaps[:most]
    ]
    more = len(gaps) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def describe_absent(report: Report) -> str:
    """What is not guaranteed, in a line that says what to do about it; empty where nothing is left open."""
    absent = report.not_guaranteed
    if not absent:
        return ""
    needed = ["--require-signature"] if Guarantee.AUTHENTICITY in absent else []
    needed += ["encryption"] if Guarantee.CONFIDENTIALITY in absent else []
    names = ", ".join(guarantee.value for guarantee in absent)
    return f"not guaranteed: {names}; that takes {' and '.join(needed)}"
