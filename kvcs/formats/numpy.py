"""Caches in memory: arrays or buffers, one for K and one for V of every layer, [tokens, heads, dim].

Elements are octets: bf16 may lie in uint16 arrays, or in any other type of two octets, and is never converted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcs.errors import Incomplete, UsageError
from kvcs.kvsp.descriptor import Descriptor
from kvcs.payload import Component

Array: TypeAlias = NDArray[Any] | bytes | bytearray | memoryview
"""One tensor: C-contiguous, little-endian."""

_STORAGE: Mapping[str, type[np.generic]] = {
    "bf16": np.uint16,
    "f16": np.float16,
    "f32": np.float32,
    "f8e4m3": np.uint8,
    "f8e5m2": np.uint8,
    "u8": np.uint8,
}


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds elements of a descriptor's `dtype`; numpy has none for bf16 and f8."""
    return np.dtype(_STORAGE[dtype]).newbyteorder("<")


def octets_of(array: Array) -> memoryview:
    """The octets of `array` without a copy; raises `UsageError` where they are not in order."""
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous:
            raise UsageError("array: expected C-contiguous [tokens, heads, dim]")
        if array.dtype.byteorder == ">":
            raise UsageError("array: expected little-endian elements")
        return array.reshape(-1).view(np.uint8).data
    view = memoryview(array)
    if not view.c_contiguous:
        raise UsageError("buffer: expected C-contiguous [tokens, heads, dim]")
    return view.cast("B")


def _tensors(
    descriptor: Descriptor, layers: range, k: Sequence[Array], v: Sequence[Array]
) -> tuple[int, dict[tuple[Component, int], memoryview]]:
    """Tokens of every tensor, and the octets of each."""
    views: dict[tuple[Component, int], memoryview] = {}
    tokens: set[int] = set()
    for component, arrays in ((Component.K, k), (Component.V, v)):
        if len(arrays) != len(layers):
            raise UsageError(
                f"arrays: expected {len(layers)} of {component.label}, got {len(arrays)}"
            )
        for layer, array in zip(layers, arrays, strict=True):
            view = octets_of(array)
            count, rest = divmod(len(view), descriptor.token_size(component))
            if rest:
                raise UsageError(
                    f"arrays: {component.label} of layer {layer} has {len(view)} octets, not a "
                    f"multiple of {descriptor.token_size(component)} for each token"
                )
            views[component, layer] = view
            tokens.add(count)
    if len(tokens) != 1:
        raise UsageError("arrays: the tensors differ in tokens")
    return tokens.pop(), views


class ArraySource:
    """The whole blocks of arrays in memory, as a `Source`. The arrays must not change while it is used."""

    def __init__(self, descriptor: Descriptor, k: Sequence[Array], v: Sequence[Array]) -> None:
        """Raises `UsageError` where shapes or number do not fit `descriptor`."""
        self.layers = descriptor.layers
        """Layers of the cache."""
        tokens, self._views = _tensors(descriptor, range(self.layers), k, v)
        self.tokens = tokens - tokens % descriptor.block_tokens
        """Tokens in whole blocks."""
        self._sizes = {part: descriptor.section_size(part) for part in (Component.K, Component.V)}

    def read_block(self, component: Component, layer: int, block: int) -> memoryview:
        """The section of K or V, in the caller's array."""
        size = self._sizes[component]
        return self._views[component, layer][block * size : (block + 1) * size].toreadonly()

    def read_into(self, component: Component, layer: int, block: int, target: memoryview) -> None:
        """The same, copied into `target`."""
        target[:] = self.read_block(component, layer, block)

    def check_unchanged(self) -> None:
        """Nothing: memory cannot be asked."""


class ArraySink:
    """Preallocated arrays as a `Sink`: sections are received where they belong.

    Attributes: `layers`, the range the arrays are for; `blocks`, how many whole blocks they have room for.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        k: Sequence[Array],
        v: Sequence[Array],
        *,
        layers: range | None = None,
    ) -> None:
        """`k` and `v` have one writable array for each of `layers` (all, unless given); raises `UsageError`."""
        self.layers = range(descriptor.layers) if layers is None else layers
        tokens, self._views = _tensors(descriptor, self.layers, k, v)
        if any(view.readonly for view in self._views.values()):
            raise UsageError("arrays: expected writable ones")
        self.blocks = tokens // descriptor.block_tokens
        self._sizes = {part: descriptor.section_size(part) for part in (Component.K, Component.V)}
        self._done: set[tuple[Component, int, int]] = set()

    def _place(self, component: Component, layer: int, block: int) -> memoryview:
        if layer not in self.layers or not 0 <= block < self.blocks:
            raise IndexError(f"layer {layer}, block {block} is not in the arrays")
        size = self._sizes[component]
        return self._views[component, layer][block * size : (block + 1) * size]

    def destination(self, component: Component, layer: int, block: int) -> memoryview | None:
        """The section's place; None for KV, whose halves lie apart, and for a place that is committed."""
        if component is Component.KV or (component, layer, block) in self._done:
            return None
        return self._place(component, layer, block)

    def commit(
        self, component: Component, layer: int, block: int, data: bytes | memoryview | None
    ) -> None:
        """Marks a section verified, after copying `data` to its place unless that is None."""
        if component is Component.KV:
            if data is None:
                raise ValueError("KV has no destination; give the data")
            view = memoryview(data).cast("B")
            middle = self._sizes[Component.K]
            self.commit(Component.K, layer, block, view[:middle])
            self.commit(Component.V, layer, block, view[middle:])
        elif (component, layer, block) not in self._done:
            place = self._place(component, layer, block)
            if data is not None:
                place[:] = data
            self._done.add((component, layer, block))

    def is_committed(self, layer: int, blocks: int) -> bool:
        """Whether K and V of the first `blocks` blocks of `layer` are all verified."""
        return all(
            (part, layer, block) in self._done
            for part in (Component.K, Component.V)
            for block in range(blocks)
        )

    def finish(self, blocks: int) -> None:
        """Raises `Incomplete` unless the first `blocks` blocks of every layer are verified."""
        lacking = [layer for layer in self.layers if not self.is_committed(layer, blocks)]
        if lacking:
            raise Incomplete(
                f"arrays: {len(lacking)} layers were not received in full, the first is {lacking[0]}"
            )

    def abort(self) -> None:
        """Nothing: the arrays are the caller's, who knows which layers were verified."""


def allocate(
    descriptor: Descriptor, tokens: int, layers: int | None = None
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Uninitialised arrays for K and V of every layer, [tokens, kv_heads, dim]."""
    dtype = storage_dtype(descriptor.dtype)
    count = descriptor.layers if layers is None else layers
    k_shape = (tokens, descriptor.kv_heads, descriptor.head_dim)
    v_shape = (tokens, descriptor.kv_heads, descriptor.v_head_dim)
    return (
        [np.empty(k_shape, dtype) for _ in range(count)],
        [np.empty(v_shape, dtype) for _ in range(count)],
    )
