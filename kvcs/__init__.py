"""KV Cache Streaming over Media over QUIC Transport."""

__version__ = "0.1.0"
