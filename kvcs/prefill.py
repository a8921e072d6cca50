"""Chunked prefill: passes of any number of tokens become segments of whole blocks (G3).

A pass need not end at a block's end: the segment of a pass is the blocks that it completes, and the tokens after them
wait for the next pass. Tokens after the last whole block are never published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.errors import UsageError
from kvcs.kvsp.identity import Identity
from kvcs.payload import Component
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.segment import Segment, flat

if TYPE_CHECKING:
    from kvcs.key_ring import KeyRing
    from kvcs.signing import Signer


class Prefill:
    """A prefill in passes. The publication exists from the first pass on that completes a block."""

    def __init__(
        self,
        publisher: Publisher,
        identity: Identity,
        *,
        components: str = "k+v",
        max_cache_duration: float | None = None,
        deterministic: bool = False,
        signer: Signer | None = None,
        key_ring: KeyRing | None = None,
    ) -> None:
        self.identity = identity
        self.publication: Publication | None = None
        self._publisher = publisher
        self._components = components
        self._retention = max_cache_duration
        self._deterministic = deterministic
        self._signer = signer
        self._key_ring = key_ring
        self._tokens = 0
        self._tails: dict[tuple[int, Component], bytes] = {}
        self._open: Pass | None = None

    def begin_pass(self, tokens: int) -> Pass:
        """The next pass, over `tokens` tokens. The pass before it must have had all its layers."""
        if self._open is not None and not self._open.complete:
            raise UsageError("the pass before this one lacks layers")
        if tokens < 1:
            raise UsageError(f"a pass has at least one token, got {tokens}")
        block_tokens = self.identity.descriptor.block_tokens
        blocks = (self._tokens + tokens) // block_tokens - self._tokens // block_tokens
        segment: Segment | None = None
        if blocks and self.publication is None:
            self.publication = self._publisher.publish(
                self.identity,
                blocks,
                components=self._components,
                max_cache_duration=self._retention,
                deterministic=self._deterministic,
                signer=self._signer,
                key_ring=self._key_ring,
            )
            segment = self.publication.segments[0]
        elif blocks and self.publication is not None:
            segment = self.publication.append(blocks)
        self._tokens += tokens
        self._open = Pass(self.identity, tokens, segment, self._tails)
        return self._open

    def end(self) -> int:
        """No pass follows. Returns the tokens that were left over."""
        if self.publication is not None:
            self.publication.end()
        return self._tokens % self.identity.descriptor.block_tokens


class Pass:
    """One pass through all layers."""

    def __init__(
        self,
        identity: Identity,
        tokens: int,
        segment: Segment | None,
        tails: dict[tuple[int, Component], bytes],
    ) -> None:
        self.segment = segment
        """None when the pass completes no block."""
        self._descriptor = identity.descriptor
        self._tokens = tokens
        self._tails = tails
        self._next = 0

    @property
    def complete(self) -> bool:
        """Whether every layer was put."""
        return self._next == self._descriptor.layers

    def put_layer(self, layer: int, k: object, v: object) -> None:
        """Takes a layer: K and V of this pass's tokens, [tokens][kv head][dim]. They are copied."""
        if layer != self._next or self.complete:
            raise UsageError(f"layer {layer}: expected layer {self._next}; layers come in order")
        whole: dict[Component, memoryview] = {}
        tails: dict[Component, bytes] = {}
        for component, tensor in ((Component.K, k), (Component.V, v)):
            octets = flat(tensor, component.label)
            expected = self._tokens * self._descriptor.token_size(component)
            if len(octets) != expected:
                raise UsageError(
                    f"layer {layer}, {component.label}: expected {expected} octets "
                    f"({self._tokens} tokens), got {len(octets)}"
                )
            tail = self._tails.get((layer, component), b"")
            joined = memoryview(tail + octets) if tail else octets
            section = self._descriptor.section_size(component)
            cut = self.segment.blocks * section if self.segment is not None else 0
            whole[component], tails[component] = joined[:cut], bytes(joined[cut:])
        if self.segment is not None:
            self.segment.put_layer(layer, whole[Component.K], whole[Component.V])
        for component, tail in tails.items():
            self._tails[layer, component] = tail
        self._next += 1
