"""What qh3 forgets of streams; it needs no library."""

from __future__ import annotations

from moqt.quic.qh3_streams import REMEMBERED, StreamEnds


def test_a_stream_is_given_up_once() -> None:
    ends = StreamEnds()
    assert ends.give_up(2)
    assert not ends.give_up(2)
    assert ends.is_given_up(2)
    assert not ends.is_given_up(6)


def test_a_bounded_number_is_remembered() -> None:
    ends = StreamEnds()
    for stream_id in range(REMEMBERED + 10):
        ends.give_up(stream_id)
    remembered = [i for i in range(REMEMBERED + 10) if ends.is_given_up(i)]
    assert remembered == list(range(10, REMEMBERED + 10))


def test_a_stop_counts_until_the_end() -> None:
    ends = StreamEnds()
    assert ends.received(3, over=False) is None
    assert ends.is_under_way(3)
    ends.stop(3, 7)
    assert ends.is_stopped(3)
    assert ends.received(3, over=False) == ends.received(3, over=True) == 7
    assert not ends.is_stopped(3)
    assert not ends.is_under_way(3)
    assert ends.received(3, over=True) is None
