"""Fails loudly when a version of aioquic no longer has what the backend reaches for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived, StreamReset
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.tls import Epoch

from moqt.config import KIB, MIB, TransportConfig
from moqt.errors import LocalError
from moqt.quic import aioquic as backend
from moqt.quic import aioquic_private as private
from moqt.quic.aioquic_private import (
    CONGESTION_CONTROL,
    JOINED,
    CappedReno,
    CreditConnection,
    SoftPacer,
    lacking,
    missing,
)
from moqt.quic.base import ClientTls
from tests.support.quic import Accepted, join


def test_the_installed_version_has_everything() -> None:
    assert missing() == ()


@pytest.mark.parametrize("name", private.ATTRIBUTES)
def test_what_is_lacking_is_named(name: str) -> None:
    quic = QuicConnection(configuration=QuicConfiguration())
    attributes: dict[str, Any] = {
        attribute: getattr(quic, attribute) for attribute in private.ATTRIBUTES if attribute != name
    }
    found = lacking(SimpleNamespace(**attributes))  # type: ignore[arg-type]
    assert f"QuicConnection.{name}" in found


async def test_a_version_that_lacks_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "missing", lambda: ("QuicConnection._streams",))
    with pytest.raises(LocalError, match=r"is not supported: it has no QuicConnection\._streams"):
        await backend.connect(
            "127.0.0.1",
            1,
            alpn=["x"],
            tls=ClientTls(verify=False),
            config=TransportConfig(),
            handler=Accepted(),
        )


def test_the_registered_congestion_control_is_ours() -> None:
    quic = QuicConnection(
        configuration=QuicConfiguration(congestion_control_algorithm=CONGESTION_CONTROL)
    )
    assert isinstance(quic._loss._cc, CappedReno)
    assert issubclass(CappedReno, RenoCongestionControl)


@pytest.mark.parametrize(("size", "cap"), [(1200, MIB), (1452, MIB), (16000, 2 * MIB)])
def test_the_congestion_window_is_capped(size: int, cap: int) -> None:
    control = CappedReno(max_datagram_size=size)
    for number in range(5000):
        packet = QuicSentPacket(
            epoch=Epoch.ONE_RTT,
            in_flight=True,
            is_ack_eliciting=True,
            is_crypto_packet=False,
            packet_number=number,
            packet_type=None,  # type: ignore[arg-type]
            sent_time=float(number + 1),
            sent_bytes=size,
        )
        control.on_packet_sent(packet=packet)
        control.on_packet_acked(now=float(number + 2), packet=packet)
    assert control.congestion_window == cap
    assert cap // size < 1 << 15, "packet numbers are sent in two octets"


def test_the_pacer_sends_bursts_and_asks_for_no_timer_finer_than_the_clock() -> None:
    pacer = SoftPacer(max_datagram_size=1200)
    assert pacer.next_send_time(now=1.0) is None
    pacer.update_rate(congestion_window=MIB, smoothed_rtt=0.01)
    now, sent = 1.0, 0
    for _ in range(1000):
        while pacer.next_send_time(now=now) is None:
            pacer.update_after_send(now=now)
            sent += 1200
        due = pacer.next_send_time(now=now)
        assert due is not None
        assert due - now >= 0.000999
        now = due
    assert sent / (now - 1.0) == pytest.approx(1.25 * MIB / 0.01, rel=0.05)


def test_the_pacer_is_replaced_where_there_is_one() -> None:
    quic = CreditConnection(configuration=QuicConfiguration())
    quic.tune()
    assert isinstance(quic._loss._pacer, SoftPacer)
    quic._loss._pacer = None  # type: ignore[assignment]
    quic.tune()
    assert quic._loss._pacer is None


def test_streams_are_granted_as_configured() -> None:
    quic = CreditConnection(configuration=QuicConfiguration())
    quic.grant_streams(TransportConfig(max_streams_uni=8, max_streams_bidi=3))
    assert (quic._local_max_streams_uni.value, quic._local_max_streams_uni.sent) == (8, 8)
    assert (quic._local_max_streams_bidi.value, quic._local_max_streams_bidi.sent) == (3, 3)


def test_unknown_streams_have_nothing_to_count() -> None:
    quic = CreditConnection(configuration=QuicConfiguration())
    assert (quic.abandon(2), quic.undelivered(3)) == (0, 0)
    assert not quic.is_receiving(3)
    assert not quic.refuse(2)


async def test_windows_follow_the_application_and_never_grow(certificates: Path) -> None:
    """The library's own rule would have doubled both several times by then."""
    config = TransportConfig(max_data=64 * KIB, max_stream_data=32 * KIB)
    async with join(backend, certificates, server=config) as ends:
        quic = ends.server._quic  # type: ignore[attr-defined]
        client = ends.client._quic  # type: ignore[attr-defined]
        ends.at_client.put(2, bytes(1024 * KIB))
        while len(ends.at_server.finished) == 0:
            seen = ends.at_server.received
            await ends.at_server.until(
                lambda s=seen: ends.at_server.received > s  # type: ignore[misc]
            )
            assert quic._local_max_data.value <= ends.at_server.received + config.max_data
            for stream in quic._streams.values():
                assert stream.max_stream_data_local <= len(ends.at_server.data[2]) + 32 * KIB
        assert client._remote_max_data <= 1024 * KIB + config.max_data


def test_what_comes_of_one_stream_in_succession_comes_as_one() -> None:
    """Nothing crosses another stream, another event, an end or the limit, and the order stays."""
    quic = CreditConnection(configuration=QuicConfiguration())

    def data(stream_id: int, content: bytes, *, fin: bool = False) -> StreamDataReceived:
        return StreamDataReceived(data=content, end_stream=fin, stream_id=stream_id)

    large = bytes(JOINED)
    reset = StreamReset(error_code=0, stream_id=9)
    quic._events.extend(
        [
            *(data(1, b"a"), data(1, b"b"), data(5, b"c")),
            *(data(1, b"d"), reset, data(1, b"e"), data(1, b"", fin=True)),
            *(data(9, b"f", fin=True), data(13, large), data(13, b"g"), data(13, b"h")),
        ]
    )
    assert list(iter(quic.next_event, None)) == [
        *(data(1, b"ab"), data(5, b"c"), data(1, b"d"), reset),
        *(data(1, b"e", fin=True), data(9, b"f", fin=True)),
        *(data(13, large), data(13, b"gh")),
    ]
