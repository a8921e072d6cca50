"""What README.md and docs/ tell people to type exists: make targets, commands, flags, files, Python names."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`((?:moqt|kvcs|tests|docs|examples|certs)/[\w./-]*)`")
ELSEWHERE = {"cd", "git", "openssl", "pip"}
"""Commands that are not ours."""


def commands(page: str) -> Iterator[list[str]]:
    """The words of each command in the page's `sh` blocks, and after `$` in its `console` blocks."""
    for language, block in FENCE.findall(page):
        lines = block.replace("\\\n", " ").splitlines()
        if language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        elif language != "sh":
            continue
        for line in lines:
            words = shlex.split(line.strip().removesuffix("&"), comments=True)
            while words and re.match(r"\w+=", words[0]):
                words = words[1:]
            if words:
                yield words


def fault(words: list[str], cli: click.Group, targets: set[str]) -> str | None:
    """Why this command would not be understood, or None."""
    name, *rest = words
    if name == "make":
        unknown = {word for word in rest if "=" not in word} - targets
        return f"no target {', '.join(sorted(unknown))}" if unknown else None
    if name == "python":
        return None if rest and (ROOT / rest[0]).is_file() else f"no such program: {rest}"
    if name == "kvcs" or name.startswith("kvcs-"):
        return misuse(cli, [*name.split("-")[1:], *rest])
    if "/" in name:
        return None if os.access(ROOT / name, os.X_OK) else f"no such program: {name}"
    return None if name in ELSEWHERE else f"nothing tells whether {name} works"


def misuse(cli: click.Group, words: list[str]) -> str | None:
    """What click has against a command line. It is parsed, not run, and its files need not exist."""
    command = cli.get_command(click.Context(cli), words[0]) if words else None
    while isinstance(command, click.Group):
        words = words[1:]
        command = command.get_command(click.Context(command), words[0]) if words else None
    if command is None:
        return f"no subcommand {' '.join(words)}"
    try:
        given, extra, _ = command.make_parser(click.Context(command)).parse_args(words[1:])
    except click.UsageError as error:
        return error.format_message()
    if extra:
        return f"unexpected {extra[0]}"
    needed = (p for p in command.params if p.required and p.name)
    for parameter in needed:
        if parameter.name not in given or parameter.value_is_missing(given[parameter.name]):
            return f"{parameter.name} is missing"
    return None


def unimportable(block: str) -> Iterator[str]:
    """Names that a `python` block imports from our packages and that are not there."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("moqt", "kvcs")):
            module = importlib.import_module(node.module or "")
            yield from (a.name for a in node.names if not hasattr(module, a.name))


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


@pytest.fixture(scope="module")
def cli() -> click.Group:
    main = importlib.import_module("kvcs.cli.main")
    (group,) = (value for value in vars(main).values() if isinstance(value, click.Group))
    return group


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_would_be_understood(page: Path, cli: click.Group) -> None:
    targets = make_targets((ROOT / "Makefile").read_text("utf-8"))
    typed = list(commands(page.read_text("utf-8")))
    found = [f"{' '.join(words)}: {why}" for words in typed if (why := fault(words, cli, targets))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    named = PATH.findall(page.read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_python_of_the_readme_can_be_imported() -> None:
    blocks = [
        text
        for language, text in FENCE.findall(PAGES[0].read_text("utf-8"))
        if language == "python"
    ]
    assert blocks
    assert [name for block in blocks for name in unimportable(block)] == []


@click.group()
def sample() -> None:
    """A command line to check the checks with."""


@sample.command()
@click.argument("file")
@click.option("--listen")
@click.option("--scope-key", required=True)
def publish(file: str, listen: str | None, scope_key: str) -> None:
    """Never run."""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("kvcs publish f --scope-key k --listen h:1", None),
        ("A=1 kvcs-publish f --scope-key k &", None),
        ("make demo PYTHON=python3", None),
        ("git clone u  # comment", None),
        ("kvcs publish f", "scope_key is missing"),
        ("kvcs publish --scope-key k", "file is missing"),
        ("kvcs publish f g --scope-key k", "unexpected g"),
        ("kvcs publish f --scope-key", "Option '--scope-key' requires an argument."),
        ("kvcs publish f --scope-key k --relay", "--relay"),
        ("kvcs relay", "no subcommand relay"),
        ("make soak", "no target soak"),
        ("python examples/none.py", "no such program: ['examples/none.py']"),
        ("tests/bench/netns.sh --rate 1mbit -- a -- b", None),
        ("tests/bench/none.sh", "no such program: tests/bench/none.sh"),
        ("curl u", "nothing tells whether curl works"),
    ],
)
def test_the_check_of_commands(line: str, why: str | None) -> None:
    (words,) = commands(f"```sh\n{line}\n```\n")
    found = fault(words, sample, {"demo"})
    assert found is None if why is None else why in (found or "")


def test_only_typed_lines_of_a_console_count() -> None:
    assert list(commands("```console\n$ make demo\nlayer 0\n```\n")) == [["make", "demo"]]


def test_the_checks_of_names_and_targets() -> None:
    assert list(unimportable("from moqt.model import Location, Place")) == ["Place"]
    assert make_targets("demo: x ## d\nbuild: y\n") == {"demo"}
