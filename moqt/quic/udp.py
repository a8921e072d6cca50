"""A UDP socket on asyncio's loop that hands over whole batches: many datagrams a wake-up, one answer to them."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from moqt.errors import LocalError

Address: TypeAlias = Any
"""A socket address of whatever family."""
Datagrams: TypeAlias = list[tuple[bytes, Address]]

BATCH = 64
"""Datagrams read in one wake-up; other connections wait meanwhile."""
SOCKET_BUFFER = 4 << 20
MAX_DATAGRAM = 65535

# Python does not name these options; the numbers are the platforms' own.
_DONT_FRAGMENT: dict[int, tuple[int, int, int]] = {}
if sys.platform == "linux":
    _DONT_FRAGMENT |= {
        socket.AF_INET: (socket.IPPROTO_IP, 10, 2),  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 2),
    }
elif sys.platform == "darwin":
    _DONT_FRAGMENT |= {
        socket.AF_INET: (socket.IPPROTO_IP, 28, 1),  # IP_DONTFRAG
        socket.AF_INET6: (socket.IPPROTO_IPV6, 62, 1),
    }


def prepare(family: int) -> socket.socket:
    """A non-blocking UDP socket with large buffers that never lets IP fragment. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    options = []
    if family == socket.AF_INET6:  # a dual-stack socket sends IPv4 too
        options.append((socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0))
    options += [_DONT_FRAGMENT[f] for f in {family, socket.AF_INET} if f in _DONT_FRAGMENT]
    for level, name, value in options:
        with suppress(OSError):
            sock.setsockopt(level, name, value)
    return sock


class UdpSocket:
    """Owns `sock`. `received` gets each batch, `failed` what the system says about the path.

    With `peer` the socket is connected to it, and every datagram counts as coming from it.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        received: Callable[[Datagrams], None],
        failed: Callable[[OSError], None],
        peer: Address | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._received = received
        self._failed = failed
        self._peer = peer
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._buffer = bytearray(MAX_DATAGRAM)
        self._closed = False
        self.address: Address = sock.getsockname()
        try:
            self._loop.add_reader(sock, self._readable)
        except NotImplementedError:
            sock.close()
            raise LocalError("this event loop cannot watch sockets; use a selector loop") from None

    def send(self, datagrams: Datagrams) -> bool:
        """Sends or queues; False if a datagram was larger than the path allows."""
        if self._closed:
            return True
        if self._waiting:
            self._waiting.extend(datagrams)
            return True
        return self._send(deque(datagrams))

    def close(self) -> None:
        """Closes the socket. What the system did not take yet is dropped."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        if self._waiting:
            self._loop.remove_writer(self._sock)
            self._waiting.clear()
        self._sock.close()

    def _send(self, datagrams: deque[tuple[bytes, Address]]) -> bool:
        """Sends from the front. What is left when the system takes no more becomes `_waiting`."""
        fits = True
        while datagrams:
            data, address = datagrams[0]
            try:
                if self._peer is None:
                    self._sock.sendto(data, address)
                elif address == self._peer:
                    self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                if self._waiting is not datagrams:
                    self._waiting = datagrams
                    self._loop.add_writer(self._sock, self._writable)
                return fits
            except OSError as error:
                fits = fits and error.errno != errno.EMSGSIZE
                self._failed(error)
            if self._closed:
                return fits
            datagrams.popleft()
        return fits

    def _writable(self) -> None:
        self._send(self._waiting)
        if not self._waiting and not self._closed:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        batch: Datagrams = []
        view = memoryview(self._buffer)
        for _ in range(BATCH):
            try:
                if self._peer is None:
                    size, address = self._sock.recvfrom_into(view)
                else:
                    size, address = self._sock.recv_into(view), self._peer
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._failed(error)
                if self._closed:
                    return
                continue
            batch.append((bytes(view[:size]), address))
        if batch:
            self._received(batch)
