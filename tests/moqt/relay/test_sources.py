"""Whom a relay asks, and in which order."""

from __future__ import annotations

from itertools import permutations
from typing import cast

import pytest

from moqt.connection import Driver
from moqt.relay.sources import Source, Sources
from tests.support.ends import NAME


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_upstream_relays_are_asked_in_the_order_in_which_they_were_named(
    order: tuple[int, ...],
) -> None:
    """Whichever of them has its session first, or loses it in between."""
    sources = Sources(lambda namespace, source: None)
    links = [Source(cast(Driver, object()), is_link=True) for _ in order]
    for place in order:
        sources.add_link(links[place], place)
    assert sources.steps(NAME, None) == [[link] for link in links]
    for place in order[:2]:
        sources.drop(links[place])
    for place in order[:2]:
        sources.add_link(links[place], place)
    assert sources.steps(NAME, None) == [[link] for link in links]
