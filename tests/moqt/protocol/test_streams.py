"""Routes of data streams: aliases, Request IDs, what waits for them, and what it costs (draft-22 section 6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moqt.config import SessionConfig
from moqt.errors import ProtocolViolation, SessionErrorCode, StreamErrorCode
from moqt.model import FullTrackName, GroupOrder, Location, ObjectHeader
from moqt.protocol.actions import Action, Stop
from moqt.protocol.streams import DataStreams, IncomingStream, StreamSink
from moqt.wire.data import FetchEncoder, SubgroupEncoder, SubgroupHeader
from tests.support.cores import TRACK, Recorder

OTHER = FullTrackName((b"kv",), b"other")
CANCELLED = StreamErrorCode.CANCELLED


class Streams(DataStreams):
    """With the actions at hand; every Request ID below 100 is ours."""

    def __init__(self, config: SessionConfig = SessionConfig()) -> None:  # noqa: B008 - frozen
        self.actions: list[Action] = []
        super().__init__(config, self.actions)
        self.is_ours = lambda request_id: request_id < 100


def subgroup(alias: int, *payloads: bytes, group: int = 0) -> bytes:
    header = SubgroupHeader(alias, group, 0, 5)
    encoder = SubgroupEncoder(header)
    objects = (encoder.object(n, len(p)) + p for n, p in enumerate(payloads))
    return header.encode() + b"".join(objects)


def fetch(request_id: int, *groups: int, order: GroupOrder = GroupOrder.ASCENDING) -> bytes:
    encoder = FetchEncoder(request_id, order)
    objects = (encoder.object(ObjectHeader(Location(g, 0), 1, 0, 5)) + b"x" for g in groups)
    return encoder.header + b"".join(objects)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_subgroup_stream_goes_to_its_alias(size: int) -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_alias(7, TRACK, receiver)
    octets = subgroup(7, b"abc", b"", b"de")
    for at in range(0, len(octets), size):
        streams.receive(2, octets[at : at + size], False)
    streams.receive(2, b"", True)
    assert receiver.objects == [
        (Location(0, 0), b"abc"),
        (Location(0, 1), b""),
        (Location(0, 2), b"de"),
    ]
    assert receiver.headers == [SubgroupHeader(7, 0, 0, 5)]
    assert receiver.ends == [None]
    assert streams.held == 0
    assert streams.taken == len(octets)
    assert 2 not in streams
    assert streams.actions == []


@pytest.mark.parametrize("order", list(GroupOrder))
def test_a_fetch_stream_goes_to_its_request_in_its_order(order: GroupOrder) -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_request(4, receiver, order)
    groups = (1, 2, 5) if order is GroupOrder.ASCENDING else (5, 2, 1)
    streams.receive(2, fetch(4, *groups, order=order), True)
    assert [location.group for location, _ in receiver.objects] == list(groups)
    assert receiver.headers == [4]


def test_a_stream_may_come_before_its_alias_is_known() -> None:
    streams, receiver = Streams(), Recorder()
    streams.expect_alias(TRACK)
    streams.receive(2, subgroup(7, b"a"), False)
    streams.receive(6, subgroup(7, b"b", group=1), True)
    streams.receive(10, subgroup(8, b"c"), False)
    assert receiver.opened == []
    assert streams.held == sum(len(subgroup(7, b"a")) for _ in range(3))
    streams.add_alias(7, TRACK, receiver)
    streams.alias_settled(TRACK)
    assert [payload for _, payload in receiver.objects] == [b"a", b"b"]
    assert receiver.ends == [None]
    assert streams.actions == [Stop(10, CANCELLED)]
    assert streams.held == 0
    streams.receive(2, b"\0\1z", True)
    assert receiver.objects[-1] == (Location(0, 1), b"z")


def test_what_waits_goes_on_waiting_for_another_subscription() -> None:
    streams = Streams()
    streams.expect_alias(TRACK)
    streams.expect_alias(OTHER)
    streams.receive(2, subgroup(9, b"a"), True)
    streams.add_alias(7, TRACK, Recorder())
    streams.alias_settled(TRACK)
    receiver = Recorder()
    streams.add_alias(9, OTHER, receiver)
    streams.alias_settled(OTHER)
    assert receiver.objects == [(Location(0, 0), b"a")]


def test_an_unknown_alias_is_refused_when_nothing_is_awaited() -> None:
    streams = Streams()
    streams.receive(2, subgroup(7, b"a")[:3], False)
    assert streams.held == 3
    streams.receive(2, subgroup(7, b"a")[3:], False)
    assert streams.actions == [Stop(2, CANCELLED)]
    streams.receive(2, bytes(5000), False)
    assert streams.held == 0
    streams.receive(2, b"", True)
    assert 2 not in streams
    streams.receive(6, subgroup(7), True)
    assert 6 not in streams
    assert len(streams.actions) == 1


def test_limits_of_what_waits() -> None:
    streams = Streams(SessionConfig(max_unknown_streams=3, max_buffered_unknown=1000))
    streams.expect_alias(TRACK)
    for n in range(4):
        streams.receive(2 + 4 * n, subgroup(7, b"a"), False)
    assert streams.actions == [Stop(14, CANCELLED)]
    streams.receive(2, bytes(990), False)
    assert streams.actions[1:] == [Stop(2, CANCELLED)]
    assert streams.held == 2 * len(subgroup(7, b"a"))
    streams.reset(6, 1)
    streams.reset(10, 1)
    assert streams.held == 0


def test_a_retired_alias_waits_for_its_own_track_only() -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_alias(7, TRACK, receiver)
    streams.remove_alias(7, receiver)
    streams.remove_alias(7, receiver)
    streams.receive(2, subgroup(7, b"late"), False)
    streams.expect_alias(OTHER)
    streams.receive(6, subgroup(7, b"late"), False)
    assert streams.actions == [Stop(2, CANCELLED), Stop(6, CANCELLED)]
    streams.expect_alias(TRACK)
    streams.receive(10, subgroup(7, b"again"), True)
    again = Recorder()
    streams.add_alias(7, TRACK, again)
    streams.alias_settled(TRACK)
    assert again.objects == [(Location(0, 0), b"again")]


def test_few_retired_aliases_are_remembered() -> None:
    streams, receiver = Streams(), Recorder()
    for alias in range(5000):
        streams.add_alias(alias, TRACK, receiver)
        streams.remove_alias(alias, receiver)
    assert len(streams._retired) == 1024
    assert not streams._aliases


def test_one_alias_cannot_name_two_tracks() -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_alias(7, TRACK, receiver)
    with pytest.raises(ProtocolViolation) as caught:
        streams.add_alias(7, OTHER, receiver)
    assert caught.value.code is SessionErrorCode.DUPLICATE_TRACK_ALIAS
    streams.remove_alias(7, receiver)
    streams.add_alias(7, OTHER, receiver)


def test_subscriptions_may_share_an_alias() -> None:
    streams, far = Streams(), Recorder()
    heard: list[object] = []
    left: list[StreamSink] = []

    class Leaving(Recorder):
        def open_stream(self, stream: IncomingStream) -> StreamSink | None:
            sink = super().open_stream(stream)
            assert sink is not None
            left.append(sink)
            return sink

    near = Leaving()
    streams.add_alias(7, TRACK, near)
    streams.add_alias(7, TRACK, far)
    streams.receive(2, subgroup(7, b"a"), False)
    stream = near.opened[0]
    stream.watchers += [heard.append, heard.append]
    streams.leave(stream, left[0], CANCELLED)
    streams.receive(2, b"\0\1b", True)
    assert [payload for _, payload in near.objects] == [b"a"]
    assert [payload for _, payload in far.objects] == [b"a", b"b"]
    assert near.headers == far.headers
    assert heard == [None, None]
    streams.remove_alias(7, far)
    streams.receive(6, subgroup(7, b"c", group=1), False)
    streams.leave(near.opened[1], left[1], CANCELLED)
    assert streams.actions == [Stop(6, CANCELLED)]


def test_a_receiver_may_refuse() -> None:
    streams, receiver = Streams(), Recorder(accept=False)
    streams.add_alias(7, TRACK, receiver)
    streams.add_request(4, receiver, GroupOrder.ASCENDING)
    streams.receive(2, subgroup(7, b"a"), False)
    streams.receive(6, fetch(4, 1), False)
    streams.receive(10, fetch(4, 1), True)
    assert streams.actions == [Stop(2, CANCELLED), Stop(6, CANCELLED)]
    assert receiver.objects == []
    assert streams.held == 0


def test_a_fetch_stream_of_an_ended_request_is_refused() -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_request(4, receiver, GroupOrder.ASCENDING)
    streams.remove_request(4)
    streams.receive(2, fetch(4, 1), False)
    assert streams.actions == [Stop(2, CANCELLED)]
    with pytest.raises(ProtocolViolation):
        streams.receive(6, fetch(100, 1), False)


def test_a_reset_is_told_to_sink_and_watchers() -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_alias(7, TRACK, receiver)
    streams.receive(2, subgroup(7, b"abc")[:-1], False)
    heard: list[object] = []
    receiver.opened[0].watchers.append(heard.append)
    streams.reset(2, 0x777)
    streams.reset(2, 0x777)
    streams.reset(6, 0x777)
    assert receiver.ends == [0x777]
    assert len(heard) == 1


class Stopping(StreamSink):
    """Stops its stream at the first call of a kind."""

    def __init__(self, streams: Streams, stream: IncomingStream, at: str) -> None:
        self.calls: list[str] = []
        self._stop: Callable[[], None] = lambda: streams.stop(stream, CANCELLED)
        self._at = at

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self._at:
            self._stop()

    def object_begin(self, header: ObjectHeader) -> None:
        self._note("begin")

    def payload(self, chunk: memoryview) -> None:
        self._note("payload")

    def object_end(self) -> None:
        self._note("end")

    def closed(self, error: object) -> None:
        self._note("closed")


@pytest.mark.parametrize("at", ["begin", "payload", "end"])
@pytest.mark.parametrize("fin", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_a_sink_may_stop_its_stream_at_any_time(at: str, fin: bool, waits: bool) -> None:
    streams = Streams()
    sinks: list[Stopping] = []
    heard: list[object] = []

    class Receiver:
        group_order = GroupOrder.ASCENDING

        def open_stream(self, stream: IncomingStream) -> StreamSink:
            sinks.append(Stopping(streams, stream, at))
            stream.watchers.append(heard.append)
            return sinks[0]

    if waits:
        streams.expect_alias(TRACK)
    else:
        streams.add_alias(7, TRACK, Receiver())
    streams.receive(2, subgroup(7, b"ab", b"cd"), fin)
    if waits:
        streams.add_alias(7, TRACK, Receiver())
        streams.alias_settled(TRACK)
    before = len(sinks[0].calls)
    assert "closed" not in sinks[0].calls
    if not fin:
        assert streams.actions == [Stop(2, CANCELLED)]
        streams.receive(2, b"\0\1x", False)
        streams.reset(2, 1)
    assert len(sinks[0].calls) == before
    assert 2 not in streams
    assert streams.held == 0
    assert len(heard) == 1
    assert heard[0] is not None


def test_the_end_of_the_session_resets_all() -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_alias(7, TRACK, receiver)
    streams.expect_alias(OTHER)
    streams.receive(2, subgroup(7, b"abc")[:-1], False)
    streams.receive(6, subgroup(8, b"abc"), False)
    streams.end(StreamErrorCode.SESSION_CLOSED)
    assert receiver.ends == [StreamErrorCode.SESSION_CLOSED]
    assert streams.held == 0


@pytest.mark.parametrize("octets", ["50", "500700", "0504", "50070005 00 03 61"])
def test_fin_in_the_middle_closes(octets: str) -> None:
    streams, receiver = Streams(), Recorder()
    streams.add_alias(7, TRACK, receiver)
    data = bytes.fromhex(octets)
    if data[0] == 5:
        streams.add_request(4, receiver, GroupOrder.ASCENDING)
        data += b"\x1c"
    with pytest.raises(ProtocolViolation):
        streams.receive(2, data, True)


def test_properties_are_bounded() -> None:
    streams, receiver = Streams(SessionConfig(max_properties_size=10)), Recorder()
    streams.add_alias(7, TRACK, receiver)
    with pytest.raises(ProtocolViolation):
        streams.receive(2, bytes.fromhex("51070005 00 0b"), False)
