"""The session core against itself and against hand-made octets (draft-22 sections 2, 3 and 8.1)."""

from __future__ import annotations

import pytest

from moqt.config import SessionConfig
from moqt.errors import LocalError, RequestErrorCode, SessionErrorCode, StreamErrorCode
from moqt.model import FullTrackName, GroupOrder, Location
from moqt.protocol.actions import Reset, Send, Stop
from moqt.protocol.events import (
    Answered,
    GoawayReceived,
    MessageReceived,
    RequestEnded,
    RequestReceived,
    SetupReceived,
    UpdateAnswered,
    UpdateReceived,
)
from moqt.protocol.requests import Phase, RequestState, UsedIds
from moqt.protocol.tokens import Token
from moqt.wire.filters import LocationFilter, RangeFilter
from moqt.wire.framing import frame
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Message,
    MessageType,
    Namespace,
    NamespaceDone,
    Publish,
    PublishDone,
    PublishNamespace,
    PublishSkipped,
    PublishStateNotify,
    Redirect,
    Request,
    RequestError,
    RequestOk,
    RequestUpdate,
    Setup,
    SetupOptions,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
    encode_message,
)
from moqt.wire.parameters import AliasType, AuthorizationToken, Parameters
from moqt.wire.primitives import encode_vi64
from tests.support.cores import TRACK, End, Pair, Recorder

Code = SessionErrorCode
EMPTY_SETUP = bytes.fromhex("af000000")
FIRST = LocationFilter.absolute_start(Location(0, 0))
REFUSAL = RequestError(RequestErrorCode.UNINTERESTED, 0, "no", None)


def server() -> End:
    """A server that has the client's SETUP, on the client's stream 2."""
    end = End(is_client=False)
    end.start()
    end.feed(2, EMPTY_SETUP)
    end.events.clear()
    return end


def client() -> End:
    """A client that has the server's SETUP, on the server's stream 3."""
    end = End(is_client=True)
    end.start()
    end.feed(3, EMPTY_SETUP)
    end.events.clear()
    return end


def asked(
    pair: Pair, request: Request, receiver: Recorder | None = None
) -> tuple[RequestState, RequestState]:
    """A request of the client, as it is known on both sides."""
    near = pair.client.ask(request, receiver)
    pair.run()
    return near, pair.server.one(RequestReceived).request


def accepted(
    pair: Pair, request: Request, receiver: Recorder | None = None
) -> tuple[RequestState, RequestState]:
    near, far = asked(pair, request, receiver)
    pair.server.core.requests.send(far, ok_for(request))
    pair.run()
    pair.client.one(Answered)
    return near, far


def ok_for(request: Request) -> Message:
    if isinstance(request, Subscribe):
        return SubscribeOk(7)
    return FetchOk(False, Location(0, 0)) if isinstance(request, Fetch) else RequestOk()


def requests(request_id: int) -> list[Request]:
    return [
        Subscribe(request_id, TRACK),
        Fetch(request_id, TRACK),
        TrackStatus(request_id, TRACK),
        Publish(request_id, TRACK, 9),
        PublishNamespace(request_id, (b"kv",)),
        SubscribeNamespace(request_id, (b"kv",)),
        SubscribeTracks(request_id, (b"kv",)),
    ]


KINDS = requests(0)
NAMES = [type(request).__name__ for request in KINDS]


# Control streams


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("server_first", [False, True])
def test_setup_crosses_in_either_order(server_first: bool, chunk: int | None) -> None:
    pair = Pair(client=SetupOptions(path="/a?b", authority="[::1]:4443"), chunk=chunk)
    for end in (pair.server, pair.client) if server_first else (pair.client, pair.server):
        end.start()
        pair.run()
    assert pair.server.one(SetupReceived).options.path == "/a?b"
    assert pair.client.one(SetupReceived).options.max_filter_ranges == 8
    assert pair.client.closed is pair.server.closed is None


def test_requests_and_objects_may_overtake_setup() -> None:
    end = End(is_client=False)
    end.start()
    request = encode_message(Subscribe(0, TRACK))
    end.feed(0, request[:4])
    end.feed(6, bytes.fromhex("f0132b3e28"))
    end.feed(0, request[4:], True)
    assert end.events == []
    assert end.core.data.held == len(request) + 5
    end.feed(2, EMPTY_SETUP)
    end.one(SetupReceived)
    received = end.one(RequestReceived).request
    assert received.message == Subscribe(0, TRACK)
    assert received.fin_received
    assert end.core.data.held == 0
    assert end.closed is None


def test_what_was_reset_before_setup_is_forgotten() -> None:
    end = End(is_client=False)
    end.start()
    end.feed(0, encode_message(Subscribe(0, TRACK)))
    end.feed(6, bytes.fromhex("5009"))
    end.core.stream_reset(0, 1)
    end.core.stream_reset(6, 1)
    assert end.core.data.held == 0
    end.feed(2, EMPTY_SETUP)
    assert end.none(RequestReceived)
    assert end.closed is None


def test_data_before_setup_is_bounded() -> None:
    end = End(is_client=False, config=SessionConfig(max_buffered_unknown=1000))
    end.start()
    for _ in range(11):
        end.feed(0, bytes(100))
    assert end.closed is not None
    assert end.closed.code is Code.PROTOCOL_VIOLATION


