"""Datagram sizes, key updates and the hint for watermarks, over a simulated path."""

from __future__ import annotations

from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.tls import Epoch

from moqt.config import MIB, TransportConfig
from moqt.quic import aioquic_path
from moqt.quic.aioquic_path import PathConnection
from moqt.quic.aioquic_private import CappedReno, SoftPacer
from moqt.quic.datagram_size import LARGEST_DATAGRAM, SMALLEST_DATAGRAM
from moqt.quic.udp import Address
from tests.support.simulated import BULK, ELSEWHERE, PLAIN, STOCK, Simulation, Weather

Kind = type[QuicConnection]
ANY_SIZE = TransportConfig()


@pytest.fixture(autouse=True)
def first_hop(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """What the system says a path carries."""
    carried: dict[str, int | None] = {"octets": 65000}

    def largest(_: Address) -> int | None:
        return carried["octets"]

    monkeypatch.setattr(aioquic_path, "largest_payload", largest)
    return carried


def transfer(simulation: Simulation, octets: int = 400_000) -> None:
    """Each end sends a stream; a probe takes a round trip, a lost one a little more."""
    for end, kind in zip(simulation.ends, (0, 1), strict=True):
        stream_id = end.quic.get_next_available_stream_id(is_unidirectional=True)
        assert stream_id & 1 == kind
        end.write(stream_id, bytes(octets))
    before = [len(end.finished) for end in simulation.ends]
    for end in simulation.ends:
        simulation.kick(end)
    simulation.run(
        lambda: all(len(end.finished) > n for end, n in zip(simulation.ends, before, strict=True))
    )


@pytest.mark.parametrize("kind", [PLAIN, BULK])
@pytest.mark.parametrize(
    ("config", "hop", "carried", "size"),
    [
        (ANY_SIZE, 65000, 65000, LARGEST_DATAGRAM),
        (ANY_SIZE, 65000, 1480, 1452),
        (ANY_SIZE, 1472, 1472, 1472),
        (ANY_SIZE, None, 1472, 1452),
        (TransportConfig(datagram_size=1452), 65000, 65000, 1452),
        (TransportConfig(datagram_size=1200), 65000, 65000, 1200),
        (ANY_SIZE, 1472, 1300, 1200),
    ],
)
def test_datagrams_grow_to_what_the_path_carries(
    certificates: Path,
    first_hop: dict[str, int | None],
    kind: Kind,
    config: TransportConfig,
    hop: int | None,
    carried: int,
    size: int,
) -> None:
    first_hop["octets"] = hop
    simulation = Simulation(
        certificates, client=kind, server=kind, weather=Weather(limit=carried), config=config
    )
    for _ in range(3):
        transfer(simulation)
    for end in simulation.ends:
        quic = end.quic
        assert quic._max_datagram_size == size
        assert quic._loss._pacer._max_datagram_size == size
        control = quic._loss._cc
        assert isinstance(control, CappedReno)
        assert control._max_datagram_size == size
        assert control._congestion_recovery_start_time == 0.0, "lost probes are no congestion"
        assert isinstance(quic._loss._pacer, SoftPacer)
        assert end.largest <= (hop or 1452)


@pytest.mark.parametrize("kind", [PLAIN, BULK])
def test_a_library_that_knows_nothing_of_it_takes_large_datagrams(
    certificates: Path, kind: Kind
) -> None:
    simulation = Simulation(certificates, client=STOCK, server=kind, config=ANY_SIZE)
    transfer(simulation)
    assert simulation.server.quic._max_datagram_size == LARGEST_DATAGRAM


@pytest.mark.parametrize("kind", [PLAIN, BULK])
def test_a_path_that_begins_to_swallow_large_datagrams(certificates: Path, kind: Kind) -> None:
    weather = Weather()
    simulation = Simulation(
        certificates, client=kind, server=kind, weather=weather, config=ANY_SIZE
    )
    transfer(simulation)
    assert simulation.server.quic._max_datagram_size == LARGEST_DATAGRAM
    weather.limit = 1400
    transfer(simulation)
    for end in simulation.ends:
        assert end.quic._max_datagram_size == SMALLEST_DATAGRAM
        assert end.ended is None


@pytest.mark.parametrize("kind", [PLAIN, BULK])
def test_a_new_path_is_searched_anew(
    certificates: Path, first_hop: dict[str, int | None], kind: Kind
) -> None:
    simulation = Simulation(certificates, client=kind, server=kind, config=ANY_SIZE)
    transfer(simulation)
    first_hop["octets"] = 1472
    simulation.client_address = ELSEWHERE
    simulation.weather.limit = 1472
    transfer(simulation)
    assert simulation.server.quic._max_datagram_size == 1472


def test_the_system_says_that_a_datagram_is_too_large(certificates: Path) -> None:
    simulation = Simulation(certificates, config=ANY_SIZE)
    transfer(simulation)
    quic = simulation.server.quic
    assert isinstance(quic, PathConnection)
    for size in (8952, 1452, 1200):
        quic.shrink_datagrams()
        assert quic._max_datagram_size == SMALLEST_DATAGRAM
        quic.shrink_datagrams()
        for _ in range(2):
            transfer(simulation)
        assert quic._max_datagram_size == size


def test_nothing_shrinks_below_what_every_path_carries() -> None:
    quic = PathConnection(configuration=QuicConfiguration())
    quic.set_up(TransportConfig())
    pacer = quic._loss._pacer
    quic.shrink_datagrams()
    assert quic._max_datagram_size == SMALLEST_DATAGRAM
    assert quic._loss._pacer is pacer
    assert quic._largest == LARGEST_DATAGRAM


@pytest.mark.parametrize("kind", [PLAIN, BULK])
def test_keys_are_renewed_in_time(
    certificates: Path,
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "moqt.quic.aioquic_path")
    monkeypatch.setattr(aioquic_path, "PACKETS_PER_KEY", 300)
    config = TransportConfig(datagram_size=1200)
    simulation = Simulation(certificates, client=kind, server=kind, config=config)
    phases = []
    for _ in range(6):
        transfer(simulation)
        phases.append(simulation.server.quic._cryptos[Epoch.ONE_RTT].send.key_phase)
        assert phases[-1] == simulation.client.quic._cryptos[Epoch.ONE_RTT].recv.key_phase
    assert set(phases) == {0, 1}
    assert "asked for new keys after" in caplog.text
    used = simulation.server.quic
    assert isinstance(used, PathConnection)
    assert used._packet_number - used._key_since <= 300 + 100


def test_new_keys_are_asked_for_long_before_the_limit_of_the_cipher() -> None:
    assert aioquic_path.PACKETS_PER_KEY <= 1 << 22


def test_what_the_path_holds(certificates: Path) -> None:
    quic = PathConnection(configuration=QuicConfiguration())
    assert quic.bandwidth_delay() is None
    simulation = Simulation(certificates, config=ANY_SIZE)
    transfer(simulation)
    known = simulation.server.quic
    assert isinstance(known, PathConnection)
    holds = known.bandwidth_delay()
    assert holds is not None
    assert 0 < holds <= known._loss.congestion_window
    known._loss._rtt_smoothed = 4 * known._loss._rtt_min
    assert known.bandwidth_delay() == known._loss.congestion_window // 4


@pytest.mark.parametrize(("before", "after"), [(1200, 16000), (16000, 1200)])
def test_the_window_and_the_size_of_datagrams(before: int, after: int) -> None:
    control = CappedReno(max_datagram_size=before)
    control.congestion_window = 3000
    control.resize(after)
    assert control.congestion_window == max(3000, 2 * after)
    control.congestion_window = 2 * MIB
    control.resize(after)
    assert control.congestion_window == (2 * MIB if after > 8192 else MIB)


@pytest.mark.parametrize(("size", "window"), [(1200, 12_000), (1452, 14_520), (16_000, 32_000)])
def test_the_initial_window_follows_the_datagram_size(size: int, window: int) -> None:
    """RFC 9002 section 7.2; what grew meanwhile stays, and after a loss nothing is added."""
    control = CappedReno(max_datagram_size=1200)
    control.congestion_window += 700
    control.resize(size)
    assert control.congestion_window == window + 700
    for again in (1200, size):
        control.resize(again)
    assert control.congestion_window == max(window + 700, 2 * size), "it is granted once"
    control.resize(1200)
    control.ssthresh = 8000
    control.congestion_window = 8000
    control.resize(1452)
    assert control.congestion_window == 8000
