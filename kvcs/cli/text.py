"""Text that came from files, flags or peers, made fit for a terminal."""

from __future__ import annotations


def one_line(text: str) -> str:
    """`text` with its white space joined and what cannot be printed escaped."""
    joined = " ".join(text.split())
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in joined)
