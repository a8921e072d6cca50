"""The order of hand-over is the order of departure, packet by packet and in flights."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import chain, groupby
from pathlib import Path
from typing import Any, cast

import pytest
from aioquic.quic.events import StreamDataReceived

from moqt.config import KIB, TransportConfig
from moqt.quic.aioquic_turns import Turn, TurnConnection
from moqt.quic.udp import Datagrams
from tests.support.simulated import BULK, PLAIN, End, Simulation, Weather, is_flying

KINDS = [PLAIN, BULK]
SIZES = (1, 40, 700, 1170, 1200, 5000, 9999, 60_000)


class Ordered(Simulation):
    """A simulation whose client notes of which stream the octets came, in order."""

    def __init__(self, certificates: Path, kind: type[TurnConnection], **options: Any) -> None:
        super().__init__(certificates, client=PLAIN, server=kind, **options)
        self.arrived: list[tuple[int, int]] = []
        self.client.on_event = self._note
        assert isinstance(self.server.quic, TurnConnection)
        self.quic = self.server.quic
        assert is_flying(self.quic) == (kind is BULK)

    def _note(self, event: object) -> None:
        if isinstance(event, StreamDataReceived) and event.data:
            self.arrived.append((event.stream_id, len(event.data)))

    def hand(self, stream_id: int, size: int, fin: bool = False) -> None:
        self.quic.send_stream_data(stream_id, bytes(size), fin)


def joined(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Octets by stream, neighbours of one stream added up."""
    return [
        (stream_id, sum(size for _, size in group))
        for stream_id, group in groupby(parts, key=lambda part: part[0])
    ]


def late(arrived: list[tuple[int, int]], handed: list[tuple[int, int]]) -> int:
    """How many octets came before one that had been handed over before them, at the most."""
    places: dict[int, list[int]] = defaultdict(list)
    for at, stream_id in enumerate(chain.from_iterable([i] * size for i, size in handed)):
        places[stream_id].append(at)
    taken: Counter[int] = Counter()
    most = at = 0
    for stream_id, size in arrived:
        first = taken[stream_id]
        for octet in (first, first + size - 1):
            most = max(most, at + octet - first - places[stream_id][octet])
        taken[stream_id] += size
        at += size
    return most


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_octets_arrive_in_the_order_of_hand_over(
    certificates: Path, kind: type[TurnConnection], seed: int
) -> None:
    """A flight fills the last packet of a turn with what follows in the same stream."""
    dice = random.Random(seed)
    simulation = Ordered(certificates, kind)
    streams = [7 + 4 * number for number in range(6)]
    for stream_id in streams:
        simulation.hand(stream_id, 10)
    handed = [(stream_id, 10) for stream_id in streams]
    for _ in range(dice.randint(10, 60)):
        part = dice.choice(streams), dice.choice(SIZES)
        handed.append(part)
        simulation.hand(*part)
        if dice.random() < 0.2:
            simulation.kick(simulation.server)
            simulation.settle(dice.choice((0.001, 0.03)))
    simulation.kick(simulation.server)
    simulation.run(lambda: sum(s for _, s in simulation.arrived) == sum(s for _, s in handed))
    if kind is PLAIN:
        assert joined(simulation.arrived) == joined(handed)
    else:
        assert late(simulation.arrived, handed) <= len(streams) * 1200


@pytest.mark.parametrize("kind", KINDS)
def test_streams_end_in_the_order_of_hand_over(
    certificates: Path, kind: type[TurnConnection]
) -> None:
    """Of whatever size, with FIN along or after the last octet."""
    dice = random.Random(4)
    simulation = Ordered(certificates, kind)
    streams = [7 + 4 * number for number in range(100)]
    for stream_id in streams:
        late = dice.random() < 0.3
        simulation.hand(stream_id, dice.choice(SIZES), not late)
        if late:
            simulation.hand(stream_id, 0, True)
    simulation.kick(simulation.server)
    simulation.run(lambda: len(simulation.client.finished) == len(streams))
    assert simulation.client.finished == streams


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_lost_goes_before_what_was_never_sent(
    certificates: Path, kind: type[TurnConnection]
) -> None:
    """The second stream is longer than what is under way until the loss is known, so it ends second."""
    simulation = Ordered(certificates, kind)
    lost: list[Any] = []

    def lose(end: End, datagrams: Datagrams) -> Datagrams:
        if end is simulation.client and len(datagrams) > 8 and not lost:
            lost.append(datagrams.pop(3))
        return datagrams

    simulation.mangle = lose
    for stream_id in (7, 11):
        simulation.server.write(stream_id, bytes(300 * KIB))
    simulation.kick(simulation.server)
    simulation.run(lambda: len(simulation.client.finished) == 2)
    assert lost
    assert simulation.client.finished == [7, 11]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fin_is_not_kept_waiting(certificates: Path, kind: type[TurnConnection]) -> None:
    simulation = Ordered(certificates, kind)
    simulation.hand(7, 100)
    simulation.hand(11, 400 * KIB)
    simulation.kick(simulation.server)
    simulation.hand(7, 0, True)
    simulation.run(lambda: 7 in simulation.client.finished)
    assert len(simulation.client.data[11]) < 200 * KIB


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream_id", [3, 1], ids=["control", "request"])
def test_requests_and_control_overtake_data(
    certificates: Path, kind: type[TurnConnection], stream_id: int
) -> None:
    simulation = Ordered(certificates, kind)
    simulation.hand(stream_id, 1)
    simulation.hand(7, 400 * KIB)
    simulation.kick(simulation.server)
    sent = simulation.quic.sent_octets() - 1
    simulation.hand(stream_id, 2000)
    simulation.run(lambda: len(simulation.client.data.get(stream_id, b"")) == 2001)
    simulation.run(lambda: len(simulation.client.data[7]) == 400 * KIB)
    first, before, after, _ = joined(simulation.arrived)
    assert (first, before, after) == ((stream_id, 1), (7, sent), (stream_id, 2000))


