"""Long runs. `make soak` runs them, `make test` does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Note = Callable[[str, float, str], None]
"""Title, figure, unit or limit."""
FIGURES = pytest.StashKey[list[tuple[str, float, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale", type=float, default=1.0, metavar="X", help="a part of the work, to try it out"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The table, that of a run which failed included."""
    scale = config.getoption("--scale")
    terminalreporter.section("soak" if scale == 1 else f"soak, {scale:g} of it")
    for title, figure, unit in config.stash[FIGURES]:
        terminalreporter.write_line(f"{title:60}{figure:10.1f} {unit}")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Adds a line to the table."""
    figures = request.config.stash[FIGURES]
    return lambda title, figure, unit: figures.append((title, figure, unit))


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> float:
    """How much of the work this run does; 1 is all."""
    part: float = request.config.getoption("--scale")
    return part