def setup(**options: object) -> bytes:
    return encode_message(Setup(SetupOptions(**options)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("is_client", "octets", "code"),
    [
        (True, setup(path="/x"), Code.INVALID_PATH),
        (True, setup(authority="host"), Code.INVALID_AUTHORITY),
        (False, setup(path="x"), Code.MALFORMED_PATH),
        (False, setup(path="/a b"), Code.MALFORMED_PATH),
        (False, setup(path="/a#b"), Code.MALFORMED_PATH),
        (False, setup(path="/%zz"), Code.MALFORMED_PATH),
        (False, setup(authority="a b"), Code.MALFORMED_AUTHORITY),
        (False, setup(authority="user@host"), Code.MALFORMED_AUTHORITY),
        (False, setup(authority="host:port"), Code.MALFORMED_AUTHORITY),
        (False, setup(authority=""), Code.MALFORMED_AUTHORITY),
        (False, bytes.fromhex("af000003 0101ff"), Code.MALFORMED_PATH),
        (False, bytes.fromhex("af000003 03 01 09"), Code.KEY_VALUE_FORMATTING_ERROR),
        (False, bytes.fromhex("af000004 03 02 00 05"), Code.PROTOCOL_VIOLATION),  # DELETE
        (False, bytes.fromhex("af000004 03 02 02 05"), Code.PROTOCOL_VIOLATION),  # USE_ALIAS
        (False, bytes.fromhex("af000004 0101 61 00"), Code.PROTOCOL_VIOLATION),  # PATH twice
        (False, bytes.fromhex("af000003 07 05 61"), Code.PROTOCOL_VIOLATION),  # too short
    ],
)
def test_setup_options_that_close(is_client: bool, octets: bytes, code: SessionErrorCode) -> None:
    end = End(is_client=is_client)
    end.start()
    end.feed(3 if is_client else 2, octets)
    assert end.closed is not None
    assert end.closed.code is code


@pytest.mark.parametrize(
    "options",
    [{}, {"path": ""}, {"path": "/?q=%20/x"}, {"authority": "h"}, {"authority": "[::1]:1"}],
)
def test_setup_options_that_pass(options: dict[str, object]) -> None:
    end = End(is_client=False)
    end.start()
    # An unknown even and an unknown odd option, twice, and a grease value.
    unknown = ((0x7E, 1), (0x7E, 2), (0x7F, b"x"), (0x7F, b""), (0x9D + 0x7F, 3))
    end.feed(2, encode_message(Setup(SetupOptions(**options, unknown=unknown))))  # type: ignore[arg-type]
    end.one(SetupReceived)
    assert end.closed is None


@pytest.mark.parametrize(
    ("stream_id", "octets", "fin"),
    [
        (2, encode_message(Setup()), False),  # second SETUP
        (6, EMPTY_SETUP, False),  # second control stream
        (2, b"", True),  # FIN
        (2, encode_message(Subscribe(0, TRACK)), False),
        (2, encode_message(RequestError(0)), False),
        (2, frame(MessageType.REQUEST_OK, b"\0"), False),
        (2, frame(0x99, b""), False),  # unknown message
        (2, frame(MessageType.GOAWAY, b"\0\0\0"), False),  # too long
        (2, frame(MessageType.GOAWAY, b"\0"), False),  # too short
        (2, encode_message(Goaway("moqt://elsewhere", 0)), False),  # URI from a client
        (2, encode_message(Goaway()) * 2, False),
        (6, bytes.fromhex("4f"), False),  # unknown stream types
        (6, bytes.fromhex("0000"), False),
        (6, bytes.fromhex("16"), False),  # subgroup mode 3
        (6, bytes.fromhex("8090"), False),  # 0x90
        (6, b"\x80", True),  # FIN inside a type
        (6, b"", True),
        (6, bytes.fromhex("50"), True),  # FIN inside a header
        (6, bytes.fromhex("0504"), False),  # a fetch stream that nobody asked for
        (6, bytes.fromhex("0501"), False),  # the same, of an ID of ours
        (0, encode_message(RequestError(0)), False),  # wrong first messages
        (0, encode_message(Goaway()), False),
        (0, frame(MessageType.SETUP, b""), False),
        (0, frame(0x40, b""), False),
        (0, frame(MessageType.SUBSCRIBE, b"\0"), False),  # body too short
        (0, encode_message(Subscribe(0, TRACK))[:5], True),  # FIN inside it
        (0, b"", True),
        (0, encode_message(Subscribe(0, TRACK)) + b"\x02", True),
        (0, encode_message(Subscribe(0, TRACK)) * 2, False),
        (0, encode_message(Subscribe(0, TRACK)) + frame(0x77, b""), False),
        (0, encode_message(Publish(0, TRACK, 1, Parameters(), ((0x30, 2),))), False),
        (0, encode_message(Publish(0, TRACK, 1, Parameters(), ((0x22, 3),))), False),
    ],
)
def test_what_closes_a_server(stream_id: int, octets: bytes, fin: bool) -> None:
    end = server()
    end.feed(stream_id, octets, fin)
    assert end.closed is not None
    assert end.closed.code is Code.PROTOCOL_VIOLATION
    end.feed(0, b"anything")
    assert end.core.next_event() is None


@pytest.mark.parametrize("by_stop", [False, True])
def test_a_control_stream_may_not_be_given_up(by_stop: bool) -> None:
    end = server()
    if by_stop:
        assert end.core.stop_sending(3, 0)
    else:
        end.core.stream_reset(2, 0)
    end.take()
    assert end.closed is not None
    assert end.closed.code is Code.PROTOCOL_VIOLATION


def test_an_invalid_filter_on_the_control_stream_is_a_violation() -> None:
    end = server()
    end.feed(2, subscribe_with_invalid_filter(0))
    assert end.closed is not None


def test_padding_is_ignored() -> None:
    end = server()
    end.feed(6, bytes.fromhex("f0132b3e28") + bytes(100))
    end.feed(6, bytes(1000))
    end.feed(6, b"", True)
    end.feed(10, bytes.fromhex("f0132b3e28"), True)
    end.core.datagram(bytes.fromhex("f0132b3e29") + bytes(9))
    end.core.datagram(bytes.fromhex("2805030203"))
    assert end.take() == []
    assert end.core.data.held == 0


@pytest.mark.parametrize("octets", ["10", "4000", "22", "f0132b3e2a", "", "00"])
def test_an_unknown_datagram_closes(octets: str) -> None:
    end = server()
    end.core.datagram(bytes.fromhex(octets))
    end.take()
    assert end.closed is not None
    assert end.closed.code is Code.PROTOCOL_VIOLATION


# GOAWAY


def test_goaway_ends_new_requests_on_both_sides() -> None:
    pair = Pair().established()
    pair.server.core.goaway("moqt://other/", 1000)
    pair.server.core.goaway("moqt://again/", 1000)
    crossing = pair.client.ask(Subscribe(0, TRACK))
    pair.run()
    assert pair.client.one(GoawayReceived).message == Goaway("moqt://other/", 1000)
    assert pair.server.none(RequestReceived)
    answer = pair.client.one(Answered)
    assert isinstance(answer.message, RequestError)
    assert answer.message.code == RequestErrorCode.GOING_AWAY
    assert crossing.phase is Phase.ENDED
    before = pair.client.next_id
    with pytest.raises(LocalError):
        pair.client.ask(Subscribe(before, TRACK))
    assert pair.client.next_id == before
    assert not pair.client.core.requests.open
    assert not pair.server.core.requests.open


def test_goaway_that_may_not_be_sent() -> None:
    pair = Pair().established()
    with pytest.raises(LocalError):
        pair.client.core.goaway("moqt://x/")
    with pytest.raises(LocalError):
        pair.server.core.goaway("m" * 8193)
    assert not pair.server.core.goaway_sent


def test_goaway_of_one_request() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    pair.server.core.requests.send(far, Goaway("moqt://x/", 5))
    pair.run()
    event = pair.client.one(GoawayReceived)
    assert event.request is near
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, Goaway())
    pair.client.feed(near.stream_id, encode_message(Goaway()))
    assert pair.client.closed is not None
    pair.server.feed(near.stream_id, encode_message(Goaway("moqt://x/", 5)))
    assert pair.server.closed is not None


