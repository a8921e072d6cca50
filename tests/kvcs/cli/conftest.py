"""What the tests of the command line share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcs.loops import LOOPS, VARIABLE
from tests.support.cli import Files


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """A working directory with a cache of 3 layers and 2 blocks, and its key."""
    monkeypatch.chdir(tmp_path)
    return Files.make(tmp_path)


@pytest.fixture(params=LOOPS)
def either_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Signals and processes are each loop's own matter: what depends on them is run on both."""
    name: str = request.param
    monkeypatch.setenv(VARIABLE, name)
    return name


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
