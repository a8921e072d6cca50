"""What the library forgets of streams: that we gave one up, or asked the peer to."""

from __future__ import annotations

REMEMBERED = 4096
"""Streams given up that are remembered; the library refuses older ones by itself."""


class StreamEnds:
    """The streams of one connection whose end we had a part in."""

    def __init__(self) -> None:
        self._under_way: set[int] = set()
        self._stopped: dict[int, int] = {}
        self._given_up: dict[int, None] = {}

    def give_up(self, stream_id: int) -> bool:
        """Notes that we send no more; False if that was so before."""
        if stream_id in self._given_up:
            return False
        self._given_up[stream_id] = None
        if len(self._given_up) > REMEMBERED:
            del self._given_up[next(iter(self._given_up))]
        return True

    def is_given_up(self, stream_id: int) -> bool:
        """Whether we reset the stream, or the peer had us do so."""
        return stream_id in self._given_up

    def stop(self, stream_id: int, code: int) -> None:
        """Notes that nothing more of a stream is wanted."""
        self._stopped[stream_id] = code

    def is_stopped(self, stream_id: int) -> bool:
        """Whether nothing more of it is wanted; no longer after its end."""
        return stream_id in self._stopped

    def is_under_way(self, stream_id: int) -> bool:
        """Whether something of it was delivered, and not its end."""
        return stream_id in self._under_way

    def received(self, stream_id: int, *, over: bool) -> int | None:
        """Notes that something arrived; returns the code with which it was stopped, if it was."""
        if not over:
            self._under_way.add(stream_id)
            return self._stopped.get(stream_id)
        self._under_way.discard(stream_id)
        return self._stopped.pop(stream_id, None)
