"""What the processes of a case do that has a relay between them: plain MOQT, 32 groups, everything live."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from kvcs.bench.plan import LAYERS, Plan
from kvcs.bench.worker import say, until_told
from moqt import (
    ClientTls,
    FullTrackName,
    GroupOrder,
    IncomingStream,
    Location,
    LocationFilter,
    ObjectHeader,
    Publisher,
    Session,
    StreamSink,
    Track,
    connect,
)

NAME = FullTrackName((b"bench",), b"objects")
FIRST, REST = "first", "rest"
"""Appearing in the plan's directory they tell the publisher to give out its first Object, and then all others."""
POLL = 0.002


class Sent:
    """A payload that counts how many of its octets were asked for to be sent."""

    def __init__(self, octets: int) -> None:
        self.octets = 0
        self._content = bytes(octets)

    def __len__(self) -> int:
        return len(self._content)

    def read(self, prefix: bytes = b"") -> bytes:
        """The octets."""
        self.octets += len(self._content)
        return prefix + self._content


def tls(plan: Plan) -> ClientTls:
    """Whom all of a round trust."""
    return ClientTls(ca_file=plan.certificates / "ca.pem")


def each_group(plan: Plan) -> int:
    """Objects of a Group."""
    return 2 * plan.blocks


async def offer(plan: Plan, url: str) -> None:
    """Announces a track to the relay, and gives it out when it is told to; says what it sent."""
    signals = [Path(plan.directory, name) for name in (FIRST, REST)]
    for path in signals:
        path.unlink(missing_ok=True)
    payload = Sent(plan.object_kib << 10)
    publisher = Publisher()
    track = publisher.add_track(Track(NAME))
    publisher.add_namespace(NAME.namespace)
    async with await connect(url, tls=tls(plan), responder=publisher) as session:
        await session.publish_namespace(NAME.namespace)
        say(url=url)
        places = [Location(g, o) for g in range(LAYERS) for o in range(each_group(plan))]
        for path, part in zip(signals, (places[:1], places[1:]), strict=True):
            while not path.exists():  # noqa: ASYNC110 - the other side is another process
                await asyncio.sleep(POLL)
            for place in part:
                track.add(place, payload, last=place.object == each_group(plan) - 1)
        track.end()
        await until_told()
        say(sent=payload.octets)


class Counting(StreamSink):
    """Receives one subscription, and knows when all of it came."""

    group_order = GroupOrder.ASCENDING

    def __init__(self, plan: Plan) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        """The first Object begins."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """The last octet is here."""
        self.octets = 0
        self._whole = plan.octets

    def open_stream(self, stream: IncomingStream) -> StreamSink:
        """Every stream ends here."""
        return self

    def object_begin(self, header: ObjectHeader) -> None:
        if not self.begun.done():
            self.begun.set_result(None)

    def payload(self, chunk: memoryview) -> None:
        self.octets += len(chunk)
        if self.octets == self._whole:
            self.ended.set_result(None)

    def over(self) -> None:
        """Nothing more comes."""
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_exception(RuntimeError(f"only {self.octets} octets came"))


async def subscribed(plan: Plan, url: str, stack: AsyncExitStack) -> Counting:
    """A session of its own, subscribed to what is to come."""
    session: Session = await stack.enter_async_context(await connect(url, tls=tls(plan)))
    counting = Counting(plan)
    subscription = await session.subscribe(
        *NAME, location=LocationFilter.next_object(), receiver=counting
    )
    subscription.finished.add_done_callback(lambda _: counting.over())
    return counting


async def take(plan: Plan, url: str) -> None:
    """Subscribes `count` times, each with a session of its own, and takes all of it."""
    async with AsyncExitStack() as stack:
        count = plan.options.get("count", 1)
        await measure(plan, [await subscribed(plan, url, stack) for _ in range(count)])


async def measure(
    plan: Plan, takers: list[Counting], stop: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Says how long everything but the first Object took; `stop` is waited for when that one has begun to come."""
    loop = asyncio.get_running_loop()
    Path(plan.directory, FIRST).touch()
    await asyncio.gather(*(taker.begun for taker in takers))
    if stop is not None:
        await stop()
    begun = loop.time()
    Path(plan.directory, REST).touch()
    await asyncio.gather(*(taker.ended for taker in takers))
    seconds = loop.time() - begun
    octets = sum(taker.octets for taker in takers)
    say(seconds=seconds, octets=octets, each=takers[0].octets)


async def take_beside_stopped(plan: Plan, url: str) -> None:
    """`take`, while another subscriber is a process that stopped at its first Object: it does not even acknowledge."""
    other = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.bench.worker", plan.dump(), "stop-at-first", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )

    async def told() -> None:
        assert other.stdout is not None
        if not await other.stdout.readline():
            raise RuntimeError("the subscriber that was to be stopped ended")

    async def stop() -> None:
        await told()
        other.send_signal(signal.SIGSTOP)

    try:
        async with AsyncExitStack() as stack:
            taker = await subscribed(plan, url, stack)
            await told()
            await measure(plan, [taker], stop)
    finally:
        other.kill()
        await other.communicate()


async def stop_at_first(plan: Plan, url: str) -> None:
    """Says when it is subscribed, and when the first Object comes; then the other side stops it."""
    async with AsyncExitStack() as stack:
        taker = await subscribed(plan, url, stack)
        say(subscribed=True)
        await taker.begun
        say(begun=True)
        await until_told()