# Request IDs


def test_request_ids_may_come_out_of_order() -> None:
    end = server()
    for stream_id, request_id in ((8, 4), (0, 0), (4, 2), (12, 100), (16, 6)):
        end.feed(stream_id, encode_message(TrackStatus(request_id, TRACK)))
        assert end.one(RequestReceived).request.request_id == request_id


@pytest.mark.parametrize("ids", [(1,), (0, 0), (0, 2, 4, 2), (6, 6)])
def test_a_wrong_request_id_closes(ids: tuple[int, ...]) -> None:
    end = server()
    for n, request_id in enumerate(ids):
        assert end.closed is None
        end.feed(4 * n, encode_message(TrackStatus(request_id, TRACK)))
    assert end.closed is not None
    assert end.closed.code is Code.INVALID_REQUEST_ID


def test_a_refused_request_uses_its_id_up() -> None:
    end = server()
    end.feed(0, subscribe_with_invalid_filter(0))
    end.feed(4, encode_message(TrackStatus(0, TRACK)))
    assert end.closed is not None
    assert end.closed.code is Code.INVALID_REQUEST_ID


def test_used_ids_are_bounded() -> None:
    used = UsedIds(0, 2)
    for value in range(0, 30_000, 4):
        assert used.take(value)
    assert len(used._seen) <= 4096
    assert not used.take(2)
    assert not used.take(28_000)
    assert used.take(29_998)


def test_an_unused_id_is_used_next() -> None:
    pair = Pair().established()
    with pytest.raises(LocalError):
        pair.client.ask(Subscribe(0, FullTrackName((b"x" * 5000,), b"")))
    assert pair.client.next_id == 0
    near, _ = accepted(pair, Subscribe(0, TRACK))
    with pytest.raises(LocalError):
        pair.client.core.requests.update(near, Parameters(group_order=GroupOrder.ASCENDING))
    assert pair.client.next_id == 2
    assert not near.updates


# The life of request streams, section 2.5


@pytest.mark.parametrize("request_", KINDS, ids=NAMES)
@pytest.mark.parametrize("chunk", [None, 1])
def test_every_request_is_answered(request_: Request, chunk: int | None) -> None:
    pair = Pair(chunk=chunk).established()
    near, far = asked(pair, request_)
    assert far.message == request_
    assert {far.phase, near.phase} == {Phase.PENDING}
    pair.server.core.requests.send(far, ok_for(request_))
    pair.run()
    answer = pair.client.one(Answered)
    assert answer.request is near
    assert answer.message == ok_for(request_)
    assert {far.phase, near.phase} == {Phase.ESTABLISHED}


@pytest.mark.parametrize("request_", KINDS, ids=NAMES)
@pytest.mark.parametrize("fin", [False, True])
def test_every_request_can_be_refused(request_: Request, fin: bool) -> None:
    pair = Pair().established()
    receiver = Recorder()
    near, far = asked(pair, request_, receiver)
    pair.server.core.requests.send(far, REFUSAL, fin=fin)
    pair.run()
    assert pair.client.one(Answered).message == REFUSAL
    assert near.phase is Phase.ENDED
    if not fin:
        pair.server.core.requests.finish(far)
        pair.run()
    assert_empty(pair)


