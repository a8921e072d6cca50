"""Hypothesis for the wire: the same examples in every run."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("wire", settings.get_profile("tests"), derandomize=True)
settings.load_profile("wire")
