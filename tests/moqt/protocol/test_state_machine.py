"""Everything that can be sent or received in every state: legal, LocalError, or a registered code. Nothing else."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moqt.config import SessionConfig
from moqt.errors import LocalError, SessionErrorCode
from moqt.model import GroupOrder, Location
from moqt.protocol.events import RequestReceived
from moqt.protocol.requests import Phase, RequestState
from moqt.wire.framing import frame
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Message,
    Namespace,
    NamespaceDone,
    Publish,
    PublishDone,
    PublishNamespace,
    PublishSkipped,
    PublishStateNotify,
    Request,
    RequestError,
    RequestOk,
    RequestUpdate,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
    encode_message,
)
from moqt.wire.parameters import Parameters
from tests.support.cores import TRACK, End, Pair, Recorder
from tests.support.octets import mutate, pieces, streams_of_a_client

CODES = {int(code) for code in SessionErrorCode}
KINDS: list[type[Request]] = [
    Subscribe,
    Fetch,
    TrackStatus,
    Publish,
    PublishNamespace,
    SubscribeNamespace,
    SubscribeTracks,
]
OKS: dict[type, Message] = {Subscribe: SubscribeOk(1), Fetch: FetchOk(False, Location(0, 0))}
PHASES = [
    "pending",
    "updated",
    "established",
    "established, updated",
    "done",
    "refused",
    "finished",
]


def request_of(kind: type[Request], request_id: int) -> Request:
    if kind is Publish:
        return Publish(request_id, TRACK, 9)
    if kind in (PublishNamespace, SubscribeNamespace, SubscribeTracks):
        return kind(request_id, (b"kv",))
    return kind(request_id, TRACK)  # type: ignore[arg-type,call-arg]


def messages(request_id: int) -> list[Message]:
    """One of each type, and some that only their parameters make wrong."""
    return [
        Setup(),
        Goaway(),
        Goaway("moqt://x/", 1),
        Subscribe(request_id, TRACK),
        Publish(request_id, TRACK, 3),
        Fetch(request_id, TRACK),
        TrackStatus(request_id, TRACK),
        PublishNamespace(request_id, (b"a",)),
        SubscribeNamespace(request_id, (b"a",)),
        SubscribeTracks(request_id, (b"a",)),
        SubscribeOk(3),
        FetchOk(True, Location(1, 1)),
        RequestOk(),
        RequestOk(Parameters(), ((4, 1),)),
        RequestOk(Parameters(expires=5)),
        RequestOk(Parameters(largest_object=Location(0, 0))),
        RequestError(0x10),
        PublishDone(2, 0),
        PublishStateNotify(),
        Namespace((b"a",)),
        NamespaceDone((b"a",)),
        PublishSkipped((), b"x"),
        RequestUpdate(request_id),
        RequestUpdate(request_id, Parameters(subscriber_priority=1)),
        RequestUpdate(request_id, Parameters(forward=False)),
        RequestUpdate(request_id, Parameters(track_namespace_prefix=())),
    ]


def octets_of(message: Message) -> bytes:
    """The message as some context allows it: the receiver has to judge."""
    for kind, by_requester, update in product([None, *KINDS], [True, False], [False, True]):
        try:
            return encode_message(message, kind, by_requester=by_requester, update=update)
        except ValueError:
            continue
    return frame(0x07, b"\0\4\1")  # REQUEST_OK with properties has one place alone


class Situation:
    """A request between a client, who asks, and a server, brought to a phase."""

    def __init__(self, kind: type[Request], phase: str) -> None:
        self.pair = Pair().established()
        self.near = self.pair.client.ask(request_of(kind, 0), Recorder())
        self.pair.run()
        self.far = self.pair.server.one(RequestReceived).request
        client, server = self.pair.client.core.requests, self.pair.server.core.requests
        if "established" in phase or phase in ("done", "finished"):
            server.send(self.far, OKS.get(kind, RequestOk()))
        if "updated" in phase and kind is not TrackStatus:
            client.update(self.near, Parameters())
        if phase == "done" and kind is Subscribe:
            server.send(self.far, PublishDone(2, 0))
        if phase == "done" and kind is Publish:
            client.send(self.near, PublishDone(2, 0))
        if phase == "refused":
            server.send(self.far, RequestError(0x10), fin=True)
        if phase == "finished" and kind is not Publish:
            client.finish(self.near)
        self.pair.run()
        assert self.pair.client.closed is self.pair.server.closed is None

    def end(self, *, by_client: bool) -> tuple[End, RequestState]:
        if by_client:
            return self.pair.client, self.near
        return self.pair.server, self.far


@pytest.mark.parametrize("by_client", [True, False], ids=["requester", "responder"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_message_sent_in_every_phase(
    kind: type[Request], phase: str, by_client: bool
) -> None:
    """What is not refused here, the same core accepts at the other end."""
    for index, fin in product(range(len(messages(0))), [False, True]):
        situation = Situation(kind, phase)
        end, request = situation.end(by_client=by_client)
        message = messages(end.next_id)[index]
        before = (request.phase, len(request.updates), len(request.updates_received), request.done)
        if isinstance(message, RequestUpdate):
            end.core.requests.next_id += 2
        try:
            end.core.requests.send(request, message, fin=fin)
        except LocalError:
            after = (
                request.phase,
                len(request.updates),
                len(request.updates_received),
                request.done,
            )
            assert after == before
            assert not end.take()
            continue
        situation.pair.run()
        assert situation.pair.client.closed is None, message
        assert situation.pair.server.closed is None, message


@pytest.mark.parametrize("by_client", [True, False], ids=["requester", "responder"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_message_received_in_every_phase(
    kind: type[Request], phase: str, by_client: bool
) -> None:
    for index, fin in product(range(len(messages(0))), [False, True]):
        situation = Situation(kind, phase)
        end, request = situation.end(by_client=not by_client)
        peer = situation.pair.client if by_client else situation.pair.server
        end.feed(request.stream_id, octets_of(messages(peer.next_id)[index]), fin)
        check(end)
        end.core.stream_reset(request.stream_id, 1)
        end.core.stop_sending(request.stream_id, 1)
        end.take()
        check(end)
        if end.closed is None:
            assert request.phase is Phase.ENDED
            assert not end.core.requests.open
        end.core.requests.cancel(request)


def check(end: End) -> None:
    assert end.closed is None or int(end.closed.code) in CODES
    assert end.core.data.held >= 0


# Octets that nobody would send


def fresh_server() -> End:
    """It asked for what the seed's streams answer."""
    config = SessionConfig(auth_token_cache=64, max_buffered_unknown=4096, max_object_size=1 << 16)
    end = End(is_client=False, config=config)
    end.start()
    end.ask(Subscribe(1, TRACK), Recorder())
    end.ask(Fetch(3, TRACK), Recorder())
    end.ask(SubscribeNamespace(5, (b"kv",)))
    end.core.requests._data.add_request(1, Recorder(), GroupOrder.ASCENDING)
    end.take()
    return end


