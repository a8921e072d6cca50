"""The link model, at exact times."""

from __future__ import annotations

from tests.support.link import Link

RATE = 8_000_000.0
"""A million octets a second: one octet takes one microsecond."""


def offer_all(link: Link, sizes: list[int], *, every: float = 0.0) -> list[float | None]:
    return [link.offer(index * every, size) for index, size in enumerate(sizes)]


def microseconds(arrivals: list[float | None]) -> list[int | None]:
    return [None if at is None else round(at * 1e6) for at in arrivals]


def test_without_limits_only_the_distance_takes_time() -> None:
    link = Link(delay=0.25)
    assert [link.offer(now, 1000) for now in (0.0, 0.0, 1.0)] == [0.25, 0.25, 1.25]
    assert link.queued(0.0) == 0
    assert link.counters.high_water == 0


def test_each_datagram_waits_for_those_before_it() -> None:
    link = Link(rate=RATE, delay=0.001)
    assert microseconds(offer_all(link, [1000, 500, 500])) == [2000, 2500, 3000]
    assert link.counters.high_water == 2000
    assert (link.counters.packets, link.counters.octets) == (3, 2000)


def test_an_idle_wire_saves_nothing_up() -> None:
    link = Link(rate=RATE)
    assert microseconds(offer_all(link, [1000, 1000, 1000], every=1.0)) == [
        1000,
        1_001_000,
        2_001_000,
    ]
    assert link.counters.high_water == 1000


def test_the_queue_drops_what_does_not_fit_and_empties_as_the_wire_sends() -> None:
    link = Link(rate=RATE, queue=2000)
    assert microseconds(offer_all(link, [1000, 1000, 1])) == [1000, 2000, None]
    assert link.queued(0.000_999) == 2000
    assert link.queued(0.001_001) == 1000
    assert microseconds([link.offer(0.001_001, 1000)]) == [3000]
    assert link.counters.dropped == 1
    assert link.counters.high_water == 2000


def test_a_datagram_over_the_mtu_vanishes() -> None:
    link = Link(mtu=1452)
    assert offer_all(link, [1452, 1453]) == [0.0, None]
    assert link.counters.oversized == 1


def test_loss_is_as_frequent_as_asked_and_repeats_with_the_seed() -> None:
    outcomes = [offer_all(Link(loss=0.1, seed=seed), [100] * 5000) for seed in (1, 1, 2)]
    assert outcomes[0] == outcomes[1] != outcomes[2]
    assert 400 < outcomes[0].count(None) < 600


def test_the_same_datagrams_are_lost_with_and_without_reordering() -> None:
    lossy = offer_all(Link(loss=0.2, seed=3), [100] * 500)
    mixed = offer_all(Link(loss=0.2, reorder=0.3, seed=3), [100] * 500)
    assert [at is None for at in lossy] == [at is None for at in mixed]


def test_reordered_datagrams_come_later_and_hold_up_nobody() -> None:
    link = Link(rate=RATE, reorder=0.5, hold=0.1, seed=4)
    arrivals = offer_all(link, [1000] * 100)
    late = [at for at in arrivals if at is not None and at > 0.1 + 0.000_5]
    assert len(late) == link.counters.reordered
    assert 25 < len(late) < 75
    on_time = [at for at in arrivals if at is not None and at <= 0.1 + 0.000_5]
    assert on_time == sorted(on_time)


def test_what_is_lost_takes_no_place_in_the_queue() -> None:
    link = Link(rate=RATE, queue=1000, loss=1.0)
    assert offer_all(link, [1000, 1000]) == [None, None]
    assert link.counters.lost == 2
    assert link.queued(0.0) == 0
