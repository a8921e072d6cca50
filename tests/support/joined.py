"""A publisher and a subscriber in one process, joined over real sockets through the shaper, with both ends' books."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import moqt
from moqt import ClientTls, Config, LocationFilter, Publisher, Session, TransportConfig
from moqt.connection import Driver
from moqt.protocol.requests import RequestState
from tests.support.arrivals import NAMESPACE, Arrivals, CountedTrack, Ledger
from tests.support.quic import server_tls
from tests.support.shaper import Shaper, shaped

CONFIG = Config(transport=TransportConfig(datagram_size=1452))


@dataclass(frozen=True)
class Note:
    """A moment at the publisher; it and the subscriber share a process."""

    pulls: int
    pulled: Counter[bytes]
    arrived: Counter[bytes]
    watermark: int
    unsent: int


class Noting(Publisher):
    """Notes, as each request comes, what had been pulled and what had arrived."""

    def __init__(self, ledger: Ledger, arrivals: Arrivals) -> None:
        super().__init__()
        self.drivers: list[Driver] = []
        self.notes: dict[bytes, Note] = {}
        self._ledger = ledger
        self._arrivals = arrivals

    def session_opened(self, driver: Driver) -> None:
        self.drivers.append(driver)
        super().session_opened(driver)

    def request_received(self, driver: Driver, request: RequestState) -> None:
        track = getattr(request.message, "track", None)
        if track is not None:
            self.notes[track.name] = self.note()
        super().request_received(driver, request)

    def note(self) -> Note:
        """How things stand."""
        return Note(
            len(self._ledger.order),
            Counter(self._ledger.pulled),
            Counter(self._arrivals.octets),
            self.drivers[0].scheduler.watermark,
            self.drivers[0].transport.unsent(),
        )


@dataclass
class Joined:
    """A session through the shaper, and both ends' books."""

    ledger: Ledger = field(default_factory=Ledger)
    arrivals: Arrivals = field(default_factory=Arrivals)
    origin: Noting = field(init=False)
    session: Session = field(init=False)
    shaper: Shaper = field(init=False)

    def __post_init__(self) -> None:
        self.origin = Noting(self.ledger, self.arrivals)

    def track(self, name: bytes, *, priority: int = 128) -> CountedTrack:
        """A track that the session can ask for."""
        track = CountedTrack(name, self.ledger, priority=priority)
        self.origin.add_track(track)
        return track

    async def subscribe(
        self, name: bytes, objects: int, *, priority: int | None = None, fill: bool = False
    ) -> moqt.Subscription:
        """From the next Object on, in Groups of `objects`; with `fill` what is published comes too."""
        return await self.session.subscribe(
            NAMESPACE,
            name,
            location=LocationFilter.next_object(),
            fill=LocationFilter.absolute_start(moqt.Location(0, 0)) if fill else None,
            priority=priority,
            receiver=self.arrivals.receiver(name, objects),
        )


@asynccontextmanager
async def joined(
    certificates: Path, *, config: Config = CONFIG, **shape: Any
) -> AsyncIterator[Joined]:
    """A publisher and a subscriber with a shaped network between them; `shape` is what `shaped` takes."""
    link = Joined()
    tls = ClientTls(ca_file=certificates / "ca.pem")
    async with (
        await moqt.serve(
            "127.0.0.1", 0, link.origin, tls=server_tls(certificates), config=config
        ) as server,
        shaped(server.address, **shape) as link.shaper,
        await moqt.connect(link.shaper.url, tls=tls, config=config) as link.session,
    ):
        yield link
