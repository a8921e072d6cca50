"""One MOQT session without I/O (draft-22 section 2): control streams, SETUP, GOAWAY, and which stream is what.

The driver hands in what QUIC delivers (`receive`, `stream_reset`, `stop_sending`), takes events with `next_event`
and carries out `take_actions`. Stream IDs are QUIC's: their low bits say who opened a stream and whether it has one
or two directions. The driver opens streams and passes their IDs in, as it would the time.

A violation by the peer ends the session: a Close action with the code is queued and nothing is heard any more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from moqt.config import SessionConfig
from moqt.errors import ProtocolViolation, SessionErrorCode, StreamErrorCode
from moqt.protocol.actions import Action, Close, Reset, Send, Stop
from moqt.protocol.checks import check_sent, check_setup
from moqt.protocol.events import Event, GoawayReceived, SetupReceived
from moqt.protocol.request_streams import RequestStreams
from moqt.protocol.requests import encode
from moqt.protocol.streams import DataStreams
from moqt.protocol.tokens import Token, TokenCache
from moqt.wire.data import STREAM_FETCH, STREAM_PADDING, decode_datagram, is_subgroup_type
from moqt.wire.messages import (
    Goaway,
    InvalidFilter,
    Message,
    MessageReader,
    MessageType,
    Setup,
    SetupOptions,
    decode_message,
)
from moqt.wire.primitives import NeedMoreData, Reader


@dataclass(slots=True)
class _Early:
    """What came on a stream before the peer's SETUP."""

    data: bytearray = field(default_factory=bytearray)
    fin: bool = False


