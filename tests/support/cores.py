"""Two SessionCores joined without a network: what one sends, the other receives at the next `run`."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from moqt.config import SessionConfig
from moqt.errors import StreamReset
from moqt.model import EndOfRange, FullTrackName, GroupOrder, Location, ObjectHeader
from moqt.protocol.actions import Action, Close, Reset, Send, Stop
from moqt.protocol.events import Event
from moqt.protocol.requests import RequestState
from moqt.protocol.session import SessionCore
from moqt.protocol.streams import IncomingStream, StreamSink
from moqt.wire.data import SubgroupHeader
from moqt.wire.messages import Request, SetupOptions

_E = TypeVar("_E", bound=Event)

TRACK = FullTrackName((b"kv", b"m"), b"layers")
OPTIONS = SetupOptions(max_filter_ranges=8, max_request_updates=4)


class End:
    """One core with what it told and did."""

    def __init__(
        self,
        *,
        is_client: bool,
        options: SetupOptions = OPTIONS,
        config: SessionConfig = SessionConfig(),  # noqa: B008 - frozen
    ) -> None:
        self.core = SessionCore(is_client=is_client, options=options, config=config)
        self.events: list[Event] = []
        self.actions: list[Action] = []
        self.closed: Close | None = None
        self.inbox: deque[Action] = deque()
        self.ended: set[int] = set()
        """Streams on which this end sends no more."""
        self._opened = {0: 0, 2: 0}
        self._parity = int(not is_client)

    def open(self, kind: int = 0) -> int:
        """The next stream ID: of kind 0 with two directions, of kind 2 with one."""
        stream_id = self._opened[kind] * 4 + kind + self._parity
        self._opened[kind] += 1
        return stream_id

    def start(self) -> None:
        self.core.start(self.open(2))

    def ask(self, request: Request, receiver: Recorder | None = None) -> RequestState:
        return self.core.requests.ask(self.open(), request, receiver)

    @property
    def next_id(self) -> int:
        return self.core.requests.next_id

    def take(self) -> list[Action]:
        """New actions; also keeps events."""
        taken = self.core.take_actions()
        self.actions += taken
        for action in taken:
            if isinstance(action, Close) and self.closed is None:
                self.closed = action
        while (event := self.core.next_event()) is not None:
            self.events.append(event)
        return taken

    def one(self, kind: type[_E]) -> _E:
        """The only event of a kind, which is taken from the list."""
        found = [event for event in self.events if isinstance(event, kind)]
        assert len(found) == 1, self.events
        self.events.remove(found[0])
        return found[0]

    def none(self, kind: type[Event]) -> bool:
        return not any(isinstance(event, kind) for event in self.events)

    def feed(self, stream_id: int, data: bytes = b"", fin: bool = False) -> None:
        """Octets of the peer, whatever the peer's core thinks of them."""
        self.core.receive(stream_id, data, fin)
        self.take()


class Pair:
    """A client and a server core. `run` carries everything until both are quiet."""

    def __init__(
        self,
        *,
        client: SetupOptions = OPTIONS,
        server: SetupOptions = OPTIONS,
        config: SessionConfig = SessionConfig(),  # noqa: B008 - frozen
        chunk: int | None = None,
    ) -> None:
        self.client = End(is_client=True, options=client, config=config)
        self.server = End(is_client=False, options=server, config=config)
        self._chunk = chunk

    def established(self) -> Pair:
        """Both SETUPs crossed; their events are taken."""
        self.client.start()
        self.server.start()
        self.run()
        self.client.events.clear()
        self.server.events.clear()
        return self

    def run(self) -> None:
        ends = ((self.client, self.server), (self.server, self.client))
        while True:
            moved = False
            for sender, receiver in ends:
                for action in sender.take():
                    moved = True
                    self._carry(action, sender, receiver)
            if not moved:
                return

    def _carry(self, action: Action, sender: End, receiver: End) -> None:
        match action:
            case Send(stream_id, data, fin):
                if stream_id in sender.ended:
                    return
                size = self._chunk or max(len(data), 1)
                for at in range(0, max(len(data), 1), size):
                    last = at + size >= len(data)
                    receiver.core.receive(stream_id, data[at : at + size], fin and last)
                if fin:
                    sender.ended.add(stream_id)
            case Reset(stream_id, code):
                if stream_id not in sender.ended:
                    sender.ended.add(stream_id)
                    receiver.core.stream_reset(stream_id, code)
            case Stop(stream_id, code):
                if stream_id not in receiver.ended:
                    receiver.ended.add(stream_id)
                    receiver.core.stop_sending(stream_id, code)
                    sender.core.stream_reset(stream_id, code)
            case Close():
                receiver.core.closed = True


class Recorder:
    """A Receiver that notes everything on all its streams."""

    def __init__(self, order: GroupOrder = GroupOrder.ASCENDING, *, accept: bool = True) -> None:
        self.group_order = order
        self.accept = accept
        self.opened: list[IncomingStream] = []
        self.headers: list[SubgroupHeader | int] = []
        self.objects: list[tuple[Location, bytes]] = []
        self.markers: list[EndOfRange] = []
        self.ends: list[int | None] = []

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        self.opened.append(stream)
        return _RecordingSink(self) if self.accept else None


class _RecordingSink(StreamSink):
    def __init__(self, to: Recorder) -> None:
        self._to = to
        self._location = Location(0, 0)
        self._payload = b""

    def subgroup_header(self, header: SubgroupHeader) -> None:
        self._to.headers.append(header)

    def fetch_header(self, request_id: int) -> None:
        self._to.headers.append(request_id)

    def object_begin(self, header: ObjectHeader) -> None:
        self._location, self._payload = header.location, b""

    def payload(self, chunk: memoryview) -> None:
        self._payload += chunk

    def object_end(self) -> None:
        self._to.objects.append((self._location, self._payload))

    def end_of_range(self, marker: EndOfRange) -> None:
        self._to.markers.append(marker)

    def closed(self, error: StreamReset | None) -> None:
        self._to.ends.append(None if error is None else error.wire_code)
