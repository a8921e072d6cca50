"""The books that aiopquic does not keep; they need no library."""

from __future__ import annotations

import pytest

from moqt.quic.aiopquic_streams import PIECE, Streams, pieces


@pytest.fixture
def streams() -> Streams:
    made = Streams(is_client=True)
    made.limit(2, 1)
    return made


def test_ids_are_peeked_at_and_taken_in_order(streams: Streams) -> None:
    assert streams.following(bidirectional=True) == streams.following(bidirectional=True) == 0
    assert streams.to_send(4) is None
    assert streams.to_send(0) is streams.to_send(0) is not None
    assert streams.following(bidirectional=True) == 4
    assert streams.to_send(4) is not None
    assert streams.following(bidirectional=True) is None
    assert streams.following(bidirectional=False) == 2
    assert streams.to_send(8) is None


def test_a_server_has_ids_of_its_own() -> None:
    streams = Streams(is_client=False)
    assert streams.following(bidirectional=True) is None
    streams.limit(1, 1)
    assert streams.following(bidirectional=True) == 1
    assert streams.following(bidirectional=False) == 3


def test_a_stream_that_is_over_makes_room(streams: Streams) -> None:
    streams.to_send(2)
    assert streams.following(bidirectional=False) is None
    assert streams.over(2) is not None
    assert streams.over(2) is None
    assert streams.following(bidirectional=False) == 6
    assert streams.to_send(2) is None


def test_streams_of_the_peer_begin_when_heard_of(streams: Streams) -> None:
    assert streams.to_send(1) is None
    bidi, uni = streams.heard(1), streams.heard(3)
    assert bidi is not None
    assert (bidi.can_send, bidi.can_receive) == (True, True)
    assert uni is not None
    assert (uni.can_send, uni.can_receive) == (False, True)
    assert streams.to_send(1) is bidi
    assert streams.to_send(3) is None
    assert streams.heard(0) is None, "ours, and never opened"


def test_streams_of_the_peer_are_forgotten_once_nothing_can_happen(streams: Streams) -> None:
    uni = streams.heard(3)
    assert uni is not None
    streams.settle(3)
    assert streams.known(3) is uni
    uni.can_receive = False
    streams.settle(3)
    assert streams.known(3) is None


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_pieces_are_bounded_bytes(kind: type[bytes], size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    cut = list(pieces(kind(data[:size])))
    assert b"".join(cut) == data[:size]
    assert all(type(piece) is bytes and 0 < len(piece) <= PIECE for piece in cut)


def test_wider_items_count_as_octets() -> None:
    view = memoryview(bytes(range(8))).cast("I")
    assert list(pieces(view)) == [bytes(range(8))]
