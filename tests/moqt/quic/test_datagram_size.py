"""The search for the largest datagram that arrives."""

from __future__ import annotations

import pytest

from moqt.quic.datagram_size import (
    COMMON_SIZES,
    MAX_PROBES,
    SMALLEST_DATAGRAM,
    TRY_AGAIN,
    SizeSearch,
    smaller_than,
)


def search(ceiling: int, carried: int, now: float = 0.0) -> tuple[SizeSearch, list[int]]:
    """A search on a path that carries so much, and the probes it took."""
    found, probes = SizeSearch(), list[int]()
    found.begin(ceiling)
    while (size := found.probe(now)) is not None:
        assert found.probe(now) is None, "one at a time"
        assert found.largest_sent == size
        probes.append(size)
        found.answered(size, delivered=size <= carried)
    return found, probes


@pytest.mark.parametrize(
    ("ceiling", "carried", "size", "probes"),
    [
        (1200, 9000, 1200, []),
        (16000, 65000, 16000, [16000]),
        (16000, 8972, 8952, [16000] * 3 + [8952]),
        (16000, 1472, 1452, [16000] * 3 + [8952] * 3 + [1452]),
        (1472, 1472, 1472, [1472]),
        (1472, 1300, 1200, [1472] * 3 + [1452] * 3),
        (1452, 1452, 1452, [1452]),
        (1300, 1200, 1200, [1300] * 3),
    ],
)
def test_the_largest_that_arrives_is_found(
    ceiling: int, carried: int, size: int, probes: list[int]
) -> None:
    found, taken = search(ceiling, carried)
    assert (found.size, taken) == (size, probes)
    assert found.probe(10 * TRY_AGAIN) is None or size == SMALLEST_DATAGRAM < ceiling


def test_a_path_that_carried_nothing_larger_is_tried_again_later() -> None:
    found, _ = search(1452, 1200, now=100.0)
    assert found.probe(100.0 + TRY_AGAIN - 1) is None
    assert found.probe(100.0 + TRY_AGAIN) == 1452
    assert found.answered(1452, delivered=True)
    assert found.size == 1452
    assert found.probe(100.0 + 10 * TRY_AGAIN) is None


def test_an_answer_to_an_earlier_search_counts_for_nothing() -> None:
    found = SizeSearch()
    found.begin(16000)
    assert found.probe(0.0) == 16000
    found.begin(1452)
    assert not found.answered(16000, delivered=True)
    assert found.size == SMALLEST_DATAGRAM
    assert found.probe(0.0) == 1452


def test_one_lost_probe_is_not_the_end_of_a_size() -> None:
    found = SizeSearch()
    found.begin(1452)
    for _ in range(MAX_PROBES - 1):
        assert found.probe(0.0) == 1452
        assert not found.answered(1452, delivered=False)
    assert found.probe(0.0) == 1452
    assert found.answered(1452, delivered=True)


def test_what_is_smaller() -> None:
    sizes = [smaller_than(size) for size in (16000, *COMMON_SIZES, 1300)]
    assert sizes == [*COMMON_SIZES, SMALLEST_DATAGRAM, SMALLEST_DATAGRAM]
