"""How relays that lead back to one another find out, and which of them gives its link up."""

from __future__ import annotations

import asyncio

from moqt.relay.links import Link
from moqt.relay.sources import Sources

_MOST_TURNS = 32
"""Relays of a circle that wait for one another."""


async def break_circle(link: Link, sources: Sources, patience: float) -> None:
    """Of several relays in a circle one breaks it, the others then see that it is none any more: each has its turn
    by the order of what they offer."""

    def is_in_circle() -> bool:
        return link.probe in sources.probes()

    await asyncio.sleep(patience)  # until everybody has heard of everybody
    turn = sorted(sources.probes()).index(link.probe) if is_in_circle() else 0
    await asyncio.sleep(patience * min(turn, _MOST_TURNS))
    if is_in_circle():
        link.leads_back()
