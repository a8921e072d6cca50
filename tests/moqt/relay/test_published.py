"""Tracks that are PUBLISHed to a relay: what counts against the limit, and what is kept of them."""

from __future__ import annotations

from moqt import FullTrackName, RelayConfig, Session
from moqt.protocol.requests import RequestState
from moqt.wire.data import SubgroupEncoder, SubgroupHeader
from moqt.wire.messages import Publish
from moqt.wire.parameters import Parameters
from tests.support.ends import NAME, until
from tests.support.relays import net

LIMITS = RelayConfig(max_subscriptions=2)


async def offer(session: Session, name: FullTrackName, alias: int) -> RequestState:
    return await session.driver.ask(lambda i: Publish(i, name, alias, Parameters(), ()))


def contradict(session: Session, alias: int) -> None:
    """Two payloads at one Location: the relay breaks the subscription off."""
    transport, header = session.driver.transport, SubgroupHeader(alias, 0, 0, 1)
    for payload in (b"abc", b"xyz"):
        stream = transport.open_stream(bidirectional=False)
        assert stream is not None
        octets = header.encode() + SubgroupEncoder(header).object(0, len(payload)) + payload
        transport.send(stream, octets, True)
    transport.flush()


async def test_a_track_that_is_published_again_counts_once() -> None:
    async with net() as world:
        relay = await world.relay(limits=LIMITS)
        session = await world.session(relay)
        (peer,) = relay.peers.values()
        for alias in range(5):
            last = await offer(session, NAME, alias)
            await until(lambda: len(peer.published) == 1)
        session.driver.cancel(last)
        await until(lambda: not relay.tracks)


async def test_tracks_that_the_relay_broke_off_do_not_count() -> None:
    async with net() as world:
        relay = await world.relay(limits=LIMITS)
        session = await world.session(relay)
        (peer,) = relay.peers.values()
        for alias in range(5):
            await offer(session, FullTrackName((b"a",), b"%d" % alias), alias)
            contradict(session, alias)
            await until(lambda: not relay.tracks and not peer.published)
        assert session.closed is None