@pytest.mark.parametrize("seed", range(4))
def test_mutated_streams_never_raise(seed: int) -> None:
    choose = random.Random(seed)
    originals = streams_of_a_client()
    survived = 0
    for _ in range(1000):
        end = fresh_server()
        if choose.random() < 0.9:
            end.feed(2, originals[2])
        lanes = {
            stream_id: list(
                pieces(mutate(data, choose) if choose.random() < 0.15 else data, choose)
            )
            for stream_id, data in originals.items()
            if stream_id != 2 or end.core.peer_options is None
        }
        while lanes and end.closed is None:
            stream_id = choose.choice(list(lanes))
            lane = lanes[stream_id]
            data = lane.pop(0) if lane else b""
            if not lane:
                del lanes[stream_id]
            match choose.randrange(40):
                case 0:
                    end.core.stream_reset(stream_id, choose.randrange(20))
                    lanes.pop(stream_id, None)
                case 1:
                    end.core.stop_sending(stream_id, choose.randrange(20))
                case _:
                    end.feed(stream_id, data, not lane and choose.random() < 0.5)
            for request in list(end.core.requests.open.values()):
                if choose.random() < 0.02:
                    end.core.requests.cancel(request)
            end.take()
            check(end)
        survived += end.closed is None
    assert 0 < survived < 1000


