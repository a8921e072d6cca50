"""Backends by name, and what the optional ones are excused from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from moqt.errors import LocalError
from moqt.quic import BACKENDS
from moqt.quic import backend as named
from tests.support import backends

ROOT = Path(__file__).parents[3]
OPTIONAL = ("qh3", "aiopquic")


def test_the_default_comes_first() -> None:
    assert named() is named(BACKENDS[0]) is named("aioquic")
    assert set(BACKENDS) == {"aioquic", *OPTIONAL} == set(backends.OVER_UDP)


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_not_installed_is_named_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.startswith(f"moqt.quic.{name}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LocalError, match=rf"not installed: pip install 'kvcs\[{name}\]'"):
        named(name)


def test_a_library_without_what_is_needed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ImportError("this version of qh3 is not supported")

    monkeypatch.setattr("moqt.quic.import_module", broken)
    with pytest.raises(LocalError, match="backend qh3 cannot be used: this version"):
        named("qh3")


def test_a_missing_module_of_our_own_is_no_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ModuleNotFoundError(
            "No module named 'moqt.quic.elsewhere'", name="moqt.quic.elsewhere"
        )

    monkeypatch.setattr("moqt.quic.import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        named("qh3")


@pytest.mark.parametrize("name", OPTIONAL)
def test_every_excuse_is_for_a_test_that_exists_and_is_documented(name: str) -> None:
    files = ("quic/test_contract.py", "test_client_server.py")
    source = "".join((ROOT / "tests" / "moqt" / file).read_text("utf-8") for file in files)
    page = " ".join((ROOT / "docs" / "backends.md").read_text("utf-8").split())
    for test, reason in backends.CANNOT[name].items():
        assert f"async def {test}(" in source
        assert reason in page
    assert backends.excuse(name, "test_what_is_handed_over_is_copied") is None


def test_the_default_backend_is_excused_from_nothing() -> None:
    assert set(backends.CANNOT) == set(OPTIONAL)
