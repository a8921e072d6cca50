"""moqt:// URLs (draft-22 section 2.1)."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from moqt.errors import LocalError

DEFAULT_PORT = 443

_HOST = re.compile(r"[A-Za-z0-9._~-]+|[0-9A-Fa-f:.]+")
_PATH = "/%!$&'()*+,;=:@-._~"


class MoqtUrl(NamedTuple):
    """Where to connect, and what SETUP says of it."""

    host: str
    port: int
    path: str
    """With the query, as the PATH option carries it."""

    @property
    def authority(self) -> str:
        """host:port as the AUTHORITY option carries it; IPv6 in brackets."""
        return format_authority(self.host, self.port)

    def __str__(self) -> str:
        return f"moqt://{self.authority}{self.path}"


def format_authority(host: str, port: int) -> str:
    """host:port, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_url(url: str) -> MoqtUrl:
    """Takes a URL apart; what a path cannot hold as it is gets percent-encoded. Raises LocalError."""
    expected = "expected moqt://host[:port][/path]"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LocalError(f"{url!r} is no URL ({error}); {expected}") from None
    if parts.scheme != "moqt" or not parts.hostname:
        raise LocalError(f"{url!r} is no MOQT URL; {expected}")
    if "@" in parts.netloc:
        raise LocalError(f"a MOQT URL has no user; {expected}")
    if not _HOST.fullmatch(parts.hostname):
        raise LocalError(f"{parts.hostname!r} is no host name; {expected}")
    if port == 0:
        raise LocalError(f"0 is no port to connect to; {expected}")
    try:
        path = quote(parts.path, safe=_PATH) + (
            f"?{quote(parts.query, safe=_PATH + '?')}" if parts.query else ""
        )
    except UnicodeEncodeError:
        raise LocalError(f"{url!r} is not UTF-8; {expected}") from None
    return MoqtUrl(parts.hostname, DEFAULT_PORT if port is None else port, path)


def is_loopback(host: str) -> bool:
    """Whether `host` can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
