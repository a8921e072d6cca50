"""The network in memory: exact steps, and faults on demand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from moqt.config import KIB, TransportConfig
from moqt.errors import LocalError
from moqt.quic.base import ClientTls, Connection, ConnectionLost
from moqt.quic.memory import MemoryBackend, Network, pair
from tests.support.quic import ALPN, Accepted, Recorder, server_tls


def joined(
    *,
    server: TransportConfig = TransportConfig(),  # noqa: B008 - frozen
    budget: int | None = None,
    rechunk: int | None = None,
) -> tuple[Network, Recorder, Recorder]:
    near, far = Accepted(), Accepted()
    network = pair(near, far, server_config=server, budget=budget, rechunk=rechunk)
    return network, near.recorders[0], far.recorders[0]


def started(connection: Connection, data: bytes, *, fin: bool = False, bidi: bool = False) -> int:
    stream_id = connection.open_stream(bidirectional=bidi)
    assert stream_id is not None
    connection.send(stream_id, data, fin)
    connection.flush()
    return stream_id


def test_a_step_is_half_a_round_trip() -> None:
    network, at_client, at_server = joined()
    at_server.echo = True
    stream_id = started(network.client, b"question", fin=True, bidi=True)
    assert at_server.data == {}
    assert network.step()
    assert bytes(at_server.data[stream_id]) == b"question"
    assert at_client.data == {}
    assert network.step()
    assert bytes(at_client.data[stream_id]) == b"question"
    network.run()
    assert not network.step()


def test_both_directions_move_at_once() -> None:
    network, at_client, at_server = joined()
    started(network.client, b"from the client", bidi=True)
    started(network.server, b"from the server", bidi=True)
    assert network.step()
    assert bytes(at_server.data[0]) == b"from the client"
    assert bytes(at_client.data[1]) == b"from the server"


def test_nothing_leaves_without_flush() -> None:
    network, _, at_server = joined()
    stream_id = network.client.open_stream(bidirectional=False)
    assert stream_id is not None
    network.client.send(stream_id, b"kept")
    assert not network.step()
    assert network.client.unsent() == 4
    network.client.flush()
    assert network.step()
    assert network.client.unsent() == 0
    assert bytes(at_server.data[stream_id]) == b"kept"


def test_steps_are_counted() -> None:
    network, _, _ = joined()
    started(network.client, b"one")
    steps = network.run()
    assert steps == network.steps == 1
    assert network.run() == 0


def test_a_budget_is_shared_by_the_streams_and_ends_no_stream_early() -> None:
    network, _, at_server = joined(budget=40 * KIB)
    for _ in range(4):
        started(network.client, bytes(30 * KIB), fin=True)
    assert network.client.unsent() == 120 * KIB
    for step in range(1, 4):
        assert network.step()
        assert at_server.received == step * 40 * KIB
        assert network.client.unsent() == (3 - step) * 40 * KIB
    assert len(at_server.finished) == 4


def test_the_order_of_sending_is_round_robin() -> None:
    network, _, at_server = joined(budget=64 * KIB)
    for _ in range(2):
        started(network.client, bytes(100 * KIB))
    network.step()
    assert [len(at_server.data[stream_id]) for stream_id in (2, 6)] == [32 * KIB, 32 * KIB]


def test_credit_takes_a_step_to_come_back() -> None:
    network, at_client, at_server = joined(server=TransportConfig(max_streams_uni=1))
    started(network.client, b"only", fin=True)
    assert network.client.open_stream(bidirectional=False) is None
    network.step()
    assert len(at_server.finished) == 1
    assert network.client.open_stream(bidirectional=False) is None
    calls = at_client.calls
    network.step()
    assert network.client.open_stream(bidirectional=False) == 6
    assert at_client.calls > calls, "writable tells of it"


def test_a_stalled_end_sends_neither_data_nor_credit() -> None:
    config = TransportConfig(max_data=16 * KIB)
    network, _, at_server = joined(server=config)
    network.stall(network.server)
    stream_id = started(network.client, bytes(64 * KIB), fin=True)
    network.run()
    assert len(at_server.data[stream_id]) == 16 * KIB
    assert network.client.unsent() == 48 * KIB
    network.stall(network.client)
    network.resume(network.server)
    network.run()
    assert len(at_server.data[stream_id]) == 16 * KIB
    network.resume(network.client)
    network.run()
    assert at_server.finished == [stream_id]


def test_a_close_out_of_a_stall_arrives_after_it() -> None:
    network, at_client, at_server = joined()
    network.stall(network.client)
    network.client.close(3, "later")
    network.run()
    assert at_client.lost == [ConnectionLost(3, "later", False, True)]
    assert at_server.lost == []
    network.resume(network.client)
    network.run()
    assert at_server.lost == [ConnectionLost(3, "later", True, True)]


def test_a_reset_on_demand_loses_what_was_not_sent() -> None:
    network, _, at_server = joined(budget=10)
    stream_id = started(network.client, bytes(100), fin=True)
    network.step()
    network.inject_reset(network.client, stream_id, 0x7)
    network.run()
    assert len(at_server.data[stream_id]) == 10
    assert at_server.resets == [(stream_id, 0x7)]
    assert at_server.finished == []


def test_a_reset_on_demand_before_the_header() -> None:
    network, _, at_server = joined()
    stream_id = started(network.client, b"header")
    network.inject_reset(network.client, stream_id, 0x7)
    network.run()
    assert at_server.data == {}
    assert at_server.resets == [(stream_id, 0x7)]


def test_a_datagram_on_demand() -> None:
    network, at_client, _ = joined()
    network.inject_datagram(network.client, b"frame")
    assert at_client.datagrams == [b"frame"]


def test_a_cut_loses_the_connection_on_both_sides_once() -> None:
    network, at_client, at_server = joined()
    stream_id = started(network.client, b"never arrives")
    network.cut()
    network.cut()
    network.client.send(stream_id, b"more")
    network.client.flush()
    network.client.close(1)
    assert network.run() == 0
    expected = [ConnectionLost(1, "Idle timeout", False, False)]
    assert at_client.lost == at_server.lost == expected
    assert at_server.data == {}
    network.inject_datagram(network.client, b"too late")
    assert at_client.datagrams == []


def test_pieces_are_random_but_repeatable_and_whole() -> None:
    def pieces(seed: int) -> tuple[list[int], list[bytes]]:
        network, _, at_server = joined(rechunk=seed)
        sent = [bytes([number]) * 5000 for number in range(8)]
        for content in sent:
            started(network.client, content, fin=True)
        network.run()
        assert [bytes(data) for _, data in sorted(at_server.data.items())] == sent
        assert len(at_server.finished) == 8
        return at_server.pieces, sent

    assert pieces(1) == pieces(1)
    assert pieces(1) != pieces(2)
    assert len(pieces(1)[0]) > 16


class Pong:
    """Answers for ever."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.datagrams: list[bytes] = []

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        self.connection.send(stream_id, data)

    def stream_reset(self, stream_id: int, code: int) -> None: ...
    def stop_sending(self, stream_id: int, code: int) -> None: ...
    def datagram(self, data: bytes) -> None: ...
    def writable(self) -> None: ...
    def connection_lost(self, lost: ConnectionLost) -> None: ...