@pytest.mark.parametrize("kind", KINDS)
def test_resets_and_stops_overtake_data(certificates: Path, kind: type[TurnConnection]) -> None:
    simulation = Ordered(certificates, kind)
    simulation.client.quic.send_stream_data(0, b"?")
    simulation.kick(simulation.client)
    for stream_id in (7, 11, 15):
        simulation.hand(stream_id, 200 * KIB)
    simulation.kick(simulation.server)
    simulation.settle(0.02)
    simulation.server.reset(15, 5)
    simulation.quic.stop_stream(0, 6)
    simulation.run(lambda: bool(simulation.client.resets and simulation.client.stops))
    assert simulation.client.resets == [(15, 5)]
    assert simulation.client.stops == [(0, 6)]
    assert 11 not in simulation.client.data
    simulation.run(lambda: len(simulation.client.data.get(11, b"")) == 200 * KIB)
    assert 15 not in simulation.client.data


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_the_peer_does_not_take_stops_no_other(
    certificates: Path, kind: type[TurnConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TransportConfig(max_stream_data=24 * KIB, datagram_size=1200)
    simulation = Ordered(certificates, kind, config=config)
    receiving = cast(TurnConnection, simulation.client.quic)
    grant = type(receiving)._write_stream_limits

    def grudge(self: Any, builder: Any, space: Any, stream: Any) -> None:
        if stream.stream_id != 7:
            grant(self, builder, space, stream)

    monkeypatch.setattr(type(receiving), "_write_stream_limits", grudge)
    simulation.hand(7, 30 * KIB)
    later = [11 + 4 * number for number in range(40)]
    for stream_id in later:
        simulation.hand(stream_id, 3000)
        simulation.hand(7, 10)
        simulation.hand(stream_id, 3000, True)
    simulation.kick(simulation.server)
    simulation.run(lambda: len(simulation.client.finished) == len(later))
    assert simulation.client.finished == later
    assert len(simulation.client.data[7]) == 24 * KIB
    simulation.quic._take_stock()
    assert {turn.stream.stream_id for turn in simulation.quic._turns} == {7}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_arrives_through_storms(certificates: Path, kind: type[TurnConnection]) -> None:
    """Nothing is lost or left behind; how it is ordered is up to the weather."""
    weather = Weather(seed=2, loss=0.08, duplicates=0.1, reordering=0.3)
    simulation = Ordered(certificates, kind, weather=weather)
    dice = random.Random(6)
    streams = [7 + 4 * number for number in range(12)]
    expected = dict.fromkeys(streams, 1)
    for stream_id in streams:
        simulation.hand(stream_id, 1)
    for _ in range(200):
        stream_id, size = dice.choice(streams), dice.choice(SIZES)
        expected[stream_id] += size
        simulation.hand(stream_id, size)
        if dice.random() < 0.3:
            simulation.kick(simulation.server)
            simulation.settle(0.005)
    for stream_id in streams:
        simulation.hand(stream_id, 0, True)
    simulation.kick(simulation.server)
    simulation.run(lambda: len(simulation.client.finished) == len(streams))
    assert {i: len(d) for i, d in simulation.client.data.items()} == expected
    simulation.quic._take_stock()
    assert not simulation.quic._turns


def test_what_follows_in_the_same_stream_is_the_same_turn(certificates: Path) -> None:
    simulation = Ordered(certificates, PLAIN)
    for stream_id, size in ((7, 10), (7, 20), (11, 5), (7, 1)):
        simulation.hand(stream_id, size)
    turns: list[Turn] = list(simulation.quic._turns)
    assert [(turn.stream.stream_id, turn.stop) for turn in turns] == [(7, 30), (11, 5), (7, 31)]
