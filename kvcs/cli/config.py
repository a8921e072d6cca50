"""The settings file kvcs.toml.

scope_key = "scope.key"     # for every command that has --scope-key
[subscribe]
deadline = 30               # for one command; wins over the above
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import click

from kvcs.errors import UsageError
from kvcs.reading import read_up_to

CONFIG_NAME = "kvcs.toml"
MAX_OCTETS = 64 << 10
"""Settings are a few dozen lines."""

Value: TypeAlias = str | list[str]
Settings: TypeAlias = dict[str, dict[str, Value]]


def find_config(named: str | None) -> Path | None:
    """The file that was named, or kvcs.toml in the working directory if there is one."""
    if named is not None:
        return Path(named)
    path = Path(CONFIG_NAME)
    return path if path.is_file() else None


def default_map(
    path: Path | None, commands: Iterable[str], load: Callable[[str], click.Command]
) -> Settings:
    """Settings by command and parameter; raises `UsageError` for what no command has."""
    if path is None:
        return {}
    document = _parse(path)
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    shared = _named({name: value for name, value in document.items() if name not in tables})
    known = set(commands)
    if not tables.keys() <= known:
        raise UsageError(f"{path}: no command is called {min(tables.keys() - known)!r}")
    settings: Settings = {}
    unused = set(shared)
    for command in known if shared else tables:
        parameters = {flag_of(param): param for param in load(command).params}
        own = _named(tables.get(command, {}))
        if not own.keys() <= parameters.keys():
            wrong = min(own.keys() - parameters.keys())
            raise UsageError(f"{path}: {command} has no setting {wrong!r}")
        merged = {name: value for name, value in shared.items() if name in parameters} | own
        unused -= merged.keys()
        settings[command] = {
            str(parameters[name].name): _value(path, name, value, parameters[name])
            for name, value in merged.items()
        }
    if unused:
        raise UsageError(f"{path}: no command has a setting {min(unused)!r}")
    return settings


def _parse(path: Path) -> dict[str, object]:
    try:
        data = read_up_to(path, MAX_OCTETS + 1)
    except OSError as fault:
        raise UsageError(f"config: cannot read {path}: {fault.strerror}") from None
    if len(data) > MAX_OCTETS:
        raise UsageError(f"config: {path} has more than {MAX_OCTETS} octets")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise UsageError(f"config: {path} is not TOML: {fault}") from None


def flag_of(param: click.Parameter) -> str:
    """What a parameter is called in settings and the environment: its first long flag, or an argument's name."""
    names = [name for name in param.opts if name.startswith("--")] or [param.name or ""]
    return names[0].lstrip("-").replace("-", "_")


def _named(members: dict[str, object]) -> dict[str, object]:
    """`members` with names as `flag_of` gives them; "block-tokens" and "block_tokens" are one."""
    return {name.replace("-", "_"): value for name, value in members.items()}


def _value(path: Path, name: str, value: object, param: click.Parameter) -> Value:
    """As text, which click converts and complains about as it does with flags."""
    multiple = param.multiple or param.nargs != 1
    if isinstance(value, list) and multiple:
        return [_scalar(path, name, item) for item in value]
    text = _scalar(path, name, value)
    return [text] if multiple else text


def _scalar(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{path}: setting {name!r} must be a string, a number, true or false")
