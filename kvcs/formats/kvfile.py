"""KV cache files, kvcs-kv/1: a safetensors file with the tensors of every layer.

    layers.{i:04d}.k   [tokens, kv_heads, head_dim]
    layers.{i:04d}.v   [tokens, kv_heads, v_head_dim]
    token_ids          int64 [tokens], optional
    metadata           format, layout, dtype, block_tokens; optional descriptor, model, first_token;
                       layers and blocks ("A-B", inclusive) in a file that holds a part

Files are read with pread, never mapped: a mapped file that is cut short kills the process.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from kvcs.errors import SourceChanged, UsageError
from kvcs.formats.safetensors_header import (
    DTYPE_NAMES,
    PREFIX_SIZE,
    Header,
    TensorInfo,
    header_length,
    parse_header,
)
from kvcs.kvsp.descriptor import ELEMENT_SIZES, MAX_BLOCK_TOKENS, MAX_LAYERS, Descriptor
from kvcs.payload import Component
from kvcs.strictjson import shown

FORMAT = "kvcs-kv/1"
LAYOUT = "thd"
TOKEN_IDS = "token_ids"  # noqa: S105 - the name of a tensor
MAX_TOKENS = 1 << 24
"""Longest context accepted, some ten times what models take."""

_TENSOR = re.compile(r"layers\.([0-9]{4})\.([kv])")
_RANGE = re.compile(r"(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})")
_NATURAL = re.compile(r"0|[1-9][0-9]{0,14}")


def tensor_name(component: Component, layer: int) -> str:
    """The tensor that holds K or V of one layer."""
    return f"layers.{layer:04d}.{component.label}"


class KvFile:
    """A checked kvcs-kv/1 file, open for reading. Use as a context manager or `close` it."""

    def __init__(self, path: Path | str) -> None:
        """Opens and checks; raises `UsageError` for anything that is not a whole kvcs-kv/1 file."""
        self.path = Path(path)
        self._fd = _open(self.path)
        try:
            self._stat = os.fstat(self._fd)
            if not stat.S_ISREG(self._stat.st_mode):
                raise UsageError("it is not a regular file")
            self._header = _read_header(self._fd, self._stat.st_size)
            self._interpret()
        except UsageError as fault:
            self.close()
            raise UsageError(f"{self.path}: {fault}") from None
        except OSError as fault:
            self.close()
            raise UsageError(f"{self.path}: cannot be read: {fault.strerror}") from None

    def _interpret(self) -> None:
        metadata = self._header.metadata
        _expect(metadata, "format", FORMAT)
        _expect(metadata, "layout", LAYOUT)
        self.dtype = metadata.get("dtype", "")
        """Name of the elements' type, as in descriptors."""
        if self.dtype not in ELEMENT_SIZES:
            raise UsageError(f"metadata dtype {shown(self.dtype)} is unknown")
        self.block_tokens = _natural(metadata, "block_tokens", None)
        """Tokens of one block."""
        if not 1 <= self.block_tokens <= MAX_BLOCK_TOKENS:
            raise UsageError(f"metadata block_tokens {self.block_tokens} is not possible")
        self.first_token = _natural(metadata, "first_token", 0)
        """Absolute position of the first token."""
        self.model = metadata.get("model")
        """Name of the model, where given."""
        self.layers, shapes = _check_tensors(self._header.tensors, DTYPE_NAMES[self.dtype])
        """The layers in the file, by their number in the model."""
        self.tokens, self.kv_heads, self.head_dim = shapes[Component.K]
        self.v_head_dim = shapes[Component.V][2]
        self._parts = {
            part: {layer: self.tensors[tensor_name(part, layer)] for layer in self.layers}
            for part in (Component.K, Component.V)
        }
        self._check_part()
        self.descriptor: Descriptor | None = None
        """The descriptor in the metadata, checked against the tensors; None where there is none."""
        if "descriptor" in metadata:
            text = metadata["descriptor"].encode("utf-8", "surrogatepass")
            descriptor = Descriptor.from_bytes(text)
            self._compare(descriptor)
            self.descriptor = descriptor

    def _check_part(self) -> None:
        metadata = self._header.metadata
        self.is_part = "layers" in metadata or "blocks" in metadata
        """Whether the metadata say that this is a part of a cache."""
        if "layers" in metadata:
            if _inclusive(metadata, "layers") != self.layers:
                raise UsageError(f"metadata layers {shown(metadata['layers'])} are not its tensors")
        elif self.layers.start != 0:
            raise UsageError("layers are missing at the start and metadata layers is absent")
        if "blocks" in metadata:
            first = self.first_token // self.block_tokens
            held = range(first, first + self.tokens // self.block_tokens)
            if _inclusive(metadata, "blocks") != held:
                raise UsageError(f"metadata blocks {shown(metadata['blocks'])} are not its tensors")

    def _compare(self, descriptor: Descriptor) -> None:
        pairs: dict[str, tuple[object, object]] = {
            name: (getattr(self, name), getattr(descriptor, name))
            for name in ("kv_heads", "head_dim", "v_head_dim", "dtype", "block_tokens")
        }
        pairs["layout"] = (LAYOUT, descriptor.layout)
        if not self.is_part:
            pairs["layers"] = (len(self.layers), descriptor.layers)
        elif self.layers.stop > descriptor.layers:
            pairs["last layer"] = (self.layers[-1], descriptor.layers - 1)
        wrong = [
            f"{name} {shown(ours)} (descriptor {shown(theirs)})"
            for name, (ours, theirs) in pairs.items()
            if ours != theirs
        ]
        if wrong:
            raise UsageError(f"disagrees with the descriptor: {', '.join(wrong)}")

    def check_descriptor(self, descriptor: Descriptor) -> None:
        """Raises `UsageError` unless the file holds what `descriptor` describes."""
        try:
            self._compare(descriptor)
        except UsageError as fault:
            raise UsageError(f"{self.path}: {fault}") from None
        if self.descriptor is not None and self.descriptor != descriptor:
            raise UsageError(
                f"{self.path}: its own descriptor is not the one given; "
                "it was computed with another model or other settings"
            )

    @property
    def blocks(self) -> int:
        """Whole blocks in the file."""
        return self.tokens // self.block_tokens

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata strings."""
        return self._header.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor of the file."""
        return self._header.tensors

    def token_size(self, component: Component) -> int:
        """Octets of one token in one layer of K or V."""
        dim = self.head_dim if component is Component.K else self.v_head_dim
        return self.kv_heads * dim * ELEMENT_SIZES[self.dtype]

    def token_ids(self) -> list[int] | None:
        """The token ids; None where the file has none."""
        info = self._header.tensors.get(TOKEN_IDS)
        if info is None:
            return None
        octets = bytearray(info.end - info.begin)
        self._read(memoryview(octets), self._header.data_start + info.begin)
        return [
            int.from_bytes(octets[at : at + 8], "little", signed=True)
            for at in range(0, len(octets), 8)
        ]

    def read_tokens_into(
        self, component: Component, layer: int, first: int, target: memoryview
    ) -> None:
        """Fills `target` with K or V of `layer` from token `first` of the file on; raises `SourceChanged`."""
        info = self._parts[component][layer]
        begin = info.begin + first * self.token_size(component)
        if first < 0 or begin + len(target) > info.end:
            raise IndexError(f"tokens from {first} on are not all in layer {layer}")
        self._read(target, self._header.data_start + begin)

    def _read(self, target: memoryview, offset: int) -> None:
        while target:
            count = _pread_into(self._fd, target, offset)
            if count == 0:
                raise SourceChanged(f"{self.path} was cut short while it was read")
            target, offset = target[count:], offset + count

    def check_unchanged(self) -> None:
        """Raises `SourceChanged` if inode, size or modification time are not those at the opening."""
        now, then = os.fstat(self._fd), self._stat
        if (
            now.st_mtime_ns != then.st_mtime_ns
            or now.st_size != then.st_size
            or now.st_ino != then.st_ino
        ):
            raise SourceChanged(
                f"{self.path} was changed while it was published; publish the new one again"
            )

    def close(self) -> None:
        """Closes the file; harmless when done twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> KvFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class KvFileSource:
    """The whole blocks of a kvcs-kv/1 file, as a `Source`."""

    def __init__(self, file: KvFile, descriptor: Descriptor) -> None:
        """Raises `UsageError` where the file is a part, is shorter than a block or not `descriptor`'s."""
        file.check_descriptor(descriptor)
        if file.is_part or file.first_token != 0:
            raise UsageError(
                f"{file.path}: it holds a part of a cache; only whole ones are published"
            )
        if file.blocks == 0:
            raise UsageError(
                f"{file.path}: {file.tokens} tokens are fewer than one block of {file.block_tokens}"
            )
        self._file = file
        self._sizes = {part: descriptor.section_size(part) for part in (Component.K, Component.V)}
        self.layers = descriptor.layers
        """Layers of the cache."""
        self.tokens = file.blocks * file.block_tokens
        """Tokens in whole blocks."""
        left = file.tokens - self.tokens
        self.notice = (
            f"{file.path}: the last {left} of {file.tokens} tokens do not fill a block of "
            f"{file.block_tokens} and are left out"
            if left
            else None
        )
        """What to tell the user about a partial last block; None where there is none."""

    def read_block(self, component: Component, layer: int, block: int) -> memoryview:
        """The section of K or V; raises `SourceChanged`."""
        target = memoryview(bytearray(self._sizes[component]))
        self.read_into(component, layer, block, target)
        return target

    def read_into(self, component: Component, layer: int, block: int, target: memoryview) -> None:
        """The same, into `target` of exactly its size."""
        if len(target) != self._sizes[component]:
            raise ValueError(f"a section has {self._sizes[component]} octets, not {len(target)}")
        self._file.read_tokens_into(component, layer, block * self._file.block_tokens, target)

    def check_unchanged(self) -> None:
        """Raises `SourceChanged` if the file is not what it was at the opening."""
        self._file.check_unchanged()


def _open(path: Path) -> int:
    # Without O_NONBLOCK a named pipe would wait for a writer for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags | getattr(os, "O_BINARY", 0))
    except OSError as fault:
        raise UsageError(f"{path}: cannot be opened: {fault.strerror}") from None


def _pread_into(fd: int, target: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [target], offset)
    chunk = os.pread(fd, len(target), offset)
    target[: len(chunk)] = chunk
    return len(chunk)


def _read_header(fd: int, size: int) -> Header:
    length = header_length(os.pread(fd, PREFIX_SIZE, 0), size)
    text = bytearray()
    while len(text) < length:
        chunk = os.pread(fd, length - len(text), PREFIX_SIZE + len(text))
        if not chunk:
            raise UsageError("safetensors: the file was cut short while it was read")
        text += chunk
    return parse_header(bytes(text), size)


def _check_tensors(
    tensors: Mapping[str, TensorInfo], dtype: str
) -> tuple[range, dict[Component, tuple[int, int, int]]]:
    """The layers, and the shapes that all K and all V share."""
    shapes: dict[Component, tuple[int, int, int]] = {}
    numbers: dict[Component, set[int]] = {Component.K: set(), Component.V: set()}
    for name, info in tensors.items():
        if name == TOKEN_IDS:
            continue
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise UsageError(f"tensor {shown(name)} does not belong in a {FORMAT} file")
        component = Component[match[2].upper()]
        if info.dtype != dtype:
            raise UsageError(f"tensor {name} is {info.dtype}, the metadata say {dtype}")
        if len(info.shape) != 3 or 0 in info.shape:
            raise UsageError(f"tensor {name}: the shape must be [tokens, kv_heads, head_dim]")
        tokens, heads, dim = info.shape
        if shapes.setdefault(component, (tokens, heads, dim)) != info.shape:
            raise UsageError(f"tensor {name} has another shape than the layers before it")
        numbers[component].add(int(match[1]))
    found = sorted(numbers[Component.K])
    if not found or numbers[Component.K] != numbers[Component.V]:
        raise UsageError("every layer needs a tensor k and a tensor v; there are none, or not both")
    layers = range(found[0], found[-1] + 1)
    if len(found) != len(layers) or layers.stop > MAX_LAYERS:
        raise UsageError(f"layers are missing between {found[0]} and {found[-1]}")
    _check_lengths(shapes, tensors.get(TOKEN_IDS))
    return layers, shapes


def _check_lengths(
    shapes: Mapping[Component, tuple[int, int, int]], token_ids: TensorInfo | None
) -> None:
    tokens = shapes[Component.K][0]
    if shapes[Component.K][:2] != shapes[Component.V][:2]:
        raise UsageError("k and v differ in tokens or heads")
    if tokens > MAX_TOKENS:
        raise UsageError(f"{tokens} tokens; at most {MAX_TOKENS} are accepted")
    if token_ids is not None and (token_ids.dtype, token_ids.shape) != ("I64", (tokens,)):
        raise UsageError(f"{TOKEN_IDS} must be I64 of shape [{tokens}]")


def _expect(metadata: Mapping[str, str], name: str, value: str) -> None:
    came = metadata.get(name)
    if came != value:
        raise UsageError(
            f"metadata {name} is {shown(came)}, expected {value!r}; not a KV cache file"
        )


def _natural(metadata: Mapping[str, str], name: str, default: int | None) -> int:
    text = metadata.get(name, "" if default is None else str(default))
    if _NATURAL.fullmatch(text) is None:
        raise UsageError(f"metadata {name} must be a decimal integer, got {shown(text)}")
    return int(text)


def _inclusive(metadata: Mapping[str, str], name: str) -> range:
    match = _RANGE.fullmatch(metadata[name])
    if match is None:
        raise UsageError(f"metadata {name} must be A-B, got {shown(metadata[name])}")
    return range(int(match[1]), int(match[2]) + 1)