def assert_empty(pair: Pair) -> None:
    """No state is left of any request."""
    pair.run()
    for end in (pair.client, pair.server):
        assert end.closed is None
        assert not end.core.requests.open
        assert not end.core.requests.openings.waiting
        data = end.core.data
        assert not data._requests
        assert not data._aliases
        assert not data._awaiting
        assert not data._streams
        assert not data.held


@pytest.mark.parametrize("request_", KINDS, ids=NAMES)
def test_fin_instead_of_an_answer_fails_the_request(request_: Request) -> None:
    pair = Pair().established()
    near, _ = asked(pair, request_, Recorder())
    pair.client.feed(near.stream_id, b"", True)
    ended = pair.client.one(RequestEnded)
    assert ended.request is near
    assert ended.code is None
    assert near.phase is Phase.ENDED
    assert pair.client.closed is None


@pytest.mark.parametrize("request_", [k for k in KINDS if not isinstance(k, Publish)])
def test_the_requesters_fin_is_no_cancellation(request_: Request) -> None:
    pair = Pair().established()
    near, far = asked(pair, request_)
    pair.client.core.requests.finish(near)
    pair.run()
    assert pair.server.none(RequestEnded)
    assert far.answer is None
    pair.server.core.requests.send(far, ok_for(request_))
    pair.run()
    pair.client.one(Answered)
    assert far.phase is Phase.ESTABLISHED


def test_fin_before_what_is_owed_is_not_sent() -> None:
    pair = Pair().established()
    near, far = asked(pair, Subscribe(0, TRACK))
    published = pair.client.ask(Publish(2, TRACK, 1))
    for request, end in ((far, pair.server), (published, pair.client)):
        with pytest.raises(LocalError):
            end.core.requests.finish(request)
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, SubscribeOk(1), fin=True)
    assert far.answer is None
    pair.server.core.requests.send(far, SubscribeOk(1))
    with pytest.raises(LocalError):
        pair.server.core.requests.finish(far)
    pair.server.core.requests.send(far, PublishDone(2, 0), fin=True)
    pair.run()
    assert isinstance(pair.client.one(MessageReceived).message, PublishDone)
    assert near.fin_sent
    assert near.phase is far.phase is Phase.ENDED


def test_a_publish_that_finishes_early_has_failed() -> None:
    end = server()
    end.feed(0, encode_message(Publish(0, TRACK, 1)), True)
    request = end.one(RequestReceived).request
    assert end.one(RequestEnded).request is request
    assert end.closed is None


def test_a_subscription_without_publish_done_has_failed() -> None:
    pair = Pair().established()
    receiver = Recorder()
    near, _ = accepted(pair, Subscribe(0, TRACK), receiver)
    pair.client.feed(near.stream_id, b"", True)
    assert pair.client.one(RequestEnded).code is None
    assert not pair.client.core.data._aliases


@pytest.mark.parametrize("kind", [SubscribeNamespace, SubscribeTracks])
def test_the_publishers_fin_ends_a_namespace_subscription(
    kind: type[SubscribeNamespace] | type[SubscribeTracks],
) -> None:
    pair = Pair().established()
    near, far = accepted(pair, kind(0, (b"kv",)))
    pair.server.core.requests.finish(far)
    pair.run()
    assert pair.client.one(RequestEnded).request is near
    assert_empty(pair)


def test_fin_of_an_accepted_publish_namespace_takes_nothing_back() -> None:
    pair = Pair().established()
    near, far = accepted(pair, PublishNamespace(0, (b"kv",)))
    pair.server.core.requests.finish(far)
    pair.run()
    assert pair.client.none(RequestEnded)
    pair.client.core.requests.cancel(near)
    pair.run()
    assert pair.server.one(RequestEnded).request is far
    assert_empty(pair)


@pytest.mark.parametrize("request_", KINDS, ids=NAMES)
@pytest.mark.parametrize("established", [False, True])
@pytest.mark.parametrize("by_client", [False, True])
@pytest.mark.parametrize("finished", [False, True])
def test_either_side_can_cancel(
    request_: Request, established: bool, by_client: bool, finished: bool
) -> None:
    pair = Pair().established()
    receiver = Recorder()
    near, far = (accepted if established else asked)(pair, request_, receiver)
    if finished and not isinstance(request_, Publish):
        pair.client.core.requests.finish(near)
        pair.run()
    if by_client:
        pair.client.core.requests.cancel(near, StreamErrorCode.GOING_AWAY)
    else:
        pair.server.core.requests.cancel(far, StreamErrorCode.GOING_AWAY)
    pair.run()
    told = pair.server if by_client else pair.client
    teller = pair.client if by_client else pair.server
    assert told.one(RequestEnded).code == StreamErrorCode.GOING_AWAY
    assert teller.none(RequestEnded)
    assert near.phase is far.phase is Phase.ENDED
    assert_empty(pair)


def test_whoever_cancels_does_it_in_every_open_direction() -> None:
    end = client()
    request = end.ask(Fetch(0, TRACK), Recorder())
    end.take()
    end.core.requests.cancel(request)
    assert end.take() == [Reset(0, 1), Stop(0, 1)]
    request = end.ask(Fetch(2, TRACK), Recorder())
    end.core.requests.finish(request)
    end.take()
    end.core.requests.cancel(request)
    assert end.take() == [Stop(4, 1)]
    end.core.requests.cancel(request)
    assert end.take() == []


