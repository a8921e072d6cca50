"""kvcs.loops: uvloop where it is installed, and the way to do without."""

from __future__ import annotations

import asyncio

import pytest

from kvcs import loops
from kvcs.errors import UsageError


async def kind() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_is_the_default_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(loops.VARIABLE, raising=False)
    assert (loops.chosen(), loops.run(kind())) == ("uvloop", "uvloop")
    monkeypatch.setenv(loops.VARIABLE, "")
    assert loops.chosen() == "uvloop"


@pytest.mark.parametrize("name", loops.LOOPS)
def test_the_variable_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loops.VARIABLE, name)
    assert (loops.chosen(), loops.run(kind())) == (name, name)


@pytest.mark.parametrize("name", loops.LOOPS)
def test_an_argument_wins_over_the_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loops.VARIABLE, "none")
    assert loops.run(kind(), name) == name


def test_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcs.loops.find_spec", lambda name: None if name == "uvloop" else name)
    monkeypatch.delenv(loops.VARIABLE, raising=False)
    assert (loops.chosen(), loops.run(kind())) == ("asyncio", "asyncio")
    monkeypatch.setenv(loops.VARIABLE, "uvloop")
    with pytest.raises(UsageError, match="pip install uvloop"):
        loops.chosen()


def test_a_loop_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work that is not done leaves no warning behind."""
    monkeypatch.setenv(loops.VARIABLE, "curio")
    with pytest.raises(UsageError, match="expected uvloop or asyncio, got 'curio'"):
        loops.run(kind())


@pytest.mark.parametrize("name", loops.LOOPS)
def test_what_the_work_raises_comes_out(name: str) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        loops.run(fail(), name)
