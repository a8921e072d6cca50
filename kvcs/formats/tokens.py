"""Token lists and descriptors, as their files give them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from kvcs import strictjson
from kvcs.errors import UsageError
from kvcs.formats.kvfile import MAX_TOKENS, KvFile
from kvcs.kvsp.descriptor import MAX_OCTETS as MAX_DESCRIPTOR
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import MAX_TOKEN
from kvcs.strictjson import shown

MAX_OCTETS = 256 << 20
"""Of a token file: 16 Mi tokens of up to ten digits with separators, or of eight octets."""
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER = re.compile(
    rb"\{'descr': '(<[iu][1248]|\|[iu]1)', 'fortran_order': (?:False|True), 'shape': \(([0-9]{1,9}),\),? ?\} *\n"
)


def load_tokens(path: Path) -> list[int]:
    """Token ids from a JSON array, a .npy file of integers, or the token_ids of a KV cache file.

    Which of them it is shows in the first octets. Raises `UsageError`, for an empty list as well.
    """
    start = _read(path, 9, "tokens")
    if _is_safetensors(start):
        with KvFile(path) as file:
            tokens = file.token_ids()
        if tokens is None:
            raise UsageError(
                f"tokens: {path} has no token_ids; give the tokens in a file of their own"
            )
        return _checked(tokens, path)
    data = _read(path, MAX_OCTETS + 1, "tokens")
    try:
        tokens = parse_npy(data) if data.startswith(_NPY_MAGIC) else parse_json(data)
    except UsageError as fault:
        raise UsageError(f"{path}: {fault}") from None
    return _checked(tokens, path)


def load_descriptor(path: Path) -> Descriptor:
    """The descriptor in a JSON file, or the one in a KV cache file; raises `UsageError`."""
    if _is_safetensors(_read(path, 9, "descriptor")):
        with KvFile(path) as file:
            if file.descriptor is None:
                raise UsageError(f"descriptor: {path} carries none; give it in a file of its own")
            return file.descriptor
    try:
        return Descriptor.from_bytes(_read(path, MAX_DESCRIPTOR + 1, "descriptor"))
    except UsageError as fault:
        raise UsageError(f"{path}: {fault}") from None


def parse_json(data: bytes) -> list[int]:
    """Token ids in a JSON array of integers; raises `UsageError`."""
    tokens = strictjson.loads(data, what="tokens", max_octets=MAX_OCTETS, error=UsageError)
    if not isinstance(tokens, list):
        raise UsageError(f"tokens: expected a JSON array of integers, got {shown(tokens)}")
    wrong = next((item for item in tokens if type(item) is not int), None)
    if wrong is not None or None in tokens:
        raise UsageError(f"tokens: expected integers, got {shown(wrong)}")
    return tokens


def parse_npy(data: bytes) -> list[int]:
    """Token ids in a .npy file of one dimension of little-endian integers; raises `UsageError`.

    Read by our own code: numpy's takes a file's word for how much memory to allocate.
    """
    if len(data) > MAX_OCTETS:
        raise UsageError(f"tokens: at most {MAX_OCTETS} octets are accepted")
    width = {1: 2, 2: 4, 3: 4}.get(data[6], 0) if len(data) > 7 else 0
    if not data.startswith(_NPY_MAGIC) or width == 0:
        raise UsageError("tokens: not a .npy file that can be read")
    start = 8 + width
    end = start + int.from_bytes(data[8:start], "little")
    match = _NPY_HEADER.fullmatch(data[start:end])
    if match is None:
        raise UsageError("tokens: expected a .npy array of integers with one dimension")
    dtype = np.dtype(match[1].decode("ascii"))
    expected = int(match[2]) * dtype.itemsize
    if len(data) - end != expected:
        raise UsageError(f"tokens: the array has {expected} octets, the file {len(data) - end}")
    values: list[int] = np.frombuffer(data, dtype, offset=end).tolist()
    return values


def _checked(tokens: list[int], path: Path) -> list[int]:
    if not tokens:
        raise UsageError(f"tokens: the list in {path} is empty")
    if len(tokens) > MAX_TOKENS:
        raise UsageError(f"tokens: {path} has {len(tokens)}; at most {MAX_TOKENS} are accepted")
    if min(tokens) < 0 or max(tokens) > MAX_TOKEN:
        raise UsageError(f"tokens: {path}: expected integers from 0 to {MAX_TOKEN}")
    return tokens


def _is_safetensors(start: bytes) -> bool:
    """A length below 2^40, then the brace of its JSON; neither JSON nor .npy begins like that."""
    return len(start) == 9 and start[5:8] == bytes(3) and start[8:9] == b"{"


def _read(path: Path, most: int, what: str) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{what}: {path} is not a file")
        with path.open("rb") as file:
            # Room for all that it asks for is made at once, so it asks for no more than there is.
            return file.read(min(most, os.fstat(file.fileno()).st_size))
    except OSError as fault:
        raise UsageError(f"{what}: cannot read {path}: {fault.strerror}") from None