def test_a_cancellation_may_overtake_its_request() -> None:
    """STOP_SENDING and the octets of a stream travel apart."""
    end = server()
    octets = encode_message(Subscribe(0, TRACK))
    end.feed(0, octets[:6])
    end.core.stop_sending(0, 1)
    end.feed(0, octets[6:], True)
    end.core.stop_sending(4, 1)
    end.feed(4, encode_message(Subscribe(2, TRACK)), True)
    assert end.none(RequestReceived)
    assert end.closed is None
    assert not end.core.requests.openings.waiting


def test_a_late_stop_leaves_nothing_behind() -> None:
    pair = Pair().established()
    asked(pair, TrackStatus(0, TRACK))
    far = pair.server.core.requests.open[0]
    pair.server.core.requests.send(far, RequestOk(), fin=True)
    pair.run()
    pair.server.core.stop_sending(0, 1)
    assert_empty(pair)


def test_messages_after_a_refusal_are_ignored() -> None:
    pair = Pair().established()
    near, far = asked(pair, Subscribe(0, TRACK))
    pair.server.core.requests.send(far, REFUSAL, fin=True)
    pair.server.take()
    pair.server.feed(near.stream_id, encode_message(RequestUpdate(2), Subscribe))
    assert pair.server.closed is None
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, SubscribeOk(1))


def test_more_requests_than_allowed_are_refused() -> None:
    pair = Pair(config=SessionConfig(max_requests=3)).established()
    for n in range(4):
        pair.client.ask(PublishNamespace(2 * n, (b"kv",)))
    pair.run()
    refusal = pair.client.one(Answered).message
    assert isinstance(refusal, RequestError)
    assert refusal.code == RequestErrorCode.EXCESSIVE_LOAD
    assert refusal.retry_interval > 0
    assert pair.server.core.requests.openings.waiting == 0


# What may cross when


@pytest.mark.parametrize("request_", KINDS, ids=NAMES)
def test_a_second_answer_closes(request_: Request) -> None:
    pair = Pair().established()
    near, _ = accepted(pair, request_)
    pair.client.feed(near.stream_id, encode_message(ok_for(request_), type(request_)))
    assert pair.client.closed is not None
    assert pair.client.closed.code is Code.PROTOCOL_VIOLATION


@pytest.mark.parametrize("request_", KINDS, ids=NAMES)
def test_the_answer_of_another_kind_closes(request_: Request) -> None:
    pair = Pair().established()
    near, far = asked(pair, request_)
    wrong: Message = (
        SubscribeOk(1) if not isinstance(request_, Subscribe) else FetchOk(False, Location(0, 0))
    )
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, wrong)
    pair.client.feed(near.stream_id, encode_message(wrong))
    assert pair.client.closed is not None


@pytest.mark.parametrize(
    "early",
    [Namespace((b"x",)), NamespaceDone((b"x",)), PublishSkipped((), b"x"), PublishDone(0, 0)],
)
@pytest.mark.parametrize(
    "request_", [SubscribeNamespace(0, ()), SubscribeTracks(0, ()), Subscribe(0, TRACK)]
)
def test_the_first_reply_is_the_answer(request_: Request, early: Message) -> None:
    pair = Pair().established()
    near, far = asked(pair, request_)
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, early)
    pair.client.feed(near.stream_id, encode_message(early))
    assert pair.client.closed is not None


def test_namespaces_come_and_go() -> None:
    pair = Pair().established()
    near, far = accepted(pair, SubscribeNamespace(0, (b"kv",)))
    pair.server.core.requests.send(far, Namespace((b"a",)))
    pair.server.core.requests.send(far, Namespace(()))
    pair.server.core.requests.send(far, NamespaceDone((b"a",)))
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, NamespaceDone((b"a",)))
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, NamespaceDone((b"b",)))
    pair.run()
    assert len(pair.client.events) == 3
    # Relays repeat themselves when the publisher's session is lost.
    pair.client.feed(near.stream_id, encode_message(NamespaceDone((b"a",))))
    assert pair.client.closed is None
    pair.client.feed(near.stream_id, encode_message(NamespaceDone((b"b",))))
    assert pair.client.closed is not None


def test_publish_state_notify_is_the_publishers() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    pair.server.core.requests.send(far, PublishStateNotify())
    pair.run()
    pair.client.one(MessageReceived)
    with pytest.raises(LocalError):
        pair.client.core.requests.send(near, PublishStateNotify())
    pair.server.feed(near.stream_id, encode_message(PublishStateNotify()))
    assert pair.server.closed is not None


@pytest.mark.parametrize(
    "request_", [Fetch(0, TRACK), TrackStatus(0, TRACK), SubscribeTracks(0, ())]
)
def test_publish_state_notify_elsewhere_closes(request_: Request) -> None:
    pair = Pair().established()
    near, _ = accepted(pair, request_)
    pair.client.feed(near.stream_id, encode_message(PublishStateNotify()))
    assert pair.client.closed is not None


def test_track_properties_belong_to_track_status_alone() -> None:
    pair = Pair().established()
    near, far = asked(pair, TrackStatus(0, TRACK))
    pair.server.core.requests.send(far, RequestOk(Parameters(), ((4, 9),)), fin=True)
    pair.run()
    assert pair.client.one(Answered).message == RequestOk(Parameters(), ((4, 9),))
    near, far = asked(pair, PublishNamespace(2, (b"kv",)))
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, RequestOk(Parameters(), ((4, 9),)))
    assert far.phase is Phase.PENDING
    pair.client.feed(near.stream_id, frame(MessageType.REQUEST_OK, b"\0\4\x09"))
    assert pair.client.closed is not None


