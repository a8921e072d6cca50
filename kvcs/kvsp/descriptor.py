"""The Compatibility Descriptor: what a cache was computed with, as a JSON object.

Read as this project's profile lays down: objects, arrays, strings, booleans and integers of 53 bits,
nothing else, so that its canonical form (RFC 8785) is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import rfc8785

from kvcs import strictjson
from kvcs.errors import UsageError
from kvcs.payload import HEADER_SIZE, Component
from kvcs.strictjson import shown

MAX_OCTETS = 64 << 10
"""Of a descriptor's JSON; real ones have under one KiB."""
MAX_DEPTH = 16
MAX_INTEGER = (1 << 53) - 1
MAX_LAYERS = 4096
"""Layer numbers have four digits in files; the deepest models have a few hundred."""
MAX_DIMENSION = 1 << 16
MAX_BLOCK_TOKENS = 1 << 16
MAX_DATA = (64 << 20) - HEADER_SIZE
"""Octets of one Object's Data, so that the payload is at most 64 MiB."""

ELEMENT_SIZES = MappingProxyType({"bf16": 2, "f16": 2, "f32": 4, "f8e4m3": 1, "f8e5m2": 1, "u8": 1})
"""Octets of one element by `dtype`. Elements are octets to this package; it converts none."""

_STRINGS = ("profile", "model", "revision", "tokenizer", "dtype", "layout")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A checked Compatibility Descriptor; `json` is the object as parsed, unknown members included."""

    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    block_tokens: int
    layout: str
    profile: str
    json: Mapping[str, object] = field(compare=False, repr=False)
    _canonical: bytes = field(repr=False)

    @classmethod
    def from_bytes(cls, data: bytes) -> Descriptor:
        """The descriptor in the JSON text `data`; raises `UsageError`."""
        return cls.from_json(
            strictjson.loads(data, what="descriptor", max_octets=MAX_OCTETS, error=UsageError)
        )

    @classmethod
    def from_json(cls, obj: object) -> Descriptor:
        """The descriptor in a JSON value that was parsed already; raises `UsageError`."""
        if not isinstance(obj, dict):
            raise UsageError(f"descriptor: expected a JSON object, got {shown(obj)}")
        canonical = canonical_json(obj)
        for name in _STRINGS:
            if not isinstance(obj.get(name), str) or not obj[name]:
                raise UsageError(f"descriptor: {name!r} must be a string that is not empty")
        dtype = obj["dtype"]
        if dtype not in ELEMENT_SIZES:
            known = ", ".join(ELEMENT_SIZES)
            raise UsageError(f"descriptor: dtype {shown(dtype)} is unknown; known are {known}")
        head_dim = _count(obj, "head_dim", MAX_DIMENSION)
        descriptor = cls(
            layers=_count(obj, "layers", MAX_LAYERS),
            kv_heads=_count(obj, "kv_heads", MAX_DIMENSION),
            head_dim=head_dim,
            v_head_dim=_count(obj, "v_head_dim", MAX_DIMENSION)
            if "v_head_dim" in obj
            else head_dim,
            dtype=dtype,
            block_tokens=_count(obj, "block_tokens", MAX_BLOCK_TOKENS),
            layout=obj["layout"],
            profile=obj["profile"],
            json=obj,
            _canonical=canonical,
        )
        if descriptor.section_size(Component.KV) > MAX_DATA:
            raise UsageError(
                f"descriptor: one block of one layer has {descriptor.section_size(Component.KV)} "
                f"octets, at most {MAX_DATA} are possible; use fewer block_tokens"
            )
        return descriptor

    def canonical(self) -> bytes:
        """The canonical JSON (RFC 8785) that the Compatibility ID is computed from."""
        return self._canonical

    @property
    def element_size(self) -> int:
        """Octets of one element."""
        return ELEMENT_SIZES[self.dtype]

    def token_size(self, component: Component) -> int:
        """Octets of one token in one layer; for KV those of K and V."""
        dim = 0
        if component is not Component.V:
            dim += self.head_dim
        if component is not Component.K:
            dim += self.v_head_dim
        return self.kv_heads * dim * self.element_size

    def section_size(self, component: Component) -> int:
        """Octets of one block of one layer, raw; for KV both sections (O5)."""
        return self.block_tokens * self.token_size(component)


def _count(obj: dict[str, object], name: str, most: int) -> int:
    value = obj.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise UsageError(
            f"descriptor: {name!r} must be an integer from 1 to {most}, got {shown(value)}"
        )
    return value


def canonical_json(value: object) -> bytes:
    """RFC 8785 form of a JSON value within the profile's limits; raises `UsageError` outside them."""
    _check_values(value)
    try:
        octets = rfc8785.dumps(value)  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError as fault:
        raise UsageError(f"descriptor: {fault}") from None
    if len(octets) > MAX_OCTETS:
        raise UsageError(
            f"descriptor: at most {MAX_OCTETS} octets are accepted, it has {len(octets)}"
        )
    return octets


def _check_values(value: object) -> None:
    """Walks without recursion: the nesting is the writer's choice."""
    waiting: list[tuple[object, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise UsageError(f"descriptor: nested deeper than {MAX_DEPTH}")
        if isinstance(item, dict):
            for name, member in item.items():
                _check_string(name)
                waiting.append((member, depth + 1))
        elif isinstance(item, list | tuple):
            waiting.extend((member, depth + 1) for member in item)
        elif isinstance(item, str):
            _check_string(item)
        elif type(item) is int:
            if abs(item) > MAX_INTEGER:
                raise UsageError("descriptor: an integer has more than 53 bits; write a string")
        elif not isinstance(item, bool):
            raise UsageError(
                f"descriptor: expected objects, arrays, strings, booleans and integers, got {shown(item)}"
            )


def _check_string(text: object) -> None:
    if not isinstance(text, str):
        raise UsageError(f"descriptor: a member's name must be a string, got {shown(text)}")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise UsageError("descriptor: a string holds a lone surrogate")
