"""Scenarios with MOQT implementations of others. `make interop` runs them, `make test` does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.harness import aiomoqt_relay, kvcs_relay, missing, moqrs_server
from tests.interop.results import Result, table, write

RESULTS = pytest.StashKey[list[Result]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--page", type=Path, help="the page whose table of results is replaced")
    parser.addoption(
        "--rounds", type=int, default=1, help="how often the conformance client runs its cases"
    )


def pytest_configure(config: pytest.Config) -> None:
    excuse = missing()
    if excuse is not None:
        raise pytest.UsageError(excuse)
    config.stash[RESULTS] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # pluggy's wrappers are generators
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if isinstance(item, pytest.Function) and (report.when == "call" or report.failed):
        said = (item.function.__doc__ or item.name).strip().splitlines()[0].rstrip(".")
        if hasattr(item, "callspec"):
            said = f"{said} ({', '.join(item.callspec._idlist)})"
        found = item.config.stash[RESULTS]
        found[:] = [r for r in found if r.scenario != said]
        found.append(Result(item.module.PEER, said, report.passed))
    return report  # type: ignore[return-value]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    results = config.stash[RESULTS]
    terminalreporter.section("interoperation")
    terminalreporter.write_line(table(results))
    page = config.getoption("--page")
    if page is not None:
        write(page, results)


@pytest.fixture(scope="module")
def relay(certificates: Path) -> Iterator[str]:
    """The URL of aiomoqt's relay."""
    with aiomoqt_relay(certificates) as url:
        yield url


@pytest.fixture(scope="session")
def ours(certificates: Path) -> Iterator[str]:
    """The URL of `kvcs relay`."""
    with kvcs_relay(certificates) as url:
        yield url


@pytest.fixture
def moqrs(certificates: Path) -> Iterator[str]:
    """The URL of a moq-rs server."""
    with moqrs_server(certificates) as url:
        yield url


@pytest.fixture(scope="session")
def ca(certificates: Path) -> str:
    """Whom every client trusts."""
    return str(certificates / "ca.pem")
