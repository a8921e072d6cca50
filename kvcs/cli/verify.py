"""`kvcs verify`: checks a KV cache file, or compares two, tensor by tensor."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click

from kvcs.cli.text import one_line
from kvcs.errors import Incomplete, KvcsError
from kvcs.formats.safetensors import KvFile, tensor_name
from kvcs.payload import Component

_CHUNK = 1 << 20
_PARTS = (Component.K, Component.V)
_GEOMETRY = ("dtype", "block_tokens", "first_token", "kv_heads", "head_dim", "v_head_dim")


class Different(KvcsError):
    """Two files hold different octets at the same place."""

    exit_status = 5


@dataclass(frozen=True)
class Comparison:
    """What two files have in common, what one of them lacks, and where they differ."""

    tensors: int
    octets: int
    missing: tuple[str, ...] = ()
    different: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether nothing is missing and nothing differs."""
        return not self.missing and not self.different


@click.command("verify")
@click.argument("file", type=Path)
@click.argument("other", type=Path, required=False, metavar="[FILE2]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(file: Path, other: Path | None, as_json: bool) -> None:
    """Check FILE, or compare it with FILE2.

    Ends with 0 if they are identical, 4 if a part is missing in one of them, 5 if they differ.
    """
    with KvFile(file) as first:
        if other is None:
            report = Comparison(len(first.tensors), _read_all(first))
        else:
            with KvFile(other) as second:
                report = compare(first, second)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "identical": report.identical,
                    "tensors": report.tensors,
                    "octets": report.octets,
                    "missing": list(report.missing),
                    "different": list(report.different),
                }
            )
        )
    elif report.identical:
        word = "whole" if other is None else "identical"
        click.echo(one_line(f"{file}: {word}: {report.tensors} tensors, {report.octets} octets"))
    if report.different:
        raise Different(f"{file} and {other} differ: {_some(report.different)}")
    if report.missing:
        raise Incomplete(f"{file} and {other}: a part is missing: {_some(report.missing)}")


def compare(first: KvFile, second: KvFile) -> Comparison:
    """Compares what both files hold, octet by octet, and lists what only one of them does."""
    different = [
        f"{name} {getattr(first, name)} and {getattr(second, name)}"
        for name in _GEOMETRY
        if getattr(first, name) != getattr(second, name)
    ]
    if different:
        return Comparison(0, 0, different=tuple(different))
    tokens = min(first.tokens, second.tokens)
    missing = _missing(first, second)
    mine, theirs = first.token_ids(), second.token_ids()
    if mine is not None and theirs is not None and mine[:tokens] != theirs[:tokens]:
        different.append("token_ids")
    layers = range(
        max(first.layers.start, second.layers.start), min(first.layers.stop, second.layers.stop)
    )
    octets = 0
    for layer in layers:
        for part in _PARTS:
            length = tokens * first.token_size(part)
            octets += length
            if not _same(first, second, part, layer, length):
                different.append(tensor_name(part, layer))
    return Comparison(2 * len(layers), octets, tuple(missing), tuple(different))


def _missing(first: KvFile, second: KvFile) -> list[str]:
    missing: list[str] = []
    for one, other in ((first, second), (second, first)):
        lacking = [layer for layer in other.layers if layer not in one.layers]
        if lacking:
            missing.append(f"layers {lacking[0]}-{lacking[-1]} in {one.path}")
        if one.tokens < other.tokens:
            missing.append(f"tokens {one.tokens}-{other.tokens - 1} in {one.path}")
    return missing


def _same(first: KvFile, second: KvFile, part: Component, layer: int, length: int) -> bool:
    token = first.token_size(part)
    step = max(1, _CHUNK // token) * token
    one, other = bytearray(min(step, length)), bytearray(min(step, length))
    for begin in range(0, length, step):
        size = min(step, length - begin)
        first.read_tokens_into(part, layer, begin // token, memoryview(one)[:size])
        second.read_tokens_into(part, layer, begin // token, memoryview(other)[:size])
        if memoryview(one)[:size] != memoryview(other)[:size]:
            return False
    return True


def _read_all(file: KvFile) -> int:
    """Reads every tensor once, which finds what the device cannot give; returns their octets."""
    for layer in file.layers:
        for part in _PARTS:
            _same(file, file, part, layer, file.tokens * file.token_size(part))
    return sum(info.end - info.begin for info in file.tensors.values())


def _some(items: tuple[str, ...]) -> str:
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + more
