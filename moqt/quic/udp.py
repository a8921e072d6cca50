"""A UDP socket on asyncio's loop that hands over whole batches: many datagrams a wake-up, one answer to them.

Where the kernel can, one system call carries many datagrams: on sending a run of equal ones to one address (GSO), on
receiving what the kernel has joined (GRO). Both are tried and given up when the kernel refuses.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from moqt.errors import LocalError

Address: TypeAlias = Any
"""A socket address of whatever family."""
Datagrams: TypeAlias = list[tuple[bytes | memoryview, Address]]
"""Received memoryviews are of octets that never change."""

BATCH = 192
"""Datagrams read in one wake-up, and what came joined to the last; other connections wait meanwhile. A quarter of what
a sender has under way at the most, so that it hears of some while the rest is on its way."""
BATCH_OCTETS = 1 << 20
"""The same in octets, and what came joined to the last: joined by the kernel, 64 reads would be 4 MiB."""
SOCKET_BUFFER = 4 << 20
MAX_DATAGRAM = 65535
MAX_SEGMENTS = 64
"""Datagrams in one call; older kernels take no more."""
MAX_TRAIN = 65000
"""Octets in one call: IP counts them, with its headers, in 16 bits."""
SEGMENTATION_FAULTS = {errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
"""What a call with several datagrams fails with when the kernel or the device cannot take them apart, or when each
of them is too large."""

_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_SEGMENT_SIZE = struct.Struct("=H")
_JOINED_SIZE = struct.Struct("=i")
_ANCILLARY = 64
_MTU_OPTIONS: dict[int, tuple[int, int]] = {}
_HEADERS = {socket.AF_INET: 20 + 8, socket.AF_INET6: 40 + 8}
_MAPPED = "::ffff:"
"""How a socket of both families writes an IPv4 address."""

# Python does not name these options; the numbers are the platforms' own.
_DONT_FRAGMENT: dict[int, tuple[int, int, int]] = {}
if sys.platform == "linux":
    _DONT_FRAGMENT |= {
        socket.AF_INET: (socket.IPPROTO_IP, 10, 2),  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 2),
    }
    _MTU_OPTIONS |= {
        socket.AF_INET: (socket.IPPROTO_IP, 14),  # IP_MTU
        socket.AF_INET6: (socket.IPPROTO_IPV6, 24),
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


def largest_payload(address: Address) -> int | None:
    """Octets of UDP payload that one packet to `address` carries as far as the system knows; None where it does not
    say. The path beyond the first hop may carry less."""
    host, *rest = address
    if host.startswith(_MAPPED) and "." in host:
        host, rest = host.removeprefix(_MAPPED), rest[:1]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if family not in _MTU_OPTIONS:
        return None
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, *rest))
            return probe.getsockopt(*_MTU_OPTIONS[family]) - _HEADERS[family]
    except OSError:
        return None


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
        self._waiting: Datagrams = []
        self._buffer = bytearray(MAX_DATAGRAM)
        self._segments = sys.platform == "linux"
        self._joins = sys.platform == "linux" and _join_received(sock)
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
        return self._send(datagrams)

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

    def _send(self, datagrams: Datagrams) -> bool:
        """Sends from the front. What is left when the system takes no more becomes `_waiting`."""
        fits, index, suspect, singly = True, 0, -1, 0
        while index < len(datagrams):
            end = index + 1 if index < singly else self._train(datagrams, index)
            try:
                self._write(datagrams, index, end)
            except (BlockingIOError, InterruptedError):
                self._wait(datagrams[index:])
                return fits
            except OSError as error:
                if end > index + 1 and error.errno in SEGMENTATION_FAULTS:
                    suspect, singly = index, end
                    continue
                fits = fits and error.errno != errno.EMSGSIZE
                self._failed(error)
                if self._closed:
                    return fits
            else:
                # The largest of them went alone, so it was not its size.
                self._segments = self._segments and index != suspect
            index = end
        self._wait([])
        return fits

    def _train(self, datagrams: Datagrams, start: int) -> int:
        """Where the run of datagrams ends that can go in one call: equal, but for a shorter last one."""
        data, address = datagrams[start]
        size, end = len(data), start + 1
        if not self._segments or not size:
            return end
        limit = min(len(datagrams), start + min(MAX_SEGMENTS, MAX_TRAIN // size))
        while end < limit:
            data, to = datagrams[end]
            if not 0 < len(data) <= size or to != address:
                break
            end += 1
            if len(data) < size:
                break
        return end

    def _write(self, datagrams: Datagrams, start: int, end: int) -> None:
        data, address = datagrams[start]
        if self._peer is not None and address != self._peer:
            return  # a connected socket sends nowhere else
        if end == start + 1:
            if self._peer is None:
                self._sock.sendto(data, address)
            else:
                self._sock.send(data)
            return
        buffers = [data for data, _ in datagrams[start:end]]
        ancillary = [(_SOL_UDP, _UDP_SEGMENT, _SEGMENT_SIZE.pack(len(data)))]
        if self._peer is None:
            self._sock.sendmsg(buffers, ancillary, 0, address)
        else:
            self._sock.sendmsg(buffers, ancillary)

    def _wait(self, datagrams: Datagrams) -> None:
        """Keeps what the system did not take until it takes more."""
        if datagrams and not self._waiting:
            self._loop.add_writer(self._sock, self._writable)
        elif self._waiting and not datagrams:
            self._loop.remove_writer(self._sock)
        self._waiting = datagrams

    def _writable(self) -> None:
        self._send(self._waiting)

    def _readable(self) -> None:
        batch: Datagrams = []
        octets = 0
        read = self._read_joined if self._joins else self._read_one
        for _ in range(BATCH):
            try:
                octets += read(batch)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._failed(error)
                if self._closed:
                    return
            if len(batch) >= BATCH or octets >= BATCH_OCTETS:
                break
        if batch:
            self._received(batch)

    def _read_one(self, batch: Datagrams) -> int:
        view = memoryview(self._buffer)
        if self._peer is None:
            size, address = self._sock.recvfrom_into(view)
        else:
            size, address = self._sock.recv_into(view), self._peer
        batch.append((bytes(view[:size]), address))
        return size

    def _read_joined(self, batch: Datagrams) -> int:
        data, ancillary, _, address = self._sock.recvmsg(MAX_DATAGRAM, _ANCILLARY)
        if self._peer is not None:
            address = self._peer
        size = len(data)
        for level, kind, value in ancillary:
            if level == _SOL_UDP and kind == _UDP_GRO:
                (size,) = _JOINED_SIZE.unpack_from(value)
        if not 0 < size < len(data):
            batch.append((data, address))
        else:
            view = memoryview(data)
            batch += [(view[at : at + size], address) for at in range(0, len(data), size)]
        return len(data)


def _join_received(sock: socket.socket) -> bool:
    """Asks the kernel to hand over several datagrams at once; whether it will."""
    try:
        sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    except OSError:
        return False
    return True
