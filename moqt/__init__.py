"""Media over QUIC Transport, draft-22: sessions, publishers and subscribers for asyncio.

    async with await moqt.connect("moqt://relay.example/") as session:
        subscription = await session.subscribe((b"films",), b"video")
        async for item in subscription:
            ...

Everything an application needs is here and in `moqt.errors` and `moqt.config`.
"""

from moqt.auth import Action, AllowAll, Policy, Query, Recheck, Refusal, Token
from moqt.client import connect
from moqt.config import Config, RelayConfig, SessionConfig, TransportConfig
from moqt.model import (
    EndOfRange,
    FullTrackName,
    GroupOrder,
    Location,
    Object,
    ObjectHeader,
    ObjectStatus,
    RangeKind,
    TrackNamespace,
    namespace_matches,
    printable,
)
from moqt.namespaces import NamespaceEvent, NamespacePublication, NamespaceSubscription
from moqt.protocol.credentials import Credential
from moqt.protocol.streams import IncomingStream, Receiver, StreamSink
from moqt.publisher import Publisher
from moqt.quic import BACKENDS as QUIC_BACKENDS
from moqt.quic import backend as quic_backend
from moqt.quic.base import Backend, ClientTls, ServerTls
from moqt.relay import Relay
from moqt.roles import Responder
from moqt.server import Server, serve
from moqt.session import Session
from moqt.subscriber import Fetch, Subscription
from moqt.track import Payload, Track
from moqt.url import MoqtUrl, format_authority, is_loopback, parse_url
from moqt.wire.filters import LocationFilter, RangeFilter
from moqt.wire.parameters import AuthorizationToken, Parameters
from moqt.wire.primitives import decode_vi64, encode_vi64
from moqt.wire.properties import decode_properties

__all__ = [
    "QUIC_BACKENDS",
    "Action",
    "AllowAll",
    "AuthorizationToken",
    "Backend",
    "ClientTls",
    "Config",
    "Credential",
    "EndOfRange",
    "Fetch",
    "FullTrackName",
    "GroupOrder",
    "IncomingStream",
    "Location",
    "LocationFilter",
    "MoqtUrl",
    "NamespaceEvent",
    "NamespacePublication",
    "NamespaceSubscription",
    "Object",
    "ObjectHeader",
    "ObjectStatus",
    "Parameters",
    "Payload",
    "Policy",
    "Publisher",
    "Query",
    "RangeFilter",
    "RangeKind",
    "Receiver",
    "Recheck",
    "Refusal",
    "Relay",
    "RelayConfig",
    "Responder",
    "Server",
    "ServerTls",
    "Session",
    "SessionConfig",
    "StreamSink",
    "Subscription",
    "Token",
    "Track",
    "TrackNamespace",
    "TransportConfig",
    "connect",
    "decode_properties",
    "decode_vi64",
    "encode_vi64",
    "format_authority",
    "is_loopback",
    "namespace_matches",
    "parse_url",
    "printable",
    "quic_backend",
    "serve",
]
