"""The sender that keeps chunks behaves as the library's own, which copies."""

from __future__ import annotations

import random

import pytest
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.stream import QuicStreamSender

from moqt.quic.bulk_sender import ChunkSender, SentFrame

ACKED, LOST = QuicDeliveryState.ACKED, QuicDeliveryState.LOST


def state(sender: QuicStreamSender) -> tuple[object, ...]:
    return (
        sender.buffer_is_empty,
        sender.highest_offset,
        sender.is_finished,
        sender.reset_pending,
        sender.next_offset,
        sender._buffer_start,
        sender._buffer_stop,
        sender._buffer_fin,
        sender._pending_eof,
        list(sender._pending),
    )


@pytest.mark.parametrize("seed", range(50))
def test_it_does_what_the_library_does(seed: int) -> None:
    dice = random.Random(seed)
    mine, theirs = ChunkSender(2), QuicStreamSender(2, True)
    content = dice.randbytes(5000)
    written, under_way = 0, list[tuple[int, int, bool]]()
    for _ in range(400):
        choice = dice.random()
        if choice < 0.3 and written is not None and theirs._buffer_fin is None:
            size = min(dice.choice([0, 1, 50, 300]), len(content) - written)
            piece, over = content[written : written + size], dice.random() < 0.02
            mine.write(memoryview(piece), over)
            theirs.write(piece, over)
            written += size
        elif choice < 0.6:
            room = dice.choice([-1, 0, 1, 100, 400])
            limit = dice.choice([None, None, written // 2])
            got, wanted = mine.get_frame(room, limit), theirs.get_frame(room, limit)
            assert got == wanted
            if wanted is not None:
                stop = wanted.offset + len(wanted.data)
                under_way.append((wanted.offset, stop, wanted.fin))
        elif under_way:
            frame = under_way.pop(dice.randrange(len(under_way)))
            delivery = LOST if dice.random() < 0.3 else ACKED
            mine.on_data_delivery(delivery, *frame)
            theirs.on_data_delivery(delivery, *frame)
        if choice > 0.998:
            mine.reset(5)
            theirs.reset(5)
            assert mine.get_reset_frame() == theirs.get_reset_frame()
            break
        assert state(mine) == state(theirs)
        assert sum(map(len, mine._chunks)) >= written - mine._buffer_start


def test_nothing_is_copied_but_what_could_be_resized() -> None:
    sender = ChunkSender(2)
    kept, resized = bytearray(b"kept"), bytearray(b"resized")
    sender.write(memoryview(kept))
    sender.write(resized)
    resized += b"!"
    assert sender._chunks[0].obj is kept
    frame = sender.get_frame(100)
    assert frame is not None
    assert frame.data == b"keptresized"


def test_what_is_acknowledged_is_let_go() -> None:
    sender = ChunkSender(2)
    for _ in range(4):
        sender.write(bytes(100))
    assert sender.get_frame(350) is not None
    sender.on_data_delivery(ACKED, 100, 350, False)
    assert len(sender._chunks) == 4
    sender.on_data_delivery(ACKED, 0, 100, False)
    assert len(sender._chunks) == 1
    assert sender.pieces(350, 400) == [bytes(50)]
    assert sender.get_frame(100) is not None
    sender.on_data_delivery(ACKED, 350, 400, False)
    assert sender._chunks == []


def test_what_is_acknowledged_twice_holds_nothing_back() -> None:
    sender = ChunkSender(2)
    for _ in range(4):
        sender.write(bytes(100))
    assert sender.get_frame(400) is not None
    sender.on_data_delivery(ACKED, 0, 200, False)
    sender.on_data_delivery(ACKED, 0, 100, False)
    assert sender._buffer_start == 200
    sender.on_data_delivery(ACKED, 150, 300, False)
    assert sender._buffer_start == 300
    assert len(sender._chunks) == 1
    sender.on_data_delivery(ACKED, 300, 400, False)
    assert sender._chunks == []


def test_a_reset_lets_everything_go() -> None:
    sender = ChunkSender(2)
    sender.write(bytes(100))
    sender.reset(1)
    assert sender._chunks == []
    for late in (b"x", b""):
        with pytest.raises(RuntimeError, match="reset"):
            sender.write(late)
    sender.on_data_delivery(LOST, 0, 100, False)
    assert sender.buffer_is_empty


def test_nothing_follows_fin() -> None:
    sender = ChunkSender(2)
    sender.write(b"", True)
    with pytest.raises(RuntimeError, match="FIN"):
        sender.write(b"x")


def test_pieces_of_a_part() -> None:
    sender = ChunkSender(2)
    for letter in b"abc":
        sender.write(bytes([letter]) * 10)
    assert sender.pieces(5, 8) == [b"aaa"]
    assert sender.pieces(8, 22) == [b"aa", b"b" * 10, b"cc"]
    assert sender.pieces(10, 30) == [b"b" * 10, b"c" * 10]
    assert sender.pieces(7, 7) == []
    assert [sender.chunk_at(offset)[0] for offset in (0, 9, 10, 29, 30)] == [0, 0, 10, 20, 20]


def test_a_sent_frame_tells_its_sender() -> None:
    sender = ChunkSender(2)
    sender.write(bytes(10), True)
    assert sender.get_frame(10) is not None
    frame = SentFrame(1, 0.0, 40, sender, 0, 10, True)
    for handler, arguments in frame.delivery_handlers:
        handler(ACKED, *arguments)
    assert sender.is_finished