@pytest.mark.parametrize("properties", [((0x30, 2),), ((0x22, 3),), ((0x0E, 256),)])
def test_track_properties_have_the_values_they_may_have(
    properties: tuple[tuple[int, int], ...],
) -> None:
    for request, answer in (
        (Subscribe(0, TRACK), SubscribeOk(1, Parameters(), properties)),
        (Fetch(0, TRACK), FetchOk(False, Location(0, 0), Parameters(), properties)),
    ):
        end = client()
        end.ask(request)
        end.feed(0, encode_message(answer))
        assert end.closed is not None
        assert end.closed.code is Code.PROTOCOL_VIOLATION


def test_malformed_immutable_properties_end_no_session() -> None:
    end = client()
    end.ask(Subscribe(0, TRACK))
    end.feed(0, encode_message(SubscribeOk(1, Parameters(), ((0x0B, b"\x80"),))))
    end.one(Answered)
    assert end.closed is None


@pytest.mark.parametrize(
    ("asked_for", "end", "closes"),
    [
        (None, Location(0, 0), False),
        (LocationFilter.absolute_start(Location(3, 2)), Location(3, 2), False),
        (LocationFilter.absolute_start(Location(3, 2)), Location(3, 1), True),
        (LocationFilter.absolute_groups(Location(3, 2), 5), Location(2, 9), True),
        (LocationFilter.relative_start(1), Location(0, 0), False),
    ],
)
def test_fetch_ok_may_not_end_before_the_start(
    asked_for: LocationFilter | None, end: Location, closes: bool
) -> None:
    core = client()
    core.ask(Fetch(0, TRACK, Parameters(location_filter=asked_for)))
    core.feed(0, encode_message(FetchOk(False, end)))
    assert (core.closed is not None) is closes


def test_redirects() -> None:
    away = RequestError(0x34, 0, "", Redirect("moqt://x/", TRACK))
    end = client()
    end.ask(Subscribe(0, TRACK))
    end.feed(0, encode_message(away, Subscribe))
    end.one(Answered)
    assert end.closed is None
    other = server()
    other.ask(Subscribe(1, TRACK))
    other.feed(1, encode_message(away, Subscribe))
    assert other.closed is not None
    assert other.closed.code is Code.PROTOCOL_VIOLATION


def test_unknown_codes_and_properties_close_nothing() -> None:
    pair = Pair().established()
    _, far = asked(pair, Subscribe(0, TRACK))
    pair.server.core.requests.send(far, RequestError(0x7777, 0, "new", None), fin=True)
    pair.run()
    assert pair.client.one(Answered).message == RequestError(0x7777, 0, "new", None)
    _, far = asked(pair, Subscribe(2, TRACK))
    unknown = ((0x3800, 7), (0x3801, b"x"), (0x7000, 1))
    pair.server.core.requests.send(far, SubscribeOk(1, Parameters(), unknown))
    pair.server.core.requests.send(far, PublishDone(0x7777, 0), fin=True)
    pair.run()
    pair.client.one(MessageReceived)
    _, far = asked(pair, Subscribe(4, TRACK))
    pair.server.core.requests.cancel(far, 0x52E4A40FA8DB)
    pair.run()
    assert pair.client.one(RequestEnded).code == 0x52E4A40FA8DB
    assert pair.client.closed is pair.server.closed is None


# REQUEST_UPDATE


@pytest.mark.parametrize("request_", [k for k in KINDS if not isinstance(k, TrackStatus)])
def test_updates_are_answered_in_order(request_: Request) -> None:
    pair = Pair().established()
    near, far = accepted(pair, request_)
    core = pair.client.core.requests
    sent = [core.update(near, Parameters()) for _ in range(3)]
    assert [update.request_id for update in sent] == [2, 4, 6]
    pair.run()
    received = [event for event in pair.server.events if isinstance(event, UpdateReceived)]
    assert [event.update for event in received] == sent
    for _ in sent:
        pair.server.core.requests.send(far, RequestOk())
    pair.run()
    answered = [event for event in pair.client.events if isinstance(event, UpdateAnswered)]
    assert [event.update for event in answered] == sent
    with pytest.raises(LocalError):
        pair.server.core.requests.send(far, RequestOk())
    pair.client.feed(near.stream_id, encode_message(RequestOk(), type(request_), update=True))
    assert pair.client.closed is not None


def test_an_update_may_follow_its_request_at_once() -> None:
    pair = Pair().established()
    near = pair.client.ask(Subscribe(0, TRACK))
    update = pair.client.core.requests.update(near, Parameters(subscriber_priority=3))
    pair.run()
    far = pair.server.one(RequestReceived).request
    pair.server.one(UpdateReceived)
    pair.server.core.requests.send(far, SubscribeOk(1))
    pair.server.core.requests.send(far, RequestOk())
    pair.run()
    assert isinstance(pair.client.one(Answered).message, SubscribeOk)
    assert pair.client.one(UpdateAnswered).update is update


def test_the_subscriber_of_a_publish_updates_it() -> None:
    pair = Pair().established()
    near, far = asked(pair, Publish(0, TRACK, 5))
    with pytest.raises(LocalError):
        pair.server.core.requests.update(far, Parameters(forward=False))
    pair.server.core.requests.accept_publish(far, Recorder())
    pair.server.core.requests.send(far, RequestOk())
    update = pair.server.core.requests.update(far, Parameters(forward=False))
    pair.run()
    assert pair.client.one(UpdateReceived).update == update
    pair.client.core.requests.send(near, RequestOk())
    pair.client.core.requests.send(near, PublishDone(2, 0), fin=True)
    pair.run()
    assert pair.server.one(UpdateAnswered).update is update


