"""The rules of docs/architecture.md on imports, sizes and habits, read from the source with ast.

A rule is given a module's path and tree and yields its faults, so that each is also seen to find one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("moqt", "kvcs", "examples", "certs")
MAX_LINES, MAX_FUNCTION = 400, 50
MOQT_MODULES = {path.stem for path in (ROOT / "moqt").iterdir()}
QUIC_LIBRARIES = {"aioquic", "aiopquic", "qh3"}
NO_IO = {"asyncio", "socket", "ssl", "time", "random", "secrets", "threading", "selectors"}
BROAD = {"Exception", "BaseException"}
CATCHES_ALL = {"moqt/relay/authority.py"}
"""Where somebody else's code is called, and must grant nothing when it fails."""

WORDS = {"moqt.model", "moqt.errors"}
CORE = WORDS | {"moqt.config", "moqt.wire", "moqt.protocol"}
DRIVER = {"moqt.connection", "moqt.asking", "moqt.roles"}
STORE = {"moqt.track", "moqt.matching", "moqt.senders"}
SERVING = {"moqt.publisher", "moqt.serving", "moqt.served"}
ASKING = {"moqt.subscriber", "moqt.namespaces", "moqt.collecting"}
ENDS = CORE | DRIVER | SERVING | {"moqt.session", "moqt.quic", "moqt.url", "moqt.version"}
CACHE = {"moqt.relay.locations", "moqt.relay.cached", "moqt.relay.cache"}
RELAY_TOP = {"__init__", "relay"}
RELAY_PARTS = {
    f"moqt.relay.{path.stem}"
    for path in (ROOT / "moqt/relay").glob("*.py")
    if path.stem not in RELAY_TOP
}
RELAY_PARTS -= CACHE
RELAY = CORE | DRIVER | STORE | SERVING | ASKING | CACHE | RELAY_PARTS | {"moqt.session"}
PUBLIC = WORDS | {"moqt.config", "moqt.auth", "moqt"}
DIRECTIONS = {
    "moqt.model": set[str](),
    "moqt.errors": set[str](),
    "moqt.config": set[str](),
    "moqt.version": set[str](),
    "moqt.url": {"moqt.errors"},
    "moqt.wire": WORDS | {"moqt.wire"},
    "moqt.protocol": CORE,
    "moqt.quic": {"moqt.errors", "moqt.config", "moqt.quic"},
    **dict.fromkeys(DRIVER, CORE | DRIVER | {"moqt.quic.base"}),
    **dict.fromkeys(STORE, CORE | STORE),
    **dict.fromkeys(SERVING, CORE | DRIVER | STORE | SERVING),
    **dict.fromkeys(ASKING, CORE | DRIVER | ASKING),
    "moqt.session": CORE | DRIVER | ASKING,
    **dict.fromkeys(CACHE, WORDS | CACHE | {"moqt.wire"}),
    **dict.fromkeys(RELAY_PARTS, RELAY | {"moqt.auth", "moqt.url"}),
    "moqt.auth": CORE | {"moqt.auth"},
    "moqt.relay": RELAY
    | ENDS
    | {"moqt.relay", "moqt.auth", "moqt.client", "moqt.server", "moqt.url"},
    "moqt.plain": CORE | {"moqt.quic", "moqt.url"},
    "moqt.testing": {"moqt.testing"},
    "moqt.client": ENDS,
    "moqt.server": ENDS,
    "moqt": ENDS | ASKING | STORE | {"moqt.client", "moqt.server", "moqt.auth", "moqt.relay"},
    "kvcs.bench": PUBLIC | {"kvcs", "moqt.plain", "moqt.testing"},
    "kvcs.cli": PUBLIC | {"kvcs"},
    "kvcs": PUBLIC | {"kvcs"},
}
"""What a module may import of the two packages. `moqt` alone stands for its top level, nothing below."""


