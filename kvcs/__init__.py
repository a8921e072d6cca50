"""KV Cache Streaming over Media over QUIC Transport.

    async with Publisher() as publisher:
        publication = publisher.publish(Identity.derive(key, descriptor, tokens))
        publication.segments[0].put_layer(0, k, v)

    async with await Consumer.connect("moqt://publisher.example/") as consumer:
        retrieval = consumer.retrieve(identity, sink)
        async for layer in retrieval:
            ...

What applications need is here; a name's module is imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcs.consumer import Consumer
    from kvcs.errors import (
        Conflict,
        DigestConflict,
        DuplicatePayload,
        Incomplete,
        KeyExhausted,
        KvcsError,
        ManifestError,
        ProtectionError,
        PublicationNotFound,
        PublicationStopped,
        SignatureError,
        SourceChanged,
        Unauthorised,
        UsageError,
    )
    from kvcs.formats.base import Sink, Source
    from kvcs.formats.numpy import ArraySink, ArraySource
    from kvcs.formats.safetensors import KvFile, KvFileSink, KvFileSource
    from kvcs.formats.tokens import load_descriptor, load_tokens
    from kvcs.key_ring import KeyRing, RingKey
    from kvcs.keyfiles import load_private_key, load_public_keys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Identity
    from kvcs.naming import PublicationName
    from kvcs.payload import Component
    from kvcs.prefill import Prefill
    from kvcs.publication import Publication
    from kvcs.publisher import Publisher, produce
    from kvcs.report import Report
    from kvcs.retrieval import Options, Retrieval
    from kvcs.scopekey import ScopeKey, load_scope_key
    from kvcs.segment import Segment
    from kvcs.signing import Signer, TrustedKeys

__version__ = "0.1.0"

_ERRORS = (
    "Conflict",
    "DigestConflict",
    "DuplicatePayload",
    "Incomplete",
    "KeyExhausted",
    "KvcsError",
    "ManifestError",
    "ProtectionError",
    "PublicationNotFound",
    "PublicationStopped",
    "SignatureError",
    "SourceChanged",
    "Unauthorised",
    "UsageError",
)
_NAMES = {
    "consumer": ("Consumer",),
    "errors": _ERRORS,
    "formats.base": ("Sink", "Source"),
    "formats.numpy": ("ArraySink", "ArraySource"),
    "formats.safetensors": ("KvFile", "KvFileSink", "KvFileSource"),
    "formats.tokens": ("load_descriptor", "load_tokens"),
    "key_ring": ("KeyRing", "RingKey"),
    "keyfiles": ("load_private_key", "load_public_keys"),
    "kvsp.descriptor": ("Descriptor",),
    "kvsp.identity": ("Identity",),
    "naming": ("PublicationName",),
    "payload": ("Component",),
    "prefill": ("Prefill",),
    "publication": ("Publication",),
    "publisher": ("Publisher", "produce"),
    "report": ("Report",),
    "retrieval": ("Options", "Retrieval"),
    "scopekey": ("ScopeKey", "load_scope_key"),
    "segment": ("Segment",),
    "signing": ("Signer", "TrustedKeys"),
}
_MODULES = {name: f"kvcs.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "ArraySink",
    "ArraySource",
    "Component",
    "Conflict",
    "Consumer",
    "Descriptor",
    "DigestConflict",
    "DuplicatePayload",
    "Identity",
    "Incomplete",
    "KeyExhausted",
    "KeyRing",
    "KvFile",
    "KvFileSink",
    "KvFileSource",
    "KvcsError",
    "ManifestError",
    "Options",
    "Prefill",
    "ProtectionError",
    "Publication",
    "PublicationName",
    "PublicationNotFound",
    "PublicationStopped",
    "Publisher",
    "Report",
    "Retrieval",
    "RingKey",
    "ScopeKey",
    "Segment",
    "SignatureError",
    "Signer",
    "Sink",
    "Source",
    "SourceChanged",
    "TrustedKeys",
    "Unauthorised",
    "UsageError",
    "load_descriptor",
    "load_private_key",
    "load_public_keys",
    "load_scope_key",
    "load_tokens",
    "produce",
]


if not TYPE_CHECKING:  # type checkers see the imports above, and so every misspelt name

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'kvcs' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
