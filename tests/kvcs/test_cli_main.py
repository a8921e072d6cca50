"""kvcs.cli.main: subcommands, settings and how errors are told."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kvcs.cli.main import COMMANDS, load, main, publish_main, run, status_of
from kvcs.cli.text import one_line
from kvcs.errors import Incomplete, KvcsError, PublicationNotFound, Unauthorised, UsageError
from moqt.errors import ConnectError, DeadlineExceeded, MoqtError, RequestErrorCode, RequestRejected
from tests.support.caches import SCOPE_KEY, descriptor, write_cache

Out = pytest.CaptureFixture[str]


def complaint(out: Out) -> str:
    """The one line on stderr."""
    told = out.readouterr()
    assert told.out == ""
    assert told.err.startswith("kvcs: ")
    assert told.err.count("\n") == 1
    return told.err


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a key and a cache."""
    monkeypatch.chdir(tmp_path)
    Path("scope.key").write_bytes(SCOPE_KEY)
    write_cache(Path("cache"), descriptor(), 8)
    return tmp_path


def test_help(capsys: Out) -> None:
    assert main([]) == 0
    bare = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == bare
    for name in ("keys", "inspect", "verify", "sample"):
        assert f"  {name}" in bare
        assert COMMANDS[name] in bare
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: kvcs {name} ")


def test_version(capsys: Out) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvcs 0.")


def test_a_command_that_is_none(capsys: Out) -> None:
    assert main(["nothing"]) == 2
    assert "No such command 'nothing'" in complaint(capsys)


@pytest.mark.parametrize(
    "args",
    [
        ["frobnicate"],
        ["keys"],
        ["keys", "--frob"],
        ["inspect"],
        ["inspect", "none"],
        ["inspect", "."],
        ["inspect", "a\nb"],
        ["verify", "cache", "none"],
        ["verify", "a", "b", "c"],
        ["keys", "--scope-key", "none", "--descriptor", "cache", "--tokens", "cache"],
        ["keys", "--scope-key", "scope.key", "--descriptor", "scope.key", "--tokens", "cache"],
        ["keys", "--scope-key", "scope.key", "--descriptor", "cache", "--tokens", "scope.key"],
        ["keys", "--scope-key", "cache", "--descriptor", "cache", "--tokens", "cache"],
        ["sample", "--layers", "0", "--output", "x"],
        ["sample", "--layers", "x", "--output", "x"],
        ["sample", "--dtype", "bf17", "--output", "x"],
        ["sample", "--output", "."],
        ["sample", "--output", "none/x"],
        ["sample"],
        ["--config", "none", "keys"],
        ["--config", "cache", "keys"],
    ],
    ids=" ".join,
)
def test_bad_input(files: Path, capsys: Out, args: list[str]) -> None:
    assert main(args) == 2
    complaint(capsys)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (KvcsError("x"), 1),
        (UsageError("x"), 2),
        (PublicationNotFound("x"), 3),
        (Incomplete("x"), 4),
        (Unauthorised("x"), 5),
        (MoqtError("x"), 1),
        (ConnectError("tls", "x"), 1),
        (DeadlineExceeded("x"), 4),
        (RequestRejected(RequestErrorCode.UNAUTHORIZED), 5),
        (RequestRejected(RequestErrorCode.EXPIRED_AUTH_TOKEN), 5),
        (RequestRejected(RequestErrorCode.DOES_NOT_EXIST), 1),
        (OSError(111, "refused"), 1),
        (FileNotFoundError(2, "none", "file"), 2),
        (TimeoutError(), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.FileError("f", "x"), 2),
    ],
    ids=repr,
)
def test_exit_status(capsys: Out, fault: BaseException, status: int) -> None:
    def program() -> None:
        raise fault

    assert run(program) == status
    complaint(capsys)
    if isinstance(fault, KvcsError | MoqtError):
        assert status_of(fault) == status