def test_two_ends_that_never_rest_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moqt.quic.memory.MAX_STEPS", 100)
    network = pair(Pong, Pong)
    started(network.client, b"ping", bidi=True)
    with pytest.raises(LocalError, match="not quiet after 100 steps"):
        network.run()


def test_only_the_ends_of_a_network_are_known_to_it() -> None:
    network, _, _ = joined()
    other, _, _ = joined()
    with pytest.raises(LocalError, match="not a connection of this network"):
        network.stall(other.client)


async def test_the_loop_can_turn_the_network() -> None:
    near, far = Accepted(), Accepted()
    network = pair(near, far, auto=True)
    far.recorders[0].echo = True
    stream_id = started(network.client, b"question", fin=True, bidi=True)
    await near.recorders[0].until(lambda: near.recorders[0].finished == [stream_id])
    network.client.close(0)
    await network.client.wait_closed()
    await network.server.wait_closed()


async def test_a_backend_keeps_its_networks_for_faults(certificates: Path) -> None:
    backend = MemoryBackend(budget=1000)
    near, far = Accepted(), Accepted()
    config = TransportConfig()
    listener = await backend.listen(
        "cache.example", 4443, alpn=[ALPN], tls=server_tls(certificates), config=config, handler=far
    )
    assert listener.address == ("cache.example", 4443)
    client = await backend.connect(
        "cache.example", 4443, alpn=["other", ALPN], tls=ClientTls(), config=config, handler=near
    )
    assert client.alpn == ALPN
    assert backend.networks[0].client is client
    backend.networks[0].cut()
    assert near.recorders[0].lost[0].reason == "Idle timeout"
    listener.close()
    await listener.wait_closed()
    again = await backend.listen(
        "cache.example", 4443, alpn=[ALPN], tls=server_tls(certificates), config=config, handler=far
    )
    listener.close()
    assert backend._listeners == {4443: again}


async def test_chosen_ports_differ(certificates: Path) -> None:
    backend = MemoryBackend()
    listeners = [
        await backend.listen(
            "127.0.0.1",
            0,
            alpn=[ALPN],
            tls=server_tls(certificates),
            config=TransportConfig(),
            handler=Accepted(),
        )
        for _ in range(3)
    ]
    assert len({listener.address for listener in listeners}) == 3
    await asyncio.sleep(0)
