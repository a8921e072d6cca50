"""What publish and subscribe are given: key, descriptor, tokens, and the options for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from pathlib import Path

import click

from kvcs.cli.text import one_line
from kvcs.errors import KvcsError, UsageError
from kvcs.formats.safetensors import KvFile
from kvcs.formats.tokens import load_descriptor, load_tokens
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Identity
from kvcs.report import Report
from kvcs.scopekey import load_scope_key


def _number(text: str, least: float, most: float, *, above: bool = False) -> float:
    """A number from `least` to `most`; not `least` itself where `above`."""
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not least <= number <= most or (above and number == least):
        bound = "above" if above else "from"
        raise click.BadParameter(f"expected a number {bound} {least:g} up to {most:g}.")
    return number


def seconds(text: str) -> float:
    """A flag's type: a time that may be 0."""
    return _number(text, 0, 1e8)


def some_seconds(text: str) -> float:
    """A flag's type: a time above 0."""
    return _number(text, 0, 1e8, above=True)


def rate(text: str) -> float:
    """A flag's type: layers a second."""
    return _number(text, 1e-3, 1e6)


PATH = click.Path(path_type=Path)

scope_key_option = click.option(
    "--scope-key", type=PATH, required=True, metavar="FILE", help="Key of the scope."
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; open no connection."
)


@contextmanager
def reporting(*, as_json: bool) -> Iterator[None]:
    """With --json what is wrong with flags and files is an object on stdout too."""
    try:
        yield
    except KvcsError as fault:
        if as_json:
            report = Report(status="error", error=one_line(str(fault)))
            click.echo(json.dumps(report.to_json()))
        raise


@dataclass(frozen=True)
class Prompt:
    """A prompt's identifiers, and its tokens."""

    identity: Identity
    tokens: list[int]

    @property
    def descriptor(self) -> Descriptor:
        """What its cache is computed with."""
        return self.identity.descriptor


def read_prompt(scope_key: Path, descriptor: Path, tokens: Path) -> Prompt:
    """From the three files; raises UsageError."""
    key, described = load_scope_key(scope_key), load_descriptor(descriptor)
    ids = load_tokens(tokens)
    return Prompt(Identity.derive(key.octets, described, ids), ids)


def prompt_of(
    cache: KvFile, scope_key: Path, descriptor: Path | None, tokens: Path | None
) -> Prompt:
    """The same for a cache file, which may carry descriptor and tokens itself. Raises UsageError where it
    lacks them, or disagrees with those given.
    """
    key = load_scope_key(scope_key)
    described = cache.descriptor if descriptor is None else load_descriptor(descriptor)
    if described is None:
        raise UsageError(f"{cache.path} carries no descriptor; give it with --descriptor FILE")
    cache.check_descriptor(described)
    own = cache.token_ids()
    ids = own if tokens is None else load_tokens(tokens)
    if ids is None:
        raise UsageError(f"{cache.path} carries no token_ids; give the tokens with --tokens FILE")
    shorter = min(len(ids), cache.tokens)
    if own is not None and own[:shorter] != ids[:shorter]:
        raise UsageError(f"tokens: {cache.path} was computed from other tokens than {tokens} holds")
    return Prompt(Identity.derive(key.octets, described, ids), ids)
