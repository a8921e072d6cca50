"""kvcs.codecs: the registry."""

from __future__ import annotations

from kvcs.codecs import RAW, codec_name, codec_names, codec_value


def test_raw_is_the_only_codec() -> None:
    """O7: raw = 1; what is not known is not guessed."""
    assert codec_names() == ("raw",)
    assert (codec_value("raw"), codec_name(1), RAW) == (1, "raw", 1)
    assert codec_value("zstd") is None
    assert codec_name(0) is None
    assert codec_name(0xFF01) is None
