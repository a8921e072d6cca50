"""A whole session without I/O, fed by a peer that mutates: its octets, their order, resets, and requests of our own."""

from __future__ import annotations

from collections.abc import Callable

from moqt.config import SessionConfig
from moqt.errors import LocalError, SessionErrorCode
from moqt.model import FullTrackName
from moqt.protocol.actions import Close, Reset, Send, Stop
from moqt.protocol.events import RequestReceived, UpdateReceived
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    Fetch,
    Message,
    Request,
    RequestError,
    RequestOk,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    TrackStatus,
    encode_message,
)
from moqt.wire.parameters import Parameters
from tests.fuzz.target import Choices, Target
from tests.support.cores import OPTIONS, TRACK, End, Recorder
from tests.support.octets import streams_of_a_client

CONFIG = SessionConfig(
    max_buffered_unknown=4096, auth_token_cache=256, max_requests=32, max_namespaces=64
)
_CODES = {int(code) for code in SessionErrorCode}
_OTHER = FullTrackName((b"kv",), b"x")
_ASK: list[Callable[[int], Request]] = [
    lambda request_id: Subscribe(
        request_id, TRACK, Parameters(fill=Parameters(location_filter=LocationFilter.next_object()))
    ),
    lambda request_id: Fetch(request_id, _OTHER),
    lambda request_id: SubscribeNamespace(request_id, (b"kv",)),
    lambda request_id: TrackStatus(request_id, TRACK),
]
_ANSWERS: list[Message] = [SubscribeOk(5), RequestOk(), RequestError(0x10)]


class _Peer:
    """One end that hears what the input says. Request streams it opens have even IDs, its own odd ones, or the reverse."""

    def __init__(self, *, is_client: bool) -> None:
        self.end = End(is_client=is_client, options=OPTIONS, config=CONFIG)
        self.end.start()
        self.end.take()
        self.flip = int(is_client)
        self.gone: set[int] = set()
        self.fed = 0

    def step(self, choices: Choices) -> None:
        """One thing that the peer, or our side, does."""
        act = choices.number()
        stream_id = choices.number() ^ self.flip
        # The library lets a peer neither send on our unidirectional streams nor on those that ended.
        own = stream_id & 3 == 3 - self.flip
        match act % 8:
            case 0 | 1 | 2 | 3 if (
                not own and stream_id not in self.gone and self._exists(stream_id)
            ):
                octets = choices.piece(choices.number(2))
                fin = act % 8 == 3
                if fin:
                    self.gone.add(stream_id)
                self.fed += len(octets)
                self.end.feed(stream_id, octets, fin)
            case 4 if not own and stream_id not in self.gone and self._exists(stream_id):
                self.gone.add(stream_id)
                self.end.core.stream_reset(stream_id, choices.number())
            case 5 if self._exists(stream_id):
                self.end.core.stop_sending(stream_id, choices.number())
            case 6:
                self.end.core.datagram(choices.piece(choices.number()))
            case 7:
                self._own(choices.number())
            case _:
                pass
        self._check()

    def _exists(self, stream_id: int) -> bool:
        """Whether the peer may speak of the stream: one of its own, or one that we opened."""
        ours = stream_id & 1 == 1 - self.flip
        return not ours or stream_id in self._opened()

    def _opened(self) -> set[int]:
        return {action.stream_id for action in self.end.actions if isinstance(action, Send)}

    def _own(self, what: int) -> None:
        core = self.end.core
        if core.closed:
            return
        try:
            if what < 128:
                self.end.ask(_ASK[what % len(_ASK)](self.end.next_id), Recorder())
            elif what < 250:
                self._answer(what)
            else:
                core.goaway()
        except LocalError:
            pass

    def _answer(self, what: int) -> None:
        for event in self.end.events:
            if isinstance(event, RequestReceived):
                request = event.request
                self.end.core.requests.send(request, _ANSWERS[what % len(_ANSWERS)])
            elif isinstance(event, UpdateReceived):
                continue
        self.end.events.clear()

    def _check(self) -> None:
        end = self.end
        end.take()
        core = end.core
        assert core.data.held >= 0
        assert core.data.held <= CONFIG.max_buffered_unknown + 4096 or core.closed
        theirs = [request for request in core.requests.open.values() if not request.is_local]
        assert len(theirs) <= CONFIG.max_requests
        if end.closed is not None:
            assert int(end.closed.code) in _CODES
        for action in end.actions:
            assert isinstance(action, Send | Reset | Stop | Close)


def _run(*, is_client: bool) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        peer = _Peer(is_client=is_client)
        choices = Choices(data)
        while choices and not peer.end.core.closed:
            peer.step(choices)

    return run


def _step(act: int, stream_id: int, octets: bytes) -> bytes:
    return bytes((act, stream_id)) + len(octets).to_bytes(2, "big") + octets


_STREAMS = streams_of_a_client()
_OWN = [b"\7\0" + bytes((what,)) for what in (0, 1, 2, 3)]
_HELLO = _step(0, 2, encode_message(Setup()))
_LIVELY = b"".join(_step(0, stream_id, octets) for stream_id, octets in _STREAMS.items())
_SEEDS = [
    _LIVELY,
    _OWN[0] + _OWN[2] + _LIVELY,
    _HELLO + b"".join(_OWN) + b"".join(_step(0, at, _STREAMS[at]) for at in (1, 5, 9, 6, 10)),
    _HELLO + _step(0, 0, _STREAMS[0]) + b"\7\0\x81" + _step(3, 0, b"") + b"\5\0\0",
    _HELLO + b"\4\2\0",
    _HELLO + b"\6\0\5\0\1\2\3\4",
]
_WORDS = [_HELLO, *_OWN, b"\7\0\x81", b"\7\0\xff", *(_step(0, at, s) for at, s in _STREAMS.items())]

TARGETS = (
    Target(name="session-server", run=_run(is_client=False), errors=(), seeds=_SEEDS, words=_WORDS),
    Target(name="session-client", run=_run(is_client=True), errors=(), seeds=_SEEDS, words=_WORDS),
)
