"""The control messages of draft-22, declared as their figures: newcomers start here.

A field's annotation is its encoding. `encode_message` and `decode_message` add the framing and pick the
scope of the parameters, which for REQUEST_UPDATE and REQUEST_OK depends on the request they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, TypeAlias

from moqt.errors import ProtocolViolation, RequestErrorCode
from moqt.model import Properties
from moqt.wire import codec, fields
from moqt.wire.codec import Context, message, ok_scope, update_scope
from moqt.wire.fields import Field, FieldWhen, ScopedField
from moqt.wire.filters import InvalidFilter
from moqt.wire.framing import MessageReader
from moqt.wire.parameters import (
    NO_PARAMETERS,
    Parameters,
    Scope,
    decode_parameters,
    encode_parameters,
)
from moqt.wire.properties import decode_properties, encode_properties
from moqt.wire.setup import NO_OPTIONS, SETUP_OPTIONS, SetupOptions, SetupOptionType

__all__ = [
    "UNKNOWN_STREAM_COUNT",
    "Fetch",
    "FetchOk",
    "Goaway",
    "InvalidFilter",
    "Message",
    "MessageReader",
    "MessageType",
    "Namespace",
    "NamespaceDone",
    "Publish",
    "PublishDone",
    "PublishNamespace",
    "PublishSkipped",
    "PublishStateNotify",
    "Redirect",
    "Request",
    "RequestError",
    "RequestOk",
    "RequestUpdate",
    "Setup",
    "SetupOptionType",
    "SetupOptions",
    "Subscribe",
    "SubscribeNamespace",
    "SubscribeOk",
    "SubscribeTracks",
    "TrackStatus",
    "decode_message",
    "encode_message",
]

UNKNOWN_STREAM_COUNT = 2**64 - 1
"""Stream Count of a PUBLISH_DONE whose sender did not count."""


class MessageType(IntEnum):
    """The registry of message types. SETUP is also the stream type of a control stream."""

    REQUEST_UPDATE = 0x02
    SUBSCRIBE = 0x03
    SUBSCRIBE_OK = 0x04
    REQUEST_ERROR = 0x05
    PUBLISH_NAMESPACE = 0x06
    REQUEST_OK = 0x07
    NAMESPACE = 0x08
    PUBLISH_DONE = 0x0B
    TRACK_STATUS = 0x0D
    NAMESPACE_DONE = 0x0E
    PUBLISH_SKIPPED = 0x0F
    GOAWAY = 0x10
    FETCH = 0x16
    FETCH_OK = 0x18
    PUBLISH = 0x1D
    PUBLISH_STATE_NOTIFY = 0x22
    SUBSCRIBE_NAMESPACE = 0x50
    SUBSCRIBE_TRACKS = 0x51
    SETUP = 0x2F00


Vi64 = fields.Vi64
MessageParameters: TypeAlias = Annotated[
    Parameters, ScopedField(encode_parameters, decode_parameters)
]
TrackProperties: TypeAlias = Annotated[Properties, Field(encode_properties, decode_properties)]
"""Key-Value-Pairs up to the end of the message."""


@message(MessageType.SETUP)
@dataclass(frozen=True, slots=True)
class Setup:
    """The first message of each control stream."""

    options: Annotated[SetupOptions, SETUP_OPTIONS] = NO_OPTIONS


@message(MessageType.GOAWAY)
@dataclass(frozen=True, slots=True)
class Goaway:
    """The sender means to close the session, or to end one request, after `timeout` ms; 0 sets no time."""

    uri: Annotated[str, fields.GOAWAY_URI] = ""
    timeout: Vi64 = 0


@message(MessageType.SUBSCRIBE, Scope.SUBSCRIBE, update=Scope.UPDATE_SUBSCRIPTION)
@dataclass(frozen=True, slots=True)
class Subscribe:
    """Asks for the Objects of a track that are published from now on."""

    request_id: Vi64
    track: fields.TrackField
    parameters: MessageParameters = NO_PARAMETERS


@message(MessageType.SUBSCRIBE_OK, Scope.SUBSCRIBE_OK)
@dataclass(frozen=True, slots=True)
class SubscribeOk:
    """Accepts a SUBSCRIBE; its Objects come under `track_alias`."""

    track_alias: Vi64
    parameters: MessageParameters = NO_PARAMETERS
    properties: TrackProperties = ()


@message(
    MessageType.PUBLISH,
    Scope.PUBLISH,
    update=Scope.UPDATE_PUBLISH,
    update_by_responder=Scope.UPDATE_SUBSCRIPTION,
    ok=Scope.PUBLISH_OK,
)
@dataclass(frozen=True, slots=True)
class Publish:
    """Offers a track; its Objects come under `track_alias`."""

    request_id: Vi64
    track: fields.TrackField
    track_alias: Vi64
    parameters: MessageParameters = NO_PARAMETERS
    properties: TrackProperties = ()


@message(MessageType.PUBLISH_DONE)
@dataclass(frozen=True, slots=True)
class PublishDone:
    """The last message of a subscription's publisher. `status` is a PublishDoneCode if registered."""

    status: Vi64
    stream_count: Vi64
    reason: fields.ReasonPhrase = ""


