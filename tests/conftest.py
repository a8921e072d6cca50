"""What tests of both packages share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvcs.certs import make
from moqt.quic.base import Backend
from tests.support import backends

# No clock to fail by on a busy machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

collect_ignore = ["interop", "soak"]  # `make interop` and `make soak` name them


def pytest_addoption(parser: pytest.Parser) -> None:
    backends.add_option(parser)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs what takes `quic_name` once for each backend of this run."""
    selected = backends.selected(metafunc.config)
    if "quic_name" in metafunc.fixturenames:
        metafunc.parametrize("quic_name", selected or backends.DEFAULT, scope="session")
    if "socket_name" in metafunc.fixturenames:
        metafunc.parametrize("socket_name", selected or backends.SOCKETS, scope="session")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests of an optional backend itself import its library, and so run only where it is asked for."""
    name = backends.OWN_TESTS.get(collection_path.name)
    return True if name is not None and name not in backends.selected(config) else None


@pytest.fixture
def backend(quic_name: str, request: pytest.FixtureRequest) -> Backend:
    """A backend of this run. What it cannot do is listed in tests/support/backends.py."""
    excuse = backends.excuse(quic_name, request.node.originalname)
    if excuse is not None:
        pytest.skip(excuse)
    return backends.build(quic_name)


@pytest.fixture
def sockets(socket_name: str) -> Backend:
    """A backend of this run for tests of whole sessions over UDP; the default one unless others are asked for."""
    return backends.build(socket_name)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca, server and client, the server's for localhost and both loopback addresses."""
    directory = tmp_path_factory.mktemp("certificates")
    make(directory)
    return directory