class SessionCore:
    """The state of one session, for either role; both ends may publish and subscribe."""

    def __init__(self, *, is_client: bool, options: SetupOptions, config: SessionConfig) -> None:
        self.is_client = is_client
        self.config = config
        self.options = options
        self.peer_options: SetupOptions | None = None
        self.peer_tokens: tuple[Token, ...] = ()
        """Tokens of the peer's SETUP."""
        self.closed = False
        self.goaway_sent = False
        self.tokens = TokenCache(config.auth_token_cache)
        self._actions: list[Action] = []
        self._events: deque[Event] = deque()
        self.data = DataStreams(config, self._actions)
        self.requests = RequestStreams(self, self._actions, self._events)
        self._control = MessageReader()
        self._control_in: int | None = None
        self._control_out: int | None = None
        self._types: dict[int, bytes] = {}
        self._padding: set[int] = set()
        self._early: dict[int, _Early] = {}

    # Driver's side

    def start(self, stream_id: int) -> None:
        """Sends SETUP on a unidirectional stream that the driver opened."""
        self._control_out = stream_id
        self._actions.append(Send(stream_id, encode(Setup(self.options))))

    def next_event(self) -> Event | None:
        """The oldest event not yet taken."""
        return self._events.popleft() if self._events else None

    def take_actions(self) -> list[Action]:
        """What the driver has to do now, in order."""
        taken = self._actions.copy()
        self._actions.clear()
        return taken

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """Says that this end means to leave; `timeout` in milliseconds. New requests are refused.

        Raises LocalError for a URI that may not be sent.
        """
        message = Goaway(uri, timeout)
        check_sent(message, by_client=self.is_client)
        if self._control_out is not None and not self.goaway_sent:
            encoded = encode(message)
            self.goaway_sent = True
            self._actions.append(Send(self._control_out, encoded))

    def close(self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = "") -> None:
        """Ends the session."""
        if not self.closed:
            self.closed = True
            self._actions.append(Close(code, reason))

    def give_up_openings(self, streams: frozenset[int]) -> None:
        """Refuses the request streams among these whose first message is still not whole."""
        for stream_id in sorted(streams):
            if self.requests.openings.give_up(stream_id):
                self._actions.append(Reset(stream_id, StreamErrorCode.CANCELLED))
                self._actions.append(Stop(stream_id, StreamErrorCode.CANCELLED))

    # What QUIC delivers

    def receive(self, stream_id: int, data: bytes, fin: bool) -> None:
        """Takes octets of one stream, in order."""
        if self.closed:
            return
        try:
            if self.peer_options is None and not self._may_come_first(stream_id):
                self._hold_early(stream_id, data, fin)
            else:
                self._receive(stream_id, data, fin)
        except ProtocolViolation as violation:
            self.close(violation.code, violation.reason)

    def _may_come_first(self, stream_id: int) -> bool:
        """Whether it is the peer's control stream, or a stream whose type is not known yet."""
        return bool(stream_id & 2) and stream_id not in self._early

    def _hold_early(self, stream_id: int, data: bytes, fin: bool) -> None:
        early = self._early.setdefault(stream_id, _Early())
        early.data += data
        early.fin = fin
        self.data.held += len(data)
        if self.data.held > self.config.max_buffered_unknown:
            raise ProtocolViolation("too much data before SETUP")

    def _replay_early(self) -> None:
        early, self._early = self._early, {}
        self.data.held -= sum(len(held.data) for held in early.values())
        for stream_id, held in early.items():
            self._receive(stream_id, bytes(held.data), held.fin)

    def _receive(self, stream_id: int, data: bytes, fin: bool) -> None:
        if stream_id & 2:
            if stream_id in self._types or stream_id not in self.data:
                self._receive_typed(stream_id, data, fin)
            else:
                self.data.receive(stream_id, data, fin)
        else:
            self.requests.receive(stream_id, data, fin)

    def _receive_typed(self, stream_id: int, data: bytes, fin: bool) -> None:
        """Octets of a unidirectional stream that is not, or not yet, a data stream."""
        if stream_id == self._control_in:
            self._receive_control(data, fin)
            return
        if stream_id in self._padding:
            if fin:
                self._padding.discard(stream_id)
            return
        data = self._take_type(stream_id) + data
        try:
            stream_type = Reader(data).vi64()
        except NeedMoreData:
            if fin:
                raise ProtocolViolation("FIN inside a stream type") from None
            self._types[stream_id] = data
            self.data.held += len(data)
            return
        if stream_type == MessageType.SETUP:
            if self._control_in is not None:
                raise ProtocolViolation("second control stream")
            self._control_in = stream_id
            self._receive_control(data, fin)
        elif self.peer_options is None:
            self._hold_early(stream_id, data, fin)
        elif stream_type == STREAM_FETCH or is_subgroup_type(stream_type):
            self.data.receive(stream_id, data, fin)
        elif stream_type == STREAM_PADDING:
            if not fin:
                self._padding.add(stream_id)
        else:
            raise ProtocolViolation(f"unknown unidirectional stream type 0x{stream_type:x}")

    def _take_type(self, stream_id: int) -> bytes:
        """The first octets of a stream that were too few to tell its type."""
        kept = self._types.pop(stream_id, b"")
        self.data.held -= len(kept)
        return kept

    def _receive_control(self, data: bytes, fin: bool) -> None:
        self._control.feed(data)
        while (framed := self._control.next()) is not None:
            message = _decode(*framed)
            if isinstance(message, Setup):
                self._receive_setup(message.options)
            elif isinstance(message, Goaway) and self.peer_options is not None:
                self._receive_goaway(message)
            else:
                raise ProtocolViolation(f"{type(message).__name__} on the control stream")
        if fin:
            raise ProtocolViolation("the control stream was closed")

    def _receive_setup(self, options: SetupOptions) -> None:
        if self.peer_options is not None:
            raise ProtocolViolation("second SETUP")
        check_setup(options, by_server=self.is_client)
        self.peer_tokens = self.tokens.resolve(options.authorization_tokens, in_setup=True)
        self.peer_options = options
        self._events.append(SetupReceived(options=options))
        self._replay_early()

    def _receive_goaway(self, message: Goaway) -> None:
        if self.requests.goaway_received:
            raise ProtocolViolation("second GOAWAY")
        if message.uri and not self.is_client:
            raise ProtocolViolation("GOAWAY with a URI from a client")
        self.requests.goaway_received = True
        self._events.append(GoawayReceived(request=None, message=message))

    def stream_reset(self, stream_id: int, code: int) -> None:
        """The peer gave up sending on a stream."""
        if self.closed:
            return
        early = self._early.pop(stream_id, None)
        if early is not None:
            self.data.held -= len(early.data)
        if stream_id == self._control_in:
            self.close(SessionErrorCode.PROTOCOL_VIOLATION, "the control stream was reset")
        elif stream_id & 2:
            self._take_type(stream_id)
            self._padding.discard(stream_id)
            self.data.reset(stream_id, code)
        else:
            self.requests.cancelled(stream_id, code, receiving=True)

    def stop_sending(self, stream_id: int, code: int) -> bool:
        """The peer does not want a stream. False when it is none of this session's control streams,
        which leaves it to whoever sends data."""
        if self.closed:
            return True
        if stream_id == self._control_out:
            self.close(SessionErrorCode.PROTOCOL_VIOLATION, "the control stream was stopped")
            return True
        if stream_id & 2:
            return False
        self.requests.cancelled(stream_id, code, receiving=False)
        return True

    def datagram(self, data: bytes) -> None:
        """Checks a datagram. Its Object is dropped: a datagram may be lost on the way as well."""
        if self.closed or self.peer_options is None:
            return
        try:
            decode_datagram(data)
        except ProtocolViolation as violation:
            self.close(violation.code, violation.reason)


def _decode(message_type: int, body: bytes) -> Message:
    """A message of the control stream."""
    try:
        return decode_message(message_type, body)
    except InvalidFilter as fault:
        raise ProtocolViolation(f"a request on the control stream, {fault.reason}") from None
