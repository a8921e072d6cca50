"""The bulk path against the library's own, packet by packet, over a simulated link: what one does the other does."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.logger import QuicLogger
from aioquic.tls import CipherSuite, Epoch

from moqt.config import KIB, TransportConfig
from moqt.quic import aioquic as backend
from moqt.quic import bulk
from moqt.quic.aioquic_connection import AioquicConnection
from moqt.quic.aioquic_path import PathConnection
from moqt.quic.bulk import BulkConnection
from tests.support.quic import join
from tests.support.simulated import (
    BULK,
    ELSEWHERE,
    PLAIN,
    STOCK,
    Simulation,
    Weather,
    is_flying,
)

Kind = type[QuicConnection]
KINDS: tuple[Kind, ...] = (BULK, PLAIN, STOCK)
ALL_PAIRS = list(product(KINDS, KINDS))
MOVING_PAIRS = list(product(KINDS, (BULK, PLAIN)))
OWN_PAIRS = list(product((BULK, PLAIN), (BULK, PLAIN)))
CLEAN = Weather()
ROUGH = Weather(seed=3, loss=0.02, duplicates=0.02, reordering=0.05, corruption=0.01)
TIGHT = TransportConfig(max_data=64 * KIB, max_stream_data=24 * KIB, datagram_size=1200)


def content(seed: int, size: int = 300_000) -> bytes:
    return random.Random(seed).randbytes(size)


def exchange(simulation: Simulation, streams: int = 3) -> dict[int, bytes]:
    """Both ends send streams of their own; all is to arrive."""
    sent: dict[int, bytes] = {}
    for number in range(streams):
        for end, first in ((simulation.client, 2), (simulation.server, 3)):
            stream_id = first + 4 * number
            sent[stream_id] = content(stream_id)
            end.write(stream_id, sent[stream_id])
    for end in simulation.ends:
        simulation.kick(end)
    return sent


def finish(simulation: Simulation, sent: dict[int, bytes]) -> None:
    """Waits for all of it and compares."""
    half = len(sent) // 2
    simulation.run(lambda: all(len(end.finished) == half for end in simulation.ends))
    assert {**simulation.client.data, **simulation.server.data} == sent


def halfway(simulation: Simulation, sent: dict[int, bytes]) -> None:
    third = sum(map(len, sent.values())) // 6
    simulation.run(lambda: all(sum(map(len, end.data.values())) > third for end in simulation.ends))


# The same octets.


@pytest.mark.parametrize("weather", [CLEAN, ROUGH], ids=["clean", "rough"])
@pytest.mark.parametrize(("client", "server"), ALL_PAIRS)
def test_everything_arrives_in_order(
    certificates: Path, client: Kind, server: Kind, weather: Weather
) -> None:
    simulation = Simulation(certificates, client=client, server=server, weather=weather)
    finish(simulation, exchange(simulation))


@pytest.mark.parametrize("weather", [CLEAN, ROUGH], ids=["clean", "rough"])
def test_what_was_acknowledged_is_held_no_longer(certificates: Path, weather: Weather) -> None:
    """Written in turns of all sizes, whose ends lie inside packets."""
    simulation = Simulation(certificates, client=PLAIN, server=BULK, weather=weather)
    dice, streams = random.Random(5), (7, 11, 15)
    for stream_id in (3, *streams):  # they are opened in order
        simulation.server.quic.send_stream_data(stream_id, b"first")
    for _ in range(200):
        size = dice.randrange(1, 4000)
        simulation.server.quic.send_stream_data(dice.choice(streams), bytes(size))
    senders = [simulation.server.quic._streams[stream_id].sender for stream_id in streams]
    simulation.kick(simulation.server)
    simulation.run(lambda: all(s._buffer_start == s._buffer_stop for s in senders))
    assert not any(sender._chunks for sender in senders)  # type: ignore[attr-defined]
    assert not any(len(sender._acked) for sender in senders)


@pytest.mark.parametrize("seed", range(8))
def test_everything_arrives_through_storms(certificates: Path, seed: int) -> None:
    weather = Weather(seed=seed, loss=0.08, duplicates=0.1, reordering=0.3, corruption=0.03)
    simulation = Simulation(certificates, weather=weather)
    finish(simulation, exchange(simulation))


@pytest.mark.parametrize("weather", [CLEAN, ROUGH], ids=["clean", "rough"])
@pytest.mark.parametrize(("client", "server"), [(BULK, PLAIN), (PLAIN, BULK), (BULK, BULK)])
def test_limits_are_kept_at_every_moment(
    certificates: Path, client: Kind, server: Kind, weather: Weather
) -> None:
    """The simulation checks the books of both ends at every step."""
    simulation = Simulation(
        certificates, client=client, server=server, weather=weather, config=TIGHT
    )
    finish(simulation, exchange(simulation))


@pytest.mark.parametrize("sender", [BULK, PLAIN])
def test_without_credit_nothing_more_is_sent(certificates: Path, sender: Kind) -> None:
    simulation = Simulation(certificates, client=sender, server=BULK, config=TIGHT)
    simulation.server.consumes = False
    for stream_id in (2, 6, 10, 14):
        simulation.client.write(stream_id, content(stream_id, 20_000))
    simulation.kick(simulation.client)
    simulation.settle()
    received = [len(simulation.server.data[stream_id]) for stream_id in (2, 6, 10, 14)]
    assert sum(received) == TIGHT.max_data


# The same frames, the same pace.


def frames_received(logger: QuicLogger) -> tuple[Counter[str], Counter[tuple[int, int]], set[int]]:
    """Kinds of frames but for STREAM and PADDING, how often each octet came, streams with FIN."""
    kinds: Counter[str] = Counter()
    octets: Counter[tuple[int, int]] = Counter()
    ended = set()
    for event in logger.to_dict()["traces"][0]["events"]:
        if event["name"] != "transport:packet_received":
            continue
        for frame in event["data"]["frames"]:
            if frame["frame_type"] != "stream":
                kinds[frame["frame_type"]] += frame["frame_type"] not in {"padding", "ack"}
                continue
            stream_id, offset = frame["stream_id"], frame["offset"]
            marks = range(-(-offset // 100) * 100, offset + frame["length"], 100)
            octets.update((stream_id, at) for at in marks)
            if frame["fin"]:
                ended.add(stream_id)
    return +kinds, octets, ended


def test_the_same_frames_are_on_the_wire(certificates: Path) -> None:
    seen = []
    for sender in (PLAIN, BULK):
        logger = QuicLogger()
        simulation = Simulation(certificates, client=STOCK, server=sender, logger=logger)
        for number in range(3):
            simulation.server.write(3 + 4 * number, content(number, 200_000 + number))
        simulation.kick(simulation.server)
        simulation.run(lambda s=simulation: len(s.client.finished) == 3)  # type: ignore[misc]
        seen.append(frames_received(logger))
    (plain_kinds, plain_octets, plain_ended), (kinds, octets, ended) = seen
    assert kinds.keys() == plain_kinds.keys()
    assert octets == plain_octets
    assert set(octets.values()) == {1}
    assert ended == plain_ended == {3, 7, 11}


@pytest.mark.parametrize("delay", [0.002, 0.02])
def test_the_window_grows_as_fast_and_no_faster(certificates: Path, delay: float) -> None:
    """Slow start on a clean link: same time, same window, same number of packets but for a few."""
    ends = []
    for sender in (PLAIN, BULK):
        simulation = Simulation(
            certificates, client=PLAIN, server=sender, weather=Weather(delay=delay)
        )
        simulation.server.write(3, content(1, 2_000_000))
        simulation.kick(simulation.server)
        simulation.run(lambda s=simulation: s.client.finished == [3])  # type: ignore[misc]
        ends.append((simulation.now - 1000, simulation.server.quic))
    (plain_time, plain), (time, quic) = ends
    assert time == pytest.approx(plain_time, rel=0.1)
    assert quic._loss.congestion_window == pytest.approx(plain._loss.congestion_window, rel=0.1)
    assert quic._packet_number == pytest.approx(plain._packet_number, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_loss_makes_both_slower_alike(certificates: Path, seed: int) -> None:
    times = []
    for sender in (PLAIN, BULK):
        weather = Weather(seed=seed, loss=0.03)
        simulation = Simulation(certificates, client=PLAIN, server=sender, weather=weather)
        simulation.server.write(3, content(1, 1_000_000))
        simulation.kick(simulation.server)
        simulation.run(lambda s=simulation: s.client.finished == [3])  # type: ignore[misc]
        times.append(simulation.now - 1000)
    assert times[1] > 0.6 * times[0], "never more aggressive"
    assert times[1] < 1.7 * times[0]


def test_a_small_stream_is_not_kept_waiting_by_large_ones(certificates: Path) -> None:
    simulation = Simulation(certificates)
    for number in range(1, 9):
        simulation.server.write(3 + 4 * number, content(number, 500_000))
    simulation.kick(simulation.server)
    simulation.run(lambda: sum(map(len, simulation.client.data.values())) > 1_000_000)
    before, written = sum(map(len, simulation.client.data.values())), simulation.now
    simulation.server.quic.send_stream_data(
        simulation.server.quic.get_next_available_stream_id(), b"urgent", True
    )
    simulation.kick(simulation.server)
    simulation.run(lambda: 1 in simulation.client.finished)
    ahead = sum(map(len, simulation.client.data.values())) - before
    assert simulation.now - written < 5 * simulation.weather.delay
    assert ahead <= 2 * simulation.server.quic._loss.congestion_window


# What happens in the middle.


@pytest.mark.parametrize("weather", [CLEAN, ROUGH], ids=["clean", "rough"])
@pytest.mark.parametrize(("client", "server"), ALL_PAIRS)
def test_keys_are_updated_in_the_middle(
    certificates: Path, client: Kind, server: Kind, weather: Weather
) -> None:
    simulation = Simulation(certificates, client=client, server=server, weather=weather)
    sent = exchange(simulation)
    for number, end in enumerate((simulation.client, simulation.server, simulation.client)):
        simulation.run(
            lambda n=number: all(  # type: ignore[misc]
                sum(map(len, e.data.values())) > 20_000 + 150_000 * n for e in simulation.ends
            )
        )
        end.quic.request_key_update()
        simulation.kick(end)
    finish(simulation, sent)
    phases = {end.quic._cryptos[Epoch.ONE_RTT].recv.key_phase for end in simulation.ends}
    assert phases == {1}


@pytest.mark.parametrize("weather", [CLEAN, ROUGH], ids=["clean", "rough"])
@pytest.mark.parametrize(("client", "server"), MOVING_PAIRS)
def test_a_client_moves_in_the_middle(
    certificates: Path, client: Kind, server: Kind, weather: Weather
) -> None:
    simulation = Simulation(certificates, client=client, server=server, weather=weather)
    sent = exchange(simulation)
    halfway(simulation, sent)
    simulation.client_address = ELSEWHERE
    finish(simulation, sent)
    path = simulation.server.quic._network_paths[0]
    assert (path.addr, path.is_validated) == (ELSEWHERE, True)


@pytest.mark.parametrize(("client", "server"), OWN_PAIRS)
def test_silence_ends_a_connection(certificates: Path, client: Kind, server: Kind) -> None:
    config = TransportConfig(idle_timeout=3.0, datagram_size=1200)
    simulation = Simulation(certificates, client=client, server=server, config=config)
    finish(simulation, exchange(simulation))
    last = simulation.now
    simulation.run(lambda: all(end.ended for end in simulation.ends))
    assert 2.9 < simulation.now - last < 3.2
    for end in simulation.ends:
        assert end.ended is not None
        assert end.ended.reason_phrase == "Idle timeout"


@pytest.mark.parametrize(("client", "server"), OWN_PAIRS)
def test_a_close_in_the_middle(certificates: Path, client: Kind, server: Kind) -> None:
    simulation = Simulation(certificates, client=client, server=server)
    halfway(simulation, exchange(simulation))
    simulation.server.quic.close(error_code=7, reason_phrase="enough")
    simulation.kick(simulation.server)
    simulation.run(lambda: simulation.client.ended is not None)
    ended = simulation.client.ended
    assert ended is not None
    assert (ended.error_code, ended.reason_phrase) == (7, "enough")
    simulation.server.queue.clear()
    simulation.run(lambda: simulation.server.ended is not None)


@pytest.mark.parametrize("weather", [CLEAN, ROUGH], ids=["clean", "rough"])
@pytest.mark.parametrize(("client", "server"), OWN_PAIRS)
def test_streams_are_reset_and_stopped_in_the_middle(
    certificates: Path, client: Kind, server: Kind, weather: Weather
) -> None:
    simulation = Simulation(certificates, client=client, server=server, weather=weather)
    sent = exchange(simulation)
    simulation.run(lambda: 2 in simulation.server.data and 3 in simulation.client.data)
    simulation.client.reset(2, 21)
    simulation.client.quic.stop_stream(3, 22)
    simulation.kick(simulation.client)
    simulation.run(lambda: len(simulation.server.finished) == len(simulation.client.finished) == 2)
    simulation.settle()
    assert simulation.server.resets == [(2, 21)]
    assert (3, 22) in simulation.server.stops
    assert simulation.client.resets == [(3, 22)]
    for stream_id in (6, 10):
        assert simulation.server.data[stream_id] == sent[stream_id]
        assert simulation.client.data[stream_id + 1] == sent[stream_id + 1]
    assert 2 not in simulation.client.quic._streams
    assert 3 not in simulation.server.quic._streams


# When it is off.


def test_another_cipher_keeps_flights_on_the_ground(certificates: Path) -> None:
    simulation = Simulation(certificates, ciphers=[CipherSuite.CHACHA20_POLY1305_SHA256])
    assert not any(is_flying(end.quic) for end in simulation.ends)
    finish(simulation, exchange(simulation))


def test_another_congestion_control_keeps_flights_on_the_ground(certificates: Path) -> None:
    simulation = Simulation(certificates)
    assert all(is_flying(end.quic) for end in simulation.ends)
    stock = Simulation(certificates, client=STOCK, server=STOCK)
    stock.client.quic._loss._cc.congestion_window = 100_000
    simulation.client.quic._loss._cc = stock.client.quic._loss._cc
    stock.client.quic._loss._cc.bytes_in_flight = 0
    assert not is_flying(simulation.client.quic)


def test_the_setting_turns_it_off(certificates: Path) -> None:
    kinds = {
        on: type(bulk.connection(TransportConfig(bulk=on), configuration=QuicConfiguration()))
        for on in (True, False)
    }
    assert kinds == {True: BulkConnection, False: PathConnection}


def test_the_installed_library_is_as_it_is_known() -> None:
    assert bulk.lacking() == ()


def test_a_library_that_differs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CONNECTION", ("_no_such_thing", *bulk.CONNECTION))
    bulk.lacking.cache_clear()
    try:
        assert bulk.lacking() == ("_no_such_thing",)
        kind = type(bulk.connection(TransportConfig(), configuration=QuicConfiguration()))
        assert kind is PathConnection
    finally:
        bulk.lacking.cache_clear()


async def test_the_backend_uses_it_at_both_ends(certificates: Path) -> None:
    async with join(backend, certificates) as ends:
        for connection in (ends.client, ends.server):
            assert isinstance(connection, AioquicConnection)
            assert isinstance(connection._quic, BulkConnection)
    off = TransportConfig(bulk=False)
    async with join(backend, certificates, client=off, server=off) as ends:
        for connection in (ends.client, ends.server):
            assert isinstance(connection, AioquicConnection)
            assert not isinstance(connection._quic, BulkConnection)


def test_frames_of_one_stream_are_joined(certificates: Path) -> None:
    """Fewer calls to the application."""
    simulation = Simulation(certificates)
    sizes: list[int] = []

    def note(event: object) -> None:
        if isinstance(event, StreamDataReceived):
            sizes.append(len(event.data))

    simulation.client.on_event = note
    simulation.server.write(3, content(1, 1_000_000))
    simulation.kick(simulation.server)
    simulation.run(lambda: simulation.client.finished == [3])
    assert max(sizes) > 5000
    assert sum(sizes) == 1_000_000