def test_update_of_track_status_closes() -> None:
    pair = Pair().established()
    near, far = asked(pair, TrackStatus(0, TRACK))
    with pytest.raises(LocalError):
        pair.client.core.requests.update(near, Parameters())
    pair.server.feed(near.stream_id, frame(MessageType.REQUEST_UPDATE, b"\2\0"))
    assert pair.server.closed is not None
    assert far.phase is Phase.PENDING


def test_update_from_the_publisher_of_a_subscription_closes() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    with pytest.raises(LocalError):
        pair.server.core.requests.update(far, Parameters())
    pair.client.feed(near.stream_id, frame(MessageType.REQUEST_UPDATE, b"\1\0"))
    assert pair.client.closed is not None


def test_update_credit() -> None:
    pair = Pair(config=SessionConfig(max_request_updates=4)).established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    core = pair.client.core.requests
    for _ in range(4):
        core.update(near, Parameters())
    with pytest.raises(LocalError):
        core.update(near, Parameters())
    pair.run()
    assert pair.server.closed is None
    pair.server.core.requests.send(far, RequestOk())
    pair.run()
    core.update(near, Parameters())
    pair.run()
    assert pair.server.closed is None
    update = RequestUpdate(pair.client.next_id)
    pair.server.feed(near.stream_id, encode_message(update, Subscribe))
    assert pair.server.closed is not None
    assert pair.server.closed.code is Code.TOO_MANY_REQUEST_UPDATES


def test_no_limit_of_updates_means_none() -> None:
    options = SetupOptions(max_request_updates=0)
    pair = Pair(client=options, server=options, config=SessionConfig(max_request_updates=0))
    near, _ = accepted(pair.established(), Subscribe(0, TRACK))
    for _ in range(50):
        pair.client.core.requests.update(near, Parameters())
    pair.run()
    assert pair.server.closed is None
    assert len(near.updates) == 50


def test_one_error_may_stand_for_several_updates() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    sent = [pair.client.core.requests.update(near, Parameters()) for _ in range(3)]
    pair.run()
    pair.server.core.requests.send(far, RequestOk())
    pair.server.core.requests.send(far, REFUSAL)
    pair.server.core.requests.send(far, PublishDone(8, 0), fin=True)
    pair.run()
    answered = [event for event in pair.client.events if isinstance(event, UpdateAnswered)]
    assert [(a.update, type(a.message)) for a in answered] == [
        (sent[0], RequestOk),
        (sent[1], RequestError),
        (sent[2], RequestError),
    ]
    assert_empty_but_aliases(pair)


def assert_empty_but_aliases(pair: Pair) -> None:
    assert not pair.client.core.requests.open
    assert not pair.server.core.requests.open


def test_an_error_for_each_update_is_fine_as_well() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    for _ in range(2):
        pair.client.core.requests.update(near, Parameters())
    pair.run()
    pair.server.core.requests.send(far, REFUSAL)
    pair.server.core.requests.send(far, REFUSAL)
    pair.run()
    assert pair.client.closed is None
    with pytest.raises(LocalError):
        pair.client.core.requests.update(near, Parameters())


def test_an_update_may_cross_publish_done() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    pair.client.core.requests.update(near, Parameters(subscriber_priority=1))
    pair.server.core.requests.send(far, PublishDone(2, 0), fin=True)
    pair.run()
    assert pair.server.closed is pair.client.closed is None
    assert pair.server.none(UpdateReceived)
    assert not far.updates_received
    with pytest.raises(LocalError):
        pair.client.core.requests.update(near, Parameters())


def test_nothing_follows_publish_done() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    pair.server.core.requests.send(far, PublishDone(2, 0))
    for late in (PublishDone(2, 0), PublishStateNotify()):
        with pytest.raises(LocalError):
            pair.server.core.requests.send(far, late)
    pair.run()
    pair.client.feed(near.stream_id, encode_message(PublishDone(2, 0)))
    assert pair.client.closed is not None


# Filters


def subscribe_with_invalid_filter(request_id: int) -> bytes:
    """PRIORITY_FILTER 300.. open, which is a request error."""
    body = encode_vi64(request_id) + encode_message(Subscribe(0, TRACK))[4:-1]
    return frame(MessageType.SUBSCRIBE, body + bytes.fromhex("01 27 03 00 812c"))


def test_an_invalid_filter_refuses_the_request_alone() -> None:
    end = server()
    end.feed(0, subscribe_with_invalid_filter(0))
    sent = [action for action in end.actions if isinstance(action, Send) and action.stream_id == 0]
    assert len(sent) == 1
    assert sent[0].fin
    assert sent[0].data[3] == RequestErrorCode.INVALID_FILTER
    assert end.closed is None
    end.feed(0, b"", True)
    assert not end.core.requests.openings.waiting


def test_an_invalid_filter_in_an_update_is_passed_on() -> None:
    pair = Pair().established()
    near, far = accepted(pair, Subscribe(0, TRACK))
    body = bytes.fromhex("02 01 27 03 00 812c")
    pair.server.feed(near.stream_id, frame(MessageType.REQUEST_UPDATE, body))
    event = pair.server.one(UpdateReceived)
    assert event.fault
    assert event.update.request_id == 2
    # A request with such a filter in the middle of a stream is no update.
    pair.server.feed(near.stream_id, subscribe_with_invalid_filter(4))
    assert pair.server.closed is not None
    assert far.updates_received


