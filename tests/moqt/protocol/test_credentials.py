"""moqt.protocol.credentials: what is shown when, against the cache that the other side keeps (section 4.2)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moqt.protocol.credentials import Credentials
from moqt.protocol.tokens import Token, TokenCache
from moqt.wire.tokens import AliasType, AuthorizationToken

OLD, NEW, NEWER = Token(1, b"old"), Token(1, b"new"), Token(1, b"newer")
ROOM = 100


def kinds(tokens: tuple[AuthorizationToken, ...]) -> list[AliasType]:
    return [token.alias_type for token in tokens]


class Held:
    """A credential that changes."""

    def __init__(self, token: Token | None) -> None:
        self.token = token

    def __call__(self) -> Token | None:
        return self.token


def test_the_token_of_setup_is_not_repeated() -> None:
    credentials = Credentials(Held(OLD))
    (shown,) = credentials.for_setup()
    assert (shown.alias_type, shown.token_type, shown.value) == (AliasType.USE_VALUE, 1, b"old")
    assert credentials.for_request(1, 0) == credentials.for_request(2, ROOM) == ()
    assert Credentials(Held(None)).for_setup() == ()


def test_another_is_registered_once_and_used_by_its_alias() -> None:
    """Before the answer to the message that registers it, no other stream may use the alias."""
    held = Held(OLD)
    credentials = Credentials(held)
    credentials.for_setup()
    held.token = NEW
    assert kinds(credentials.for_request(1, ROOM)) == [AliasType.REGISTER]
    assert kinds(credentials.for_request(2, ROOM)) == [AliasType.USE_VALUE]
    credentials.answered(2)
    assert kinds(credentials.for_request(3, ROOM)) == [AliasType.USE_VALUE]
    credentials.answered(1)
    assert kinds(credentials.for_request(4, ROOM)) == [AliasType.USE_ALIAS]


def test_a_peer_without_room_gets_the_value() -> None:
    held = Held(None)
    credentials = Credentials(held)
    credentials.for_setup()
    held.token = NEW
    for key, room in enumerate((0, 18)):
        assert kinds(credentials.for_request(key, room)) == [AliasType.USE_VALUE]
        credentials.answered(key)
    assert kinds(credentials.for_request(9, 19)) == [AliasType.REGISTER]


def test_an_alias_is_deleted_once_nobody_uses_it() -> None:
    held = Held(None)
    credentials = Credentials(held)
    credentials.for_setup()
    held.token = NEW
    credentials.for_request(1, ROOM)
    credentials.answered(1)
    credentials.for_request(2, ROOM)
    held.token = NEWER
    assert kinds(credentials.for_request(3, ROOM)) == [AliasType.REGISTER]
    credentials.answered(2)
    assert kinds(credentials.for_request(4, ROOM)) == [AliasType.DELETE, AliasType.USE_VALUE]
    credentials.answered(4)
    credentials.answered(3)
    assert kinds(credentials.for_request(5, ROOM)) == [AliasType.USE_ALIAS]


def test_what_may_be_lost_is_not_relied_on() -> None:
    held = Held(None)
    credentials = Credentials(held)
    credentials.for_setup()
    held.token = NEW
    (first,) = credentials.for_request(1, ROOM)
    credentials.unanswered(1)
    (second,) = credentials.for_request(2, ROOM)
    assert kinds((first, second)) == [AliasType.REGISTER] * 2
    assert first.alias != second.alias
    credentials.answered(2)
    credentials.for_request(3, ROOM)
    credentials.unanswered(3)
    held.token = NEWER
    assert AliasType.DELETE not in kinds(credentials.for_request(4, ROOM))


class Showing(RuleBasedStateMachine):
    """Requests travel on streams of their own: they are read in any order, or never if they were cancelled."""

    @initialize(room=st.integers(0, 80))
    def open(self, room: int) -> None:
        self.held = Held(OLD)
        self.credentials = Credentials(self.held)
        self.cache, self.room = TokenCache(room), room
        self.cache.resolve(self.credentials.for_setup(), in_setup=True)
        self.travelling: dict[int, tuple[Token | None, tuple[AuthorizationToken, ...]]] = {}
        self.read: list[int] = []
        self.next = 0

    @rule(token=st.sampled_from([None, OLD, NEW, NEWER, Token(2, b"x" * 30)]))
    def change(self, token: Token | None) -> None:
        self.held.token = token

    @rule()
    def ask(self) -> None:
        self.next += 1
        shown = self.credentials.for_request(self.next, self.room)
        self.travelling[self.next] = self.held.token, shown

    @precondition(lambda self: self.travelling)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """The peer closes the session with an error where a rule is broken."""
        key = data.draw(st.sampled_from(sorted(self.travelling)))
        token, shown = self.travelling.pop(key)
        resolved = self.cache.resolve(shown)
        assert resolved == (() if token in (None, OLD) else (token,))
        self.read.append(key)

    @precondition(lambda self: self.read)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.read))
        self.read.remove(key)
        self.credentials.answered(key)

    @precondition(lambda self: self.travelling)
    @rule(data=st.data(), arrives=st.booleans())
    def cancel(self, data: st.DataObject, arrives: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.travelling)))
        if arrives:
            self.cache.resolve(self.travelling[key][1])
        del self.travelling[key]
        self.credentials.unanswered(key)

    @invariant()
    def nothing_is_said_in_the_clear(self) -> None:
        if hasattr(self, "held"):
            assert "new" not in repr(self.held())


TestShowing = Showing.TestCase
TestShowing.settings = settings(max_examples=60)
