"""From declared messages to octets and back: the table of messages and the scope of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from moqt.errors import ProtocolViolation
from moqt.wire.fields import Layout, decode_fields, encode_fields, layout
from moqt.wire.filters import InvalidFilter
from moqt.wire.framing import frame
from moqt.wire.parameters import Scope
from moqt.wire.primitives import NeedMoreData, Reader

_T = TypeVar("_T")


class Context(NamedTuple):
    """Where a message stands: on the stream of which request, from whom, and answering what."""

    request: type | None
    by_requester: bool
    update: bool

    def __str__(self) -> str:
        place = (
            f"a {self.request.__name__} stream" if self.request else "a stream without a request"
        )
        return f"{place}, {'by its requester' if self.by_requester else 'by its responder'}"


ScopeRule = Callable[[Context], Scope | None]


class Form(NamedTuple):
    """How a message is written, and for a request the scopes of its updates and of its REQUEST_OK."""

    type: int
    layout: Layout
    scope: Scope | ScopeRule | None
    update: Scope | None
    update_by_responder: Scope | None
    ok: Scope | None


_FORMS: dict[type, Form] = {}
_CLASSES: dict[int, type] = {}


def message(
    kind: int,
    scope: Scope | ScopeRule | None = None,
    *,
    update: Scope | None = None,
    update_by_responder: Scope | None = None,
    ok: Scope | None = None,
) -> Callable[[type[_T]], type[_T]]:
    """Enters a dataclass of annotated fields into the table of messages."""

    def register(declaration: type[_T]) -> type[_T]:
        fields = layout(declaration)
        _FORMS[declaration] = Form(kind, fields, scope, update, update_by_responder, ok)
        _CLASSES[kind] = declaration
        return declaration

    return register


def update_scope(context: Context) -> Scope | None:
    """The scope of a REQUEST_UPDATE; None where none may come."""
    form = _FORMS.get(context.request) if context.request else None
    if form is None:
        return None
    return form.update if context.by_requester else form.update_by_responder


def ok_scope(context: Context) -> Scope | None:
    """The scope of a REQUEST_OK; None where none may come."""
    form = _FORMS.get(context.request) if context.request else None
    if form is None:
        return None
    if context.update:
        return Scope.UPDATE_OK if form.update or form.update_by_responder else None
    return form.ok


def message_scope(declaration: type, context: Context) -> Scope | None:
    """The scope of a message's parameters. ValueError when the message has no place in `context`."""
    rule = _FORMS[declaration].scope
    if rule is None or isinstance(rule, Scope):
        return rule
    scope = rule(context)
    if scope is None:
        raise ValueError(f"no {declaration.__name__} may come on {context}")
    return scope


def encode(record: object, context: Context) -> bytes:
    """A framed message. ValueError for what its form or its scope does not allow."""
    form = _FORMS[type(record)]
    scope = message_scope(type(record), context)
    return frame(form.type, encode_fields(form.layout, record, scope))


def decode(message_type: int, body: bytes, context: Context) -> Any:
    """The message in `body`, all of which it must fill."""
    declaration = _CLASSES.get(message_type)
    if declaration is None:
        raise ProtocolViolation(f"message type 0x{message_type:x}")
    name = declaration.__name__
    try:
        scope = message_scope(declaration, context)
    except ValueError as error:
        raise ProtocolViolation(str(error)) from None
    reader = Reader(body)
    values: dict[str, Any] = {}
    fault: InvalidFilter | None = None
    try:
        decode_fields(_FORMS[declaration].layout, reader, values, scope)
    except NeedMoreData:
        raise ProtocolViolation(f"{name} ends inside a field") from None
    except InvalidFilter as error:
        error.request_id = values.get("request_id")
        fault = error
    if reader.remaining:
        raise ProtocolViolation(f"{reader.remaining} octets after the end of {name}")
    if fault is not None:
        raise fault
    return declaration(**values)