# Tokens


def token(kind: AliasType, alias: int | None = None, value: bytes = b"") -> AuthorizationToken:
    has_type = kind in (AliasType.REGISTER, AliasType.USE_VALUE)
    return AuthorizationToken(kind, alias, 0 if has_type else None, value)


def tokens(*given: AuthorizationToken) -> Parameters:
    return Parameters(authorization_tokens=given)


def test_token_aliases_are_resolved_over_streams() -> None:
    pair = Pair(config=SessionConfig(auth_token_cache=100)).established()
    register = token(AliasType.REGISTER, 5, b"secret")
    _, far = asked(pair, TrackStatus(0, TRACK, tokens(register)))
    assert [t.value for t in far.tokens] == [b"secret"]
    near, far = accepted(pair, Subscribe(2, TRACK, tokens(token(AliasType.USE_ALIAS, 5))))
    assert [t.value for t in far.tokens] == [b"secret"]
    update = pair.client.core.requests.update(near, tokens(token(AliasType.USE_ALIAS, 5)))
    pair.run()
    assert [t.value for t in far.update_tokens[update.request_id]] == [b"secret"]
    pair.client.core.requests.update(near, tokens(token(AliasType.DELETE, 5)))
    pair.run()
    assert list(far.update_tokens) == [update.request_id]
    assert [t.value for t in far.tokens] == [b"secret"]
    assert "secret" not in repr(far.tokens)
    pair.client.ask(TrackStatus(pair.client.next_id, TRACK, tokens(token(AliasType.USE_ALIAS, 5))))
    pair.run()
    assert pair.server.closed is not None
    assert pair.server.closed.code is Code.UNKNOWN_AUTH_TOKEN_ALIAS


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ((token(AliasType.USE_ALIAS, 1),), Code.UNKNOWN_AUTH_TOKEN_ALIAS),
        ((token(AliasType.DELETE, 1),), Code.UNKNOWN_AUTH_TOKEN_ALIAS),
        ((token(AliasType.REGISTER, 1, b"a"),) * 2, Code.DUPLICATE_AUTH_TOKEN_ALIAS),
        ((token(AliasType.REGISTER, 1, bytes(85)),), Code.AUTH_TOKEN_CACHE_OVERFLOW),
    ],
)
def test_token_faults_close(given: tuple[AuthorizationToken, ...], code: SessionErrorCode) -> None:
    pair = Pair(config=SessionConfig(auth_token_cache=100)).established()
    pair.client.ask(TrackStatus(0, TRACK, tokens(*given)))
    pair.run()
    assert pair.server.closed is not None
    assert pair.server.closed.code is code
    assert pair.server.none(RequestReceived)


def test_a_refused_request_still_registers_its_token() -> None:
    end = End(is_client=False, config=SessionConfig(auth_token_cache=100))
    end.start()
    end.feed(2, EMPTY_SETUP)
    parameters = tokens(token(AliasType.REGISTER, 1, b"a"))
    octets = encode_message(Subscribe(0, TRACK, parameters))
    body = octets[3:].replace(
        b"\x01\x03\x04\x01\x01\x00a", b"\x02\x03\x04\x01\x01\x00a\x24\x03\x00\x81\x2c"
    )
    end.feed(0, frame(MessageType.SUBSCRIBE, body))
    assert end.none(RequestReceived)
    use = tokens(token(AliasType.USE_ALIAS, 1))
    end.feed(4, encode_message(TrackStatus(2, TRACK, use)))
    assert end.one(RequestReceived).request.tokens[0].value == b"a"


def test_the_tokens_of_an_update_are_its_own() -> None:
    """Section 4.2: whether they grant anything is not decided yet; the request keeps its own."""
    pair = Pair().established()
    given = tokens(token(AliasType.USE_VALUE, None, b"first"))
    near, far = accepted(pair, PublishNamespace(0, (b"a",), given))
    updates = [
        pair.client.core.requests.update(near, tokens(token(AliasType.USE_VALUE, None, value)))
        for value in (b"second", b"third")
    ]
    pair.run()
    assert far.tokens == (Token(0, b"first"),)
    shown = [far.update_tokens[update.request_id] for update in updates]
    assert shown == [(Token(0, b"second"),), (Token(0, b"third"),)]
    pair.server.core.requests.send(far, RequestOk(Parameters()))
    assert list(far.update_tokens) == [updates[1].request_id]


def test_a_token_that_does_not_parse_closes() -> None:
    end = server()
    body = b"\0" + encode_message(TrackStatus(0, TRACK))[4:-1] + bytes.fromhex("01 03 01 07")
    end.feed(0, frame(MessageType.TRACK_STATUS, body))
    assert end.closed is not None
    assert end.closed.code is Code.KEY_VALUE_FORMATTING_ERROR


def test_session_tokens_are_kept() -> None:
    pair = Pair(client=SetupOptions(authorization_tokens=(token(AliasType.USE_VALUE, None, b"s"),)))
    pair.established()
    assert [t.value for t in pair.server.core.peer_tokens] == [b"s"]


def test_range_filters_travel() -> None:
    pair = Pair().established()
    ranges = Parameters(object_id_filters=(RangeFilter(0, ((0, 3),)),), location_filter=FIRST)
    _, far = asked(pair, Fetch(0, TRACK, ranges))
    assert far.message.parameters == ranges
