"""Octets to start from: the vectors of the tests."""

from __future__ import annotations

from tests.moqt.wire.support import ALL, of_kind

__all__ = ["VECTORS", "of_kind"]

VECTORS: list[bytes] = [vector.octets for vector in ALL]
