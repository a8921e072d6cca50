"""kvcs.__main__: the programs are there from their first moment on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from kvcs import __main__ as start

ROOT = Path(__file__).resolve().parent.parent.parent
INTERRUPTED_AT_AN_IMPORT = """
import importlib.abc, os, signal, sys

wanted = sys.argv[1]

class CtrlC(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
from kvcs.__main__ import main
sys.argv[1:] = sys.argv[2:]
sys.exit(main())
"""


def python(*words: str, ignored: bool = False) -> tuple[int, str]:
    """A Python process of its own: exit status, and all it wrote."""

    def hear() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)

    done = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        preexec_fn=hear,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("kvcs.cli.main", ["--version"]),
        ("moqt.errors", ["--version"]),
        ("kvcs.cli.relay", ["relay", "--help"]),
        ("moqt.relay", ["relay", "--help"]),
        ("kvcs.consumer", ["subscribe", "--help"]),
    ],
)
def test_ctrl_c_while_it_is_imported(module: str, words: list[str]) -> None:
    """One line and status 130, wherever the imports are."""
    ended = python("-c", INTERRUPTED_AT_AN_IMPORT, module, *words)
    assert ended == (130, "kvcs: interrupted\n")


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    status, said = python("-c", INTERRUPTED_AT_AN_IMPORT, "click", "--version", ignored=True)
    assert status == 0
    assert said.startswith("kvcs ")


def test_afterwards_ctrl_c_is_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kvcs", "--version"])
        assert start.main() == 0
    assert capsys.readouterr().out.startswith("kvcs ")
    assert signal.getsignal(signal.SIGINT) is before


def test_python_m_kvcs() -> None:
    status, said = python("-m", "kvcs", "--help")
    assert status == 0
    assert "publish" in said


def test_every_console_script_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert set(scripts) == {"kvcs", "kvcs-publish", "kvcs-subscribe"}
    for name, place in scripts.items():
        module, _, program = place.partition(":")
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        assert getattr(import_module(module), program)() == 0
        assert capsys.readouterr().out.startswith(f"Usage: {name} ")
