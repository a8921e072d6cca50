"""Limits and time-outs, each with its reason. A peer's numbers are checked against these before memory is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """What a QUIC backend is set up with. Octets and seconds."""

    datagram_size: int | None = None
    """UDP payload of a packet at the most; None: whatever the path carries. A connection starts with 1200, which
    passes everywhere, and grows once a probe has arrived, so that no value can be wrong for a path."""
    bulk: bool = True
    """Whether many packets are built and opened at once where the library allows it; off, each one is the
    library's. Nothing but speed and processor time depends on it."""
    idle_timeout: float = 10.0
    """Silence after which a connection is lost. Short, so that a killed peer is noticed."""
    keep_alive: float = 3.0
    """Pings this often when idle keep a quiet live session open within `idle_timeout`."""
    handshake_timeout: float = 5.0
    """Nobody listening looks like silence; people should not wait for the idle time-out."""
    max_data: int = 8 * MIB
    """What the peer may send ahead of what the application consumed, over all streams."""
    max_stream_data: int = 1 * MIB
    """The same for one stream; a stream of 64 objects of 32 KiB needs two windows."""
    max_streams_uni: int = 192
    """Streams the peer may have open at once: two tracks of 80 layers, and some for control, manifests and
    fills. Credit returns as streams close; a backend's cost per packet grows with those in use."""
    max_streams_bidi: int = 128
    """Requests the peer may have open at once."""

    @classmethod
    def noticing_within(cls, idle_timeout: float) -> TransportConfig:
        """Notices a killed peer within `idle_timeout` seconds; pings keep pace with it."""
        default = cls()
        return replace(
            default,
            idle_timeout=idle_timeout,
            keep_alive=min(default.keep_alive, idle_timeout / 4),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Limits of one MOQT session. Octets and seconds."""

    setup_timeout: float = 5.0
    """From the handshake to the peer's SETUP."""
    request_timeout: float = 10.0
    """From a request to its OK or ERROR; a peer may have to ask another one first."""
    publish_done_timeout: float = 2.0
    """How long data streams may trail their PUBLISH_DONE; a reset can lose a stream's header, so the
    announced count may never be met."""
    fill_timeout: float = 10.0
    """From SUBSCRIBE_OK to the fill stream that must follow it; a reset can lose its header."""
    max_object_size: int = 64 * MIB
    """Largest payload accepted where the receiver gives no destination of its own."""
    max_properties_size: int = 64 * KIB
    """Properties of one Object."""
    max_requests: int = 1024
    """Requests of the peer that live at once, as a bound on state besides QUIC's stream credit."""
    max_fetches: int = 256
    """Fetches and fills of one peer served at once; more are refused with EXCESSIVE_LOAD."""
    max_buffered_unknown: int = 1 * MIB
    """Data of streams whose Track Alias or Request ID is not known yet, over the session."""
    max_unknown_streams: int = 64
    """How many such streams are kept; they overtake SUBSCRIBE_OK by a round trip at the most."""
    max_filter_ranges: int = 64
    """MAX_FILTER_RANGES offered to the peer."""
    max_request_updates: int = 16
    """MAX_REQUEST_UPDATES offered to the peer."""
    auth_token_cache: int = 0
    """MAX_AUTH_TOKEN_CACHE_SIZE offered to the peer; 0 allows no aliases."""
    max_unfinished: int = 128 * MIB
    """Payload of Objects that are not whole yet, over the session, where the receiver gives no
    destination. Flow control cannot bound it: without credit they would never become whole."""
    max_namespaces: int = 65536
    """Namespaces of one SUBSCRIBE_NAMESPACE that are active at once."""
    max_streams_behind: int = 16384
    """Data streams that wait for the peer's credit. A subscriber that is further behind is given up with
    TOO_FAR_BEHIND: what is published for it would need memory without end."""
    max_backlog: int = 16 * MIB
    """Octets the transport may hold unsent. Data stays below the watermark; the rest are answers to a
    peer that asks and does not read."""
    watermark: int | None = None
    """Octets the transport holds unsent before the scheduler waits. Less keeps priorities sharper,
    more keeps a fast path busy. None: what the path holds, bandwidth × round trip, within bounds."""
    quantum: int | None = None
    """Octets one of several equal requests sends before the next has its turn. None: a quarter of the watermark,
    at least 64 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """Limits of a relay, besides those of its sessions. Octets and seconds."""

    cache_bytes: int = 1024 * MIB
    """What Objects may take: several caches of a large model's prompt."""
    cache_slack: int = 32 * MIB
    """How far what is being received and sent may exceed that. Beyond it the subscriber that is furthest
    behind is given up, and after it what has no end yet is not taken any more."""
    max_pending: int | None = None
    """Whole Objects that wait for one session to take them; None: a quarter of the cache, at least 32 MiB. A
    subscriber that is further behind is cut off with TOO_FAR_BEHIND: it can fetch the rest."""
    hold_time: float = 1.0
    """How long a source gets no credit for an Object that no subscriber has taken. Subscribers that take a window
    in this time slow their source down; for slower ones it goes on, and they are cut off at `max_pending`."""
    max_subscriptions: int = 1024
    """Subscriptions of one session: two tracks of 80 layers are two, a manifest one more."""
    max_namespaces: int = 4096
    """Namespaces that one session offers."""
    max_announced: int = 64
    """Namespaces that an upstream relay is offered: each one takes one of the hundred or so request streams that
    peers grant, and the rest are for what is asked there."""
    max_watched: int = 256
    """Prefixes that one session watches for namespaces or tracks."""
    max_rendezvous: float = 30.0
    """How long a SUBSCRIBE waits for a publisher at the most, whatever it asks for."""
    fetch_ahead: int = 64 * MIB
    """How far an upstream fetch may run ahead of the fastest of those it is made for. It is cancelled there, and
    asked for again when they have come that far: what nobody reads soon would push out what somebody does."""
    stall_timeout: float = 10.0
    """Silence of its session after which an upstream fetch is given up, unless it is for want of our credit."""
    live_grace: float = 0.1
    """How long a hole beyond where the subscription began is left to it before it is fetched: what is under way
    would cross twice. Five times as long while a stream of that Group is open."""
    retry_first: float = 0.25
    """Before an upstream relay that was lost is dialled again; doubled each time."""
    retry_most: float = 10.0
    """The longest such pause."""
    circle_patience: float = 1.0
    """How long a relay that finds itself upstream of itself waits before it breaks the circle, and for each other
    relay whose turn it is first. They must have heard of one another by then: several round trips."""
    drain_timeout: float = 5.0
    """How long subscribers may finish after GOAWAY."""
    sweep: float = 5.0
    """How often what is older than MAX_CACHE_DURATION is looked for; it is never sent meanwhile."""

    @property
    def pending_limit(self) -> int:
        """`max_pending`, or what it is by default."""
        return (
            max(32 * MIB, self.cache_bytes // 4) if self.max_pending is None else self.max_pending
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set on a session."""

    session: SessionConfig = SessionConfig()
    transport: TransportConfig = TransportConfig()