def within(name: str, packages: set[str]) -> str:
    """The longest of `packages` that `name` is or lies in, or nothing."""
    found = (p for p in packages if name == p or (p != "moqt" and name.startswith(f"{p}.")))
    return max(found, key=len, default="")


def imports(tree: ast.Module) -> Iterator[str]:
    """What is imported, and what is reached through a bare `import moqt`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                source = "." * node.level + (node.module or "")
                below = MOQT_MODULES if source == "moqt" else set[str]()
                yield from (f"moqt.{a.name}" if a.name in below else source for a in node.names)
            case ast.Attribute(value=ast.Name(id="moqt"), attr=attr) if attr in MOQT_MODULES:
                yield f"moqt.{attr}"


def directions(path: Path, tree: ast.Module) -> Iterator[str]:
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    layer = within(module, set(DIRECTIONS))
    if not layer and path.parts[0] == "moqt":
        yield f"{module} has no place in DIRECTIONS"
    for name in imports(tree):
        top = name.split(".")[0]
        if not top:
            yield f"relative import from {name}"
        if top in QUIC_LIBRARIES and layer != "moqt.quic":
            yield f"{name}: only moqt.quic may know a QUIC library"
        if top in NO_IO and layer in {"moqt.wire", "moqt.protocol", *CACHE}:
            yield f"{name}: no I/O, clock or randomness here"
        if within(name, {"kvcs.cli"}) and layer == "kvcs":
            yield f"{name}: only the command line may import the command line"
        if top in {"moqt", "kvcs"} and layer and not within(name, DIRECTIONS[layer]):
            yield f"{layer} may not import {name}"


def sizes(_: Path, tree: ast.Module) -> Iterator[str]:
    ends = [node.end_lineno or 0 for node in tree.body]
    if max(ends, default=0) > MAX_LINES:
        yield f"{max(ends)} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{node.name} has {length} lines"


def habits(path: Path, tree: ast.Module) -> Iterator[str]:
    speaks = path.parts[0] not in {"moqt", "kvcs"} or path.parts[:2] == ("kvcs", "cli")
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                yield "star import"
            case ast.Call(func=ast.Name(id="print")) if not speaks:
                yield "print"
            case ast.ExceptHandler(type=None):
                yield "bare except"
            case ast.ExceptHandler(type=ast.expr() as caught) if BROAD & names(caught):
                if path.as_posix() not in CATCHES_ALL:
                    yield "except Exception"
            case ast.Call(func=ast.expr() as func, args=caught) if "suppress" in names(func):
                if any(BROAD & names(arg) for arg in caught):
                    yield "suppress(Exception)"


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    public = not path.stem.startswith("_") or path.stem == "__init__"
    if public and not (ast.get_docstring(tree) or "").strip():
        yield "no docstring"


def untyped(root: Path) -> list[str]:
    return [name for name in ("moqt", "kvcs") if not (root / name / "py.typed").is_file()]


def modules() -> list[Path]:
    found = (path for top in CODE for path in (ROOT / top).rglob("*.py"))
    return sorted(path.relative_to(ROOT) for path in found)


Rule = Callable[[Path, ast.Module], Iterator[str]]
RULES: tuple[Rule, ...] = (directions, sizes, habits, docstrings)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_code_keeps_the_rule(rule: Rule) -> None:
    faults = [
        f"{path}: {fault}"
        for path in modules()
        for fault in rule(path, ast.parse((ROOT / path).read_text("utf-8")))
    ]
    assert not faults, "\n".join(faults)


def test_every_part_of_the_code_is_read() -> None:
    assert {path.parts[0] for path in modules()} == set(CODE)


def test_both_packages_are_typed(tmp_path: Path) -> None:
    assert untyped(ROOT) == []
    assert untyped(tmp_path) == ["moqt", "kvcs"]


BAD: list[tuple[Rule, str, str]] = [
    (directions, "moqt/model.py", "import moqt.errors"),
    (directions, "moqt/client.py", "import kvcs"),
    (directions, "moqt/client.py", "from moqt import connect"),
    (directions, "moqt/wire/data.py", "from moqt.config import Config"),
    (directions, "moqt/wire/data.py", "from moqt import protocol"),
    (directions, "moqt/wire/data.py", "import time"),
    (directions, "moqt/protocol/session.py", "from asyncio.queues import Queue"),
    (directions, "moqt/protocol/session.py", "def f():\n    import ssl"),
    (directions, "moqt/protocol/session.py", "from moqt.quic.base import Connection"),
    (directions, "moqt/quic/aioquic.py", "from moqt.model import Location"),
    (directions, "moqt/connection.py", "from moqt.quic.aioquic import connect"),
    (directions, "moqt/connection.py", "from moqt.publisher import Track"),
    (directions, "moqt/subscriber.py", "from moqt.client import connect"),
    (directions, "moqt/server.py", "from aioquic.tls import Context"),
    (directions, "moqt/relay/cache.py", "from moqt.connection import Driver"),
    (directions, "moqt/session.py", "from moqt.relay import Relay"),
    (directions, "moqt/somewhere.py", "import math"),
    (directions, "kvcs/consumer.py", "import aioquic"),
    (directions, "kvcs/consumer.py", "from moqt.wire.data import SubgroupHeader"),
    (directions, "kvcs/consumer.py", "from moqt import wire"),
    (directions, "kvcs/consumer.py", "import moqt\nmoqt.protocol"),
    (directions, "kvcs/consumer.py", "from kvcs.cli.main import main"),
    (directions, "kvcs/consumer.py", "from .naming import publication"),
    (sizes, "kvcs/naming.py", "x = 1\n" * 401),
    (sizes, "kvcs/naming.py", "async def f():\n" + "    x = 1\n" * 50),
    (habits, "tests/test_x.py", "from moqt.model import *"),
    (habits, "kvcs/naming.py", "print(1)"),
    (habits, "kvcs/naming.py", "try:\n    f()\nexcept:\n    pass"),
    (habits, "kvcs/naming.py", "try:\n    f()\nexcept (OSError, Exception):\n    pass"),
    (habits, "kvcs/naming.py", "try:\n    f()\nexcept builtins.BaseException as e:\n    pass"),
    (habits, "kvcs/naming.py", "with contextlib.suppress(Exception):\n    f()"),
    (docstrings, "kvcs/naming.py", "x = 1"),
    (docstrings, "kvcs/__init__.py", ""),
]


@pytest.mark.parametrize(("rule", "path", "source"), BAD)
def test_a_rule_finds_what_breaks_it(rule: Rule, path: str, source: str) -> None:
    assert len(list(rule(Path(path), ast.parse(source)))) == 1


GOOD = [
    ("kvcs/cli/main.py", "'''Doc.'''\nimport moqt\nfrom kvcs.cli import demo\nprint(moqt.connect)"),
    ("kvcs/consumer.py", "'''Doc.'''\nfrom moqt import connect\nfrom moqt.errors import MoqtError"),
    ("moqt/connection.py", "'''Doc.'''\nimport asyncio\nfrom moqt.quic.base import Connection"),
    ("moqt/quic/aioquic.py", "'''Doc.'''\nfrom aioquic.tls import Context\nimport moqt.quic.base"),
    ("moqt/__init__.py", "'''Doc.'''\nfrom moqt.client import connect as connect"),
    ("kvcs/naming.py", "'''Doc.'''\ndef f():\n" + "    x = 1\n" * 49),
    ("kvcs/naming.py", "'''Doc.'''\ntry:\n    f()\nexcept (OSError, ValueError):\n    pass"),
    ("kvcs/_private.py", "x = 1"),
    *((path, "'''Doc.'''\ntry:\n    f()\nexcept Exception:\n    pass") for path in CATCHES_ALL),
]


@pytest.mark.parametrize(("path", "source"), GOOD)
def test_the_rules_let_good_code_pass(path: str, source: str) -> None:
    assert [fault for rule in RULES for fault in rule(Path(path), ast.parse(source))] == []
