"""moqt:// URLs (draft-22 section 2.1)."""

from __future__ import annotations

import pytest

from moqt import MoqtUrl, format_authority, is_loopback, parse_url
from moqt.errors import LocalError


@pytest.mark.parametrize(
    ("text", "url", "authority", "shown"),
    [
        ("moqt://host", MoqtUrl("host", 443, ""), "host:443", "moqt://host:443"),
        ("moqt://Host:1/", MoqtUrl("host", 1, "/"), "host:1", "moqt://host:1/"),
        (
            "moqt://h/a/b?c=d&e#f:g",
            MoqtUrl("h", 443, "/a/b?c=d&e"),
            "h:443",
            "moqt://h:443/a/b?c=d&e",
        ),
        ("moqt://[::1]:4443/x", MoqtUrl("::1", 4443, "/x"), "[::1]:4443", "moqt://[::1]:4443/x"),
        ("moqt://127.0.0.1:9", MoqtUrl("127.0.0.1", 9, ""), "127.0.0.1:9", "moqt://127.0.0.1:9"),
        ("moqt://h/a%20b", MoqtUrl("h", 443, "/a%20b"), "h:443", "moqt://h:443/a%20b"),
        (
            "moqt://h/a b?ä",
            MoqtUrl("h", 443, "/a%20b?%C3%A4"),
            "h:443",
            "moqt://h:443/a%20b?%C3%A4",
        ),
        ("moqt://h?q", MoqtUrl("h", 443, "?q"), "h:443", "moqt://h:443?q"),
    ],
)
def test_urls(text: str, url: MoqtUrl, authority: str, shown: str) -> None:
    found = parse_url(text)
    assert found == url
    assert found.authority == authority
    assert str(found) == shown
    assert parse_url(shown) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:4443",
        "https://host/",
        "moqt:///path",
        "moqt://:4443/",
        "moqt://host:port/",
        "moqt://host:65536/",
        "moqt://host:0/",
        "moqt://user@host/",
        "moqt://user:word@host/",
        "moqt://@host/",
        "moqt://[::1/",
        "moqt://ho st/",
        "moqt://hö/",
        "moqt://a,b/",
        "moqt://host/\udcff",
    ],
)
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(LocalError, match="moqt://host"):
        parse_url(text)


def test_authorities() -> None:
    assert format_authority("::1", 5) == "[::1]:5"
    assert format_authority("h", 5) == "h:5"


def test_loopback() -> None:
    for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "::1%lo"):
        assert is_loopback(host)
    for host in ("", "0.0.0.0", "::", "192.0.2.1", "example.com", "localhost.example.com"):  # noqa: S104
        assert not is_loopback(host)
    for host in ("127.0.0.1%x.example.com", "::ffff:192.0.2.1", "2130706433", "127.1"):
        assert not is_loopback(host)