def test_the_seed_of_the_mutations_is_legal() -> None:
    end = fresh_server()
    for stream_id, data in streams_of_a_client().items():
        end.feed(stream_id, data)
        assert end.closed is None, (stream_id, end.closed)


@pytest.mark.parametrize("seed", range(2))
def test_random_octets_never_raise(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(1000):
        end = fresh_server()
        end.feed(2, streams_of_a_client()[2])
        for stream_id in (6, 0, 1, 10, 2):
            end.feed(stream_id, choose.randbytes(choose.randint(1, 40)), choose.random() < 0.3)
            check(end)
        end.core.datagram(choose.randbytes(choose.randint(0, 20)))
        end.take()
        check(end)


# Long lives


class TwoCores(RuleBasedStateMachine):
    """Two honest ends that do whatever they may, in any order, with messages delayed at will."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.requests: list[tuple[End, RequestState]] = []

    @initialize(server_first=st.booleans())
    def open(self, server_first: bool) -> None:
        ends = [self.pair.client, self.pair.server]
        for end in reversed(ends) if server_first else ends:
            end.start()

    @rule()
    def carry(self) -> None:
        self.pair.run()
        for end in (self.pair.client, self.pair.server):
            for event in end.events:
                if isinstance(event, RequestReceived):
                    self.requests.append((end, event.request))
            end.events.clear()

    @rule(kind=st.sampled_from(KINDS), by_client=st.booleans())
    def ask(self, kind: type[Request], by_client: bool) -> None:
        end = self.pair.client if by_client else self.pair.server
        try:
            self.requests.append((end, end.ask(request_of(kind, end.next_id), Recorder())))
        except LocalError:
            assert end.core.requests.goaway_received

    @rule(which=st.integers(0, 50), index=st.integers(0, 40), fin=st.booleans())
    def send(self, which: int, index: int, fin: bool) -> None:
        if self.requests:
            end, request = self.requests[which % len(self.requests)]
            choices = [m for m in messages(0) if not isinstance(m, RequestUpdate | Setup)]
            try:
                end.core.requests.send(request, choices[index % len(choices)], fin=fin)
            except LocalError:
                return

    @rule(which=st.integers(0, 50), priority=st.booleans())
    def update(self, which: int, priority: bool) -> None:
        if self.requests:
            end, request = self.requests[which % len(self.requests)]
            if end.core.peer_options is None:
                return
            try:
                end.core.requests.update(
                    request, Parameters(subscriber_priority=1 if priority else None)
                )
            except LocalError:
                return

    @rule(which=st.integers(0, 50))
    def finish(self, which: int) -> None:
        if self.requests:
            end, request = self.requests[which % len(self.requests)]
            try:
                end.core.requests.finish(request)
            except LocalError:
                assert request.debt() is not None

    @rule(which=st.integers(0, 50), code=st.integers(0, 99))
    def cancel(self, which: int, code: int) -> None:
        if self.requests:
            end, request = self.requests[which % len(self.requests)]
            end.core.requests.cancel(request, code)
            assert request.phase is Phase.ENDED

    @rule(by_client=st.booleans())
    def leave(self, by_client: bool) -> None:
        (self.pair.client if by_client else self.pair.server).core.goaway()

    @invariant()
    def nobody_closes(self) -> None:
        for end in (self.pair.client, self.pair.server):
            assert end.closed is None, end.closed
            assert end.core.data.held >= 0

    def teardown(self) -> None:
        self.carry()
        for end, request in self.requests:
            end.core.requests.cancel(request)
        self.pair.run()
        self.nobody_closes()
        for end in (self.pair.client, self.pair.server):
            assert not end.core.requests.open
            assert not end.core.requests.openings.waiting
            assert not end.core.data._requests
            assert not end.core.data._aliases
            assert not end.core.data._awaiting


TestTwoCores = TwoCores.TestCase
TestTwoCores.settings = settings(max_examples=60, stateful_step_count=40)