def test_defects_are_not_hidden() -> None:
    def program() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(program)


def test_status_of_a_command() -> None:
    assert run(lambda: 4) == 4
    assert run(lambda: None) == 0


def test_one_line() -> None:
    assert one_line("a\n b\t\x1b[31m\u202e") == "a b \\x1b[31m\\u202e"


def keys_of(capsys: Out, *args: str) -> object:
    assert main([*args, "keys", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_flags_win_over_environment_over_file(
    files: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, first in (("a", 1), ("b", 2), ("c", 3)):
        Path(f"{name}.json").write_text(json.dumps([first] * 4), "utf-8")
    Path("kvcs.toml").write_text(
        'scope-key = "scope.key"\ndescriptor = "none"\n[keys]\ndescriptor = "cache"\ntokens = "a.json"\n',
        "utf-8",
    )
    from_file = keys_of(capsys)
    Path("settings").write_text(Path("kvcs.toml").read_text("utf-8"), "utf-8")
    Path("kvcs.toml").unlink()
    assert keys_of(capsys, "--config", "settings") == from_file
    monkeypatch.setenv("KVCS_CONFIG", "settings")
    assert keys_of(capsys) == from_file
    monkeypatch.setenv("KVCS_TOKENS", "b.json")
    from_environment = keys_of(capsys)
    assert main(["keys", "--json", "--tokens", "c.json"]) == 0
    from_flags = json.loads(capsys.readouterr().out)
    found = [from_file, from_environment, from_flags]
    assert len({json.dumps(one) for one in found}) == 3
    monkeypatch.setenv("KVCS_JSON", "1")
    assert main(["keys", "--tokens", "c.json"]) == 0
    assert json.loads(capsys.readouterr().out) == from_flags


def test_the_other_programs(files: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("publish")
    @click.option("--layers", type=int)
    def command(layers: int | None) -> int:
        click.echo(f"layers {layers}")
        return 4

    module = type(sys)("kvcs.cli.publish")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvcs.cli.publish", module)
    monkeypatch.setattr(sys, "argv", ["kvcs-publish"])
    Path("kvcs.toml").write_text("[publish]\nlayers = 7\n", "utf-8")
    assert publish_main() == 4
    assert capsys.readouterr().out == "layers 7\n"
    monkeypatch.setenv("KVCS_LAYERS", "8")
    assert publish_main() == 4
    assert capsys.readouterr().out == "layers 8\n"
    monkeypatch.setattr(sys, "argv", ["kvcs-publish", "--nothing"])
    assert publish_main() == 2
    assert "See kvcs-publish --help." in complaint(capsys)


def test_modules_are_imported_when_they_run() -> None:
    program = (
        "import sys; from kvcs.cli.main import main; main([]); "
        "sys.exit(any(f'kvcs.cli.{n}' in sys.modules for n in ('keys', 'sample', 'verify')))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-c", program], env=env, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_load_is_repeatable() -> None:
    command = load("keys")
    assert load("keys") is command
    assert importlib.import_module("kvcs.cli.keys").command is command


def test_a_reader_that_leaves(files: Path) -> None:
    """A closed pipe on stdout is no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = "import sys; from kvcs.cli.main import main; sys.exit(main(['inspect', 'cache']))"
    done = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-c", program], env=env, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_output_that_is_not_taken(files: Path) -> None:
    """One line, not what Python says of it at its exit; none where there is no stdout at all."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = "import sys; from kvcs.cli.main import main; sys.exit(main(['inspect', 'cache']))"
    for closed, expected in (
        ("", (1, b"kvcs: No space left on device\n")),
        ("sys.stdout = None; ", (0, b"")),
    ):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(  # noqa: S603 - our own interpreter and program
                [sys.executable, "-c", program.replace("sys.exit", f"{closed}sys.exit")],
                env=env,
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert (done.returncode, done.stderr) == expected
