"""The "KVSP Codecs" registry: names in Track Names, 16-bit values in payload headers (O7)."""

from __future__ import annotations

from types import MappingProxyType

RAW = 1

_VALUES = MappingProxyType({"raw": RAW})


def codec_value(name: str) -> int | None:
    """The value registered for `name`; None where this side does not know the codec."""
    return _VALUES.get(name)


def codec_names() -> tuple[str, ...]:
    """The codecs that this side encodes and decodes, best known first."""
    return tuple(_VALUES)
