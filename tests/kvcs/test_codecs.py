"""kvcs.codecs: the registry."""

from __future__ import annotations

from kvcs.codecs import RAW, codec_names, codec_value


def test_raw_is_the_only_codec() -> None:
    """O7: raw = 1; what is not known is not guessed."""
    assert codec_names() == ("raw",)
    assert codec_value("raw") == RAW == 1
    assert codec_value("zstd") is None
