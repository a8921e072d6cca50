"""Writing kvcs-kv/1 files: the sink of a retrieval, and a writer for caches at hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from kvcs.errors import Incomplete, UsageError
from kvcs.formats.aside import AsideFile, Buffer
from kvcs.formats.kvfile import FORMAT, LAYOUT, TOKEN_IDS, tensor_name
from kvcs.formats.safetensors_header import DTYPE_NAMES, TensorInfo, encode_header
from kvcs.kvsp.descriptor import Descriptor
from kvcs.payload import Component

_PARTS = (Component.K, Component.V)


class _Layout:
    """Where everything lies in a file of `layers` with `tokens` tokens."""

    def __init__(
        self, descriptor: Descriptor, layers: range, tokens: int, *, with_ids: bool
    ) -> None:
        self.token_sizes = {part: descriptor.token_size(part) for part in _PARTS}
        self.tensors: dict[str, TensorInfo] = {}
        self._begins: dict[Component, dict[int, int]] = {part: {} for part in _PARTS}
        dims = {Component.K: descriptor.head_dim, Component.V: descriptor.v_head_dim}
        dtype = DTYPE_NAMES[descriptor.dtype]
        # The widest elements come first, then names ascend: so every tensor stays aligned.
        self.end = 8 * tokens if with_ids else 0
        if with_ids:
            self.tensors[TOKEN_IDS] = TensorInfo("I64", (tokens,), 0, self.end)
        for layer in layers:
            for part in _PARTS:
                begin, self.end = self.end, self.end + tokens * self.token_sizes[part]
                shape = (tokens, descriptor.kv_heads, dims[part])
                name = tensor_name(part, layer)
                self.tensors[name] = TensorInfo(dtype, shape, begin, self.end)
                self._begins[part][layer] = begin

    def begin(self, component: Component, layer: int) -> int:
        """First octet of a tensor, counted from the first tensor."""
        return self._begins[component][layer]


def _metadata(descriptor: Descriptor, model: str | None) -> dict[str, str]:
    metadata = {
        "format": FORMAT,
        "layout": LAYOUT,
        "dtype": descriptor.dtype,
        "block_tokens": str(descriptor.block_tokens),
        "descriptor": descriptor.canonical().decode("utf-8"),
        "first_token": "0",
    }
    if model is not None:
        metadata["model"] = model
    return metadata


def _check_layout(descriptor: Descriptor) -> None:
    if descriptor.layout != LAYOUT:
        raise UsageError(f"descriptor: a {FORMAT} file has layout {LAYOUT!r}, not another")


class KvFileSink:
    """A kvcs-kv/1 file as a `Sink`: written aside, and at its place only when `finish` finds it whole."""

    def __init__(
        self,
        path: Path | str,
        descriptor: Descriptor,
        blocks: int,
        *,
        layers: range | None = None,
        token_ids: Sequence[int] | None = None,
        model: str | None = None,
        whole_blocks: int | None = None,
    ) -> None:
        """Room for `blocks` blocks of `layers` (all, unless given).

        `token_ids` are those of the blocks or more. `whole_blocks` is what the prefix has in all: with
        fewer in the file its metadata say that it holds a part. Raises `UsageError`.
        """
        _check_layout(descriptor)
        self.layers = range(descriptor.layers) if layers is None else layers
        if not self.layers or self.layers.start < 0 or self.layers.stop > descriptor.layers:
            raise UsageError(f"layers: expected a part of 0-{descriptor.layers - 1}")
        if blocks < 1:
            raise UsageError("output: a file holds at least one block")
        self.blocks = blocks
        self._descriptor = descriptor
        self._model = model
        self._whole_blocks = blocks if whole_blocks is None else whole_blocks
        self._ids = None if token_ids is None else list(token_ids)
        self._sections = {part: descriptor.section_size(part) for part in _PARTS}
        self._layout = self._layout_of(blocks)
        # Fewer blocks or a part have a header that is at most as long as this one.
        longest = {"layers": "0000-0000", "blocks": f"0-{blocks}"}
        self._data_start = len(
            encode_header(self._layout.tensors, _metadata(descriptor, model) | longest)
        )
        self._done = bytearray(2 * len(self.layers) * blocks)
        self._file = AsideFile(Path(path), self._data_start + self._layout.end)

    def _layout_of(self, blocks: int) -> _Layout:
        tokens = blocks * self._descriptor.block_tokens
        return _Layout(self._descriptor, self.layers, tokens, with_ids=self._ids is not None)

    def _index(self, component: Component, layer: int, block: int) -> int:
        if layer not in self.layers or not 0 <= block < self.blocks:
            raise IndexError(f"layer {layer}, block {block} is not in the file")
        return ((layer - self.layers.start) * 2 + component - 1) * self.blocks + block

    def destination(self, component: Component, layer: int, block: int) -> memoryview | None:
        """None: a file has no place in memory."""
        return None

    def commit(self, component: Component, layer: int, block: int, data: Buffer | None) -> None:
        """Writes a verified section; a KV component carries K, then V. A second commit changes nothing."""
        if data is None:
            raise ValueError("a file has no destination; give the data")
        if component is Component.KV:
            view = memoryview(data).cast("B")
            middle = self._sections[Component.K]
            self.commit(Component.K, layer, block, view[:middle])
            self.commit(Component.V, layer, block, view[middle:])
            return
        size = self._sections[component]
        if len(data) != size:
            raise ValueError(f"a section has {size} octets, not {len(data)}")
        index = self._index(component, layer, block)
        if not self._done[index]:
            begin = self._data_start + self._layout.begin(component, layer)
            self._file.write(data, begin + block * size)
            self._done[index] = 1

    def missing(self, blocks: int) -> int:
        """Sections of the first `blocks` blocks that were not committed."""
        rows = range(0, len(self._done), self.blocks)
        return sum(self._done[row : row + blocks].count(0) for row in rows)

    def finish(self, blocks: int) -> None:
        """Gives the file its name, with the first `blocks` blocks; raises `Incomplete` if sections lack."""
        if not 1 <= blocks <= self.blocks:
            raise Incomplete(f"output: expected 1 to {self.blocks} blocks to keep, got {blocks}")
        missing = self.missing(blocks)
        if missing:
            raise Incomplete(f"output: {missing} sections were not received; nothing is kept")
        layout = self._layout_of(blocks)
        if blocks < self.blocks:
            self._compact(layout)
        if self._ids is not None:
            tokens = blocks * self._descriptor.block_tokens
            if len(self._ids) < tokens:
                raise UsageError(f"tokens: {len(self._ids)} given, {tokens} needed")
            self._file.write(struct.pack(f"<{tokens}q", *self._ids[:tokens]), self._data_start)
        header = encode_header(layout.tensors, self._metadata(blocks), self._data_start)
        self._file.write(header, 0)
        self._file.keep(self._data_start + layout.end)

    def _metadata(self, blocks: int) -> dict[str, str]:
        metadata = _metadata(self._descriptor, self._model)
        if len(self.layers) < self._descriptor.layers:
            metadata["layers"] = f"{self.layers[0]}-{self.layers[-1]}"
        if blocks < max(self.blocks, self._whole_blocks):
            metadata["blocks"] = f"0-{blocks - 1}"
        return metadata

    def _compact(self, layout: _Layout) -> None:
        """Moves the tensors together, in ascending order: none lands on one that has not moved yet."""
        for layer in self.layers:
            for part in _PARTS:
                info = layout.tensors[tensor_name(part, layer)]
                self._file.move_down(
                    self._data_start + self._layout.begin(part, layer),
                    self._data_start + info.begin,
                    info.end - info.begin,
                )

    def abort(self) -> None:
        """Removes what was written; after `finish` it does nothing."""
        self._file.discard()

    def __enter__(self) -> KvFileSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


def write_kv_file(
    path: Path | str,
    descriptor: Descriptor,
    tokens: int,
    layers: Iterable[tuple[Buffer, Buffer]],
    *,
    token_ids: Sequence[int] | None = None,
    model: str | None = None,
) -> None:
    """Writes a whole cache: `layers` yields K and V of each layer, [tokens][kv head][dim].

    One layer is in memory at a time. The tokens need not fill the last block. Raises `UsageError`.
    """
    _check_layout(descriptor)
    if token_ids is not None and len(token_ids) != tokens:
        raise UsageError(f"tokens: expected {tokens}, got {len(token_ids)}")
    numbers = range(descriptor.layers)
    layout = _Layout(descriptor, numbers, tokens, with_ids=token_ids is not None)
    header = encode_header(layout.tensors, _metadata(descriptor, model))
    file = AsideFile(Path(path), len(header) + layout.end)
    try:
        file.write(header, 0)
        if token_ids is not None:
            file.write(struct.pack(f"<{tokens}q", *token_ids), len(header))
        for number, sections in zip(numbers, layers, strict=True):
            for part, octets in zip(_PARTS, sections, strict=True):
                _check_size(octets, tokens * layout.token_sizes[part], number)
                file.write(octets, len(header) + layout.begin(part, number))
        file.keep(len(header) + layout.end)
    finally:
        file.discard()


def _check_size(octets: Buffer, expected: int, layer: int) -> None:
    if memoryview(octets).nbytes != expected:
        raise UsageError(
            f"layer {layer}: expected {expected} octets, got {memoryview(octets).nbytes}"
        )
