"""kvcs.cli.config: the settings file."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from kvcs.cli.config import MAX_OCTETS, default_map, find_config, flag_of
from kvcs.errors import UsageError


@click.command()
@click.option("--scope-key")
@click.option("-n", "--number", "count", type=int)
@click.option("--json", "as_json", is_flag=True)
@click.option("--url", multiple=True)
@click.argument("file", required=False)
def keys(**_: object) -> None:
    """Parameters of all kinds."""


def settings(tmp_path: Path, text: str) -> object:
    path = tmp_path / "kvcs.toml"
    path.write_text(text, "utf-8")
    return default_map(path, ["keys"], lambda _: keys)


def test_names() -> None:
    assert [flag_of(param) for param in keys.params] == [
        "scope_key",
        "number",
        "json",
        "url",
        "file",
    ]


def test_values(tmp_path: Path) -> None:
    text = 'scope-key = "a"\n[keys]\nnumber = 3\njson = true\nurl = ["x", "y"]\nfile = "f"\n'
    assert settings(tmp_path, text) == {
        "keys": {"scope_key": "a", "count": "3", "as_json": "true", "url": ["x", "y"], "file": "f"}
    }


def test_a_commands_own_settings_win(tmp_path: Path) -> None:
    assert settings(tmp_path, 'scope_key = "a"\n[keys]\nscope-key = "b"') == {
        "keys": {"scope_key": "b"}
    }
    assert settings(tmp_path, 'url = "one"') == {"keys": {"url": ["one"]}}
    assert settings(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("=", "is not TOML"),
        ("x = [" + "[" * 20_000, "is not TOML"),
        ("[frob]\n", "no command is called 'frob'"),
        ("frob = 1\n", "no command has a setting 'frob'"),
        ("[keys]\nfrob = 1\n", "keys has no setting 'frob'"),
        ("[keys]\nscope-key = []\n", "must be a string, a number"),
        ("[keys]\nscope-key = 2020-01-01\n", "must be a string, a number"),
        ("[keys]\nurl = [[1]]\n", "must be a string, a number"),
        ("[keys]\nnumber = {a = 1}\n", "must be a string, a number"),
        ("#" * (MAX_OCTETS + 1), "more than 65536 octets"),
    ],
)
def test_faults(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        settings(tmp_path, text)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(None) is None
    assert find_config("other") == Path("other")
    Path("kvcs.toml").write_bytes(b"\xff")
    assert find_config(None) == Path("kvcs.toml")
    with pytest.raises(UsageError, match="is not TOML"):
        default_map(Path("kvcs.toml"), [], lambda _: keys)
    with pytest.raises(UsageError, match="cannot read"):
        default_map(tmp_path, [], lambda _: keys)
    assert default_map(None, ["keys"], lambda _: keys) == {}
