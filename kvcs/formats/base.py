"""The two ends of a transfer: a Source gives sections of a cache, a Sink takes them.

A section is one block of one layer of K or V: [token][kv head][dim], little-endian, without padding (O5).
"""

from __future__ import annotations

from typing import Protocol

from kvcs.payload import Component


class Source(Protocol):
    """Gives the sections of a cache. Layers count from 0, blocks from the start of the context."""

    @property
    def layers(self) -> int:
        """Layers of the cache."""

    @property
    def tokens(self) -> int:
        """Tokens in whole blocks."""

    def read_block(self, component: Component, layer: int, block: int) -> bytes | memoryview:
        """The section of K or V; raises `SourceChanged`."""

    def read_into(self, component: Component, layer: int, block: int, target: memoryview) -> None:
        """The same, into `target`, which has exactly its size."""

    def check_unchanged(self) -> None:
        """Raises `SourceChanged` if what was given may not be what would be given now."""


class Sink(Protocol):
    """Takes verified sections. A place is written until it is committed and never after."""

    def destination(self, component: Component, layer: int, block: int) -> memoryview | None:
        """The place of a section, writable, to receive into; None where there is none or it is committed."""

    def commit(
        self, component: Component, layer: int, block: int, data: bytes | memoryview | None
    ) -> None:
        """Takes a verified section; `data` is None when it lies in its destination already, else it is valid
        during the call only.

        A KV component carries the K section and the V section after it. A second commit changes nothing.
        """

    def finish(self, blocks: int) -> None:
        """Ends with the first `blocks` blocks; raises `Incomplete` if one of their sections was not committed."""

    def abort(self) -> None:
        """Ends with nothing left behind. After `finish` it does nothing."""