@message(MessageType.PUBLISH_STATE_NOTIFY, Scope.PUBLISH_STATE_NOTIFY)
@dataclass(frozen=True, slots=True)
class PublishStateNotify:
    """Tells a subscriber of a change that it did not ask for."""

    parameters: MessageParameters = NO_PARAMETERS


@message(MessageType.FETCH, Scope.FETCH, update=Scope.UPDATE_FETCH)
@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for the Objects of a track that were published up to now."""

    request_id: Vi64
    track: fields.TrackField
    parameters: MessageParameters = NO_PARAMETERS


@message(MessageType.FETCH_OK, Scope.FETCH_OK)
@dataclass(frozen=True, slots=True)
class FetchOk:
    """Accepts a FETCH. `end` is inclusive, and the last Object of the track if `end_of_track`."""

    end_of_track: fields.Flag
    end: fields.LocationField
    parameters: MessageParameters = NO_PARAMETERS
    properties: TrackProperties = ()


@message(MessageType.TRACK_STATUS, Scope.TRACK_STATUS, ok=Scope.TRACK_STATUS_OK)
@dataclass(frozen=True, slots=True)
class TrackStatus:
    """Asks what a SUBSCRIBE would say, without subscribing."""

    request_id: Vi64
    track: fields.TrackField
    parameters: MessageParameters = NO_PARAMETERS


@message(
    MessageType.PUBLISH_NAMESPACE,
    Scope.PUBLISH_NAMESPACE,
    update=Scope.UPDATE_PUBLISH_NAMESPACE,
    ok=Scope.NAMESPACE_OK,
)
@dataclass(frozen=True, slots=True)
class PublishNamespace:
    """Offers the tracks under a namespace."""

    request_id: Vi64
    namespace: fields.NamespaceField
    parameters: MessageParameters = NO_PARAMETERS


@message(
    MessageType.SUBSCRIBE_NAMESPACE,
    Scope.SUBSCRIBE_NAMESPACE,
    update=Scope.UPDATE_SUBSCRIBE_NAMESPACE,
    ok=Scope.NAMESPACE_OK,
)
@dataclass(frozen=True, slots=True)
class SubscribeNamespace:
    """Asks for the namespaces under a prefix, now and later."""

    request_id: Vi64
    prefix: fields.NamespaceField
    parameters: MessageParameters = NO_PARAMETERS


@message(
    MessageType.SUBSCRIBE_TRACKS,
    Scope.SUBSCRIBE_TRACKS,
    update=Scope.UPDATE_SUBSCRIBE_TRACKS,
    ok=Scope.NAMESPACE_OK,
)
@dataclass(frozen=True, slots=True)
class SubscribeTracks:
    """Asks for a PUBLISH of every track under a prefix, now and later."""

    request_id: Vi64
    prefix: fields.NamespaceField
    parameters: MessageParameters = NO_PARAMETERS


@message(MessageType.NAMESPACE)
@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace under the prefix of a SUBSCRIBE_NAMESPACE: the fields after that prefix."""

    suffix: fields.NamespaceField


