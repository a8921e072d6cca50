"""A caching relay for MOQT (draft-22 section 9)."""

from moqt.relay.relay import Relay

__all__ = ["Relay"]