@message(MessageType.NAMESPACE_DONE)
@dataclass(frozen=True, slots=True)
class NamespaceDone:
    """A namespace announced before is gone."""

    suffix: fields.NamespaceField


@message(MessageType.PUBLISH_SKIPPED)
@dataclass(frozen=True, slots=True)
class PublishSkipped:
    """A track under the prefix of a SUBSCRIBE_TRACKS for which no PUBLISH will come."""

    suffix: fields.NamespaceField
    name: fields.TrackNameField


@message(MessageType.REQUEST_UPDATE, update_scope)
@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """Changes the request on whose stream it comes; absent parameters stay as they are."""

    request_id: Vi64
    parameters: MessageParameters = NO_PARAMETERS


@message(MessageType.REQUEST_OK, ok_scope)
@dataclass(frozen=True, slots=True)
class RequestOk:
    """Accepts a request that has no OK of its own, or a REQUEST_UPDATE. Properties: TRACK_STATUS only."""

    parameters: MessageParameters = NO_PARAMETERS
    properties: TrackProperties = ()


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where to ask instead. An empty URI means the same session's; an empty track name the namespace."""

    uri: Annotated[str, fields.CONNECT_URI]
    track: fields.TrackField


_REDIRECT = FieldWhen("code", RequestErrorCode.REDIRECT, fields.structure(Redirect))


@message(MessageType.REQUEST_ERROR)
@dataclass(frozen=True, slots=True)
class RequestError:
    """Refuses a request. `retry_interval` is in ms plus one; 0 says do not retry.

    `code` is a RequestErrorCode if registered; REDIRECT, and it alone, comes with `redirect`.
    """

    code: Vi64
    retry_interval: Vi64 = 0
    reason: fields.ReasonPhrase = ""
    redirect: Annotated[Redirect | None, _REDIRECT] = None


Request: TypeAlias = (
    Subscribe
    | Publish
    | Fetch
    | TrackStatus
    | PublishNamespace
    | SubscribeNamespace
    | SubscribeTracks
)
"""What opens a request stream."""

Message: TypeAlias = (
    Request
    | Setup
    | Goaway
    | SubscribeOk
    | PublishDone
    | PublishStateNotify
    | FetchOk
    | Namespace
    | NamespaceDone
    | PublishSkipped
    | RequestUpdate
    | RequestOk
    | RequestError
)


_NAMESPACE_REQUESTS = (PublishNamespace, SubscribeNamespace, SubscribeTracks)


def encode_message(
    message: Message,
    request: type[Request] | None = None,
    *,
    by_requester: bool = True,
    update: bool = False,
) -> bytes:
    """The framed message: type, length, body. ValueError for what must not be sent.

    `request` is the class of the message that opened the stream; None for that one itself and on a control
    stream. `by_requester` says who sends a REQUEST_UPDATE, `update` that a REQUEST_OK answers one.
    """
    context = Context(request, by_requester, update)
    fault = _fault(message, context)
    if fault:
        raise ValueError(fault)
    return codec.encode(message, context)


def decode_message(
    message_type: int,
    body: bytes,
    request: type[Request] | None = None,
    *,
    by_requester: bool = True,
    update: bool = False,
) -> Message:
    """The message in `body`, the context given as for `encode_message`.

    ProtocolViolation closes the session; InvalidFilter, with its `request_id`, refuses the request.
    """
    context = Context(request, by_requester, update)
    decoded: Message = codec.decode(message_type, body, context)
    fault = _fault(decoded, context)
    if fault:
        raise ProtocolViolation(fault)
    return decoded


def _fault(message: Message, context: Context) -> str | None:
    """Rules between a message and its context that its fields alone do not show."""
    if isinstance(message, RequestOk) and message.properties:
        if context.update or context.request is not TrackStatus:
            return "Track Properties in a REQUEST_OK that does not answer TRACK_STATUS"
    elif isinstance(message, RequestError) and message.redirect is not None:
        named = context.request in _NAMESPACE_REQUESTS and message.redirect.track.name
        return "REDIRECT of a namespace request to a track name" if named else None
    return None
