"""kvcs.cli.access: relays that want tokens, publishers and consumers that show theirs, in processes (R2).

Whatever is printed or logged, and it is all of it, has neither a token nor a key in it.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvcs.access.keys import load_sealing_key
from kvcs.access.tokenfile import load_token, write_token
from kvcs.cli.main import main
from tests.support.cli import Files, Out, Outcome, Program, kvcs, program
from tests.support.tokens import make


@dataclass
class Desk:
    """Where keys and tokens are made, and everything that anybody said."""

    files: Files
    said: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)

    def path(self, name: str) -> Path:
        return self.files.directory / name

    def key(self, name: str) -> str:
        """A new shared key's file."""
        path = self.path(name)
        assert main(["keygen", "--alg", "HS256", "--output", str(path)]) == 0
        self.secrets.append(json.loads(path.read_bytes())["k"])
        key = load_sealing_key(path)
        self.secrets.append(key.octets.hex())  # type: ignore[union-attr]
        return str(path)

    def token(self, name: str, key: str, allow: str, *args: str, scope: bytes | None = None) -> str:
        """A new token's file."""
        path = self.path(name)
        path.unlink(missing_ok=True)
        scope = self.files.identity.scope_id if scope is None else scope
        made = ["token", "make", "--key", key, "--allow", allow, "--scope", scope.hex(), *args]
        assert main([*made, "--output", str(path)]) == 0
        octets = load_token(path)
        self.secrets += [path.read_text("ascii").strip(), octets.hex(), octets[-32:].hex()]
        self.secrets.append(repr(octets[-32:])[2:-1])
        return str(path)

    def expired(self, name: str, key: str) -> str:
        """A token that was good once."""
        allow, scope = ("subscribe", "fetch"), self.files.identity.scope_id
        write_token(self.path(name), make(load_sealing_key(Path(key)), allow, scope, expires=1e9))
        return str(self.path(name))

    def note(self, outcome: Outcome) -> Outcome:
        """What a command said, of which nothing may be secret."""
        self.said += [outcome.out, outcome.err]
        return outcome

    def check(self) -> None:
        """Nothing of a token or a key was said."""
        text = "\n".join(self.said)
        assert "debug" in text  # it was told to say everything
        for secret in self.secrets:
            assert len(secret) > 20
            assert secret not in text
            assert secret[:24] not in text


@pytest.fixture
def desk(files: Files, certificates: Path, capsys: Out) -> Desk:
    for path in certificates.glob("*.pem"):
        (files.directory / path.name).write_bytes(path.read_bytes())
    return Desk(files)


@asynccontextmanager
async def relaying(desk: Desk, name: str, *args: str) -> AsyncIterator[tuple[str, Program]]:
    """A relay in a process of its own, with everything logged."""
    ready = desk.path(f"{name}.json")
    shown = ["--cert", str(desk.path("server.pem")), "--key", str(desk.path("server-key.pem"))]
    listen = ["--listen", "127.0.0.1:0", "--ready-file", str(ready), "-vv"]
    async with program("relay", *listen, *shown, *args) as relay:
        await relay.until("kvcs: relaying at ")
        yield json.loads(ready.read_text("utf-8"))["url"], relay
        relay.process.send_signal(signal.SIGTERM)
        outcome = desk.note(await relay.outcome())
        assert outcome.status == 0
        assert "Traceback" not in outcome.err


def publish(desk: Desk, url: str, *args: str) -> list[str]:
    files = desk.files
    ca = ["--ca", str(desk.path("ca.pem"))]
    return ["publish", files.cache, *files.key, "--relay", url, *ca, "-vv", *args]


async def fetched(desk: Desk, capsys: Out, url: str, *args: str) -> Outcome:
    ca = ["--ca", str(desk.path("ca.pem"))]
    desk.files.output.unlink(missing_ok=True)
    return desk.note(await kvcs(capsys, *desk.files.subscribe(url, *ca, "-vv", *args)))


async def test_tokens_open_a_chain_of_relays(
    desk: Desk, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2: publisher, upstream hop and consumer each show their own; without one, or with another's, status 5."""
    first, second = desk.key("first.jwk"), desk.key("second.jwk")
    producing = desk.token("producer.token", first, "publish")
    hop = desk.token("hop.token", first, "subscribe,fetch")
    mine = desk.token("mine.token", second, "subscribe,fetch")
    theirs = desk.token("theirs.token", second, "subscribe,fetch", scope=b"o" * 16)
    async with relaying(desk, "a", "--auth-keys", first) as (url_a, _):
        upstream = ["--upstream", url_a, "--ca", str(desk.path("ca.pem")), "--auth-token", hop]
        async with (
            relaying(desk, "b", "--auth-keys", second, *upstream) as (url_b, _),
            program(*publish(desk, url_a, "--auth-token", producing)) as publisher,
        ):
            await publisher.until("publication ")
            got = await fetched(desk, capsys, url_b, "--auth-token", mine)
            assert got.status == 0, got.err
            assert got.json["status"] == "complete"
            monkeypatch.setenv("KVCS_AUTH_TOKEN", Path(mine).read_text("ascii"))
            assert (await fetched(desk, capsys, url_b)).status == 0
            monkeypatch.delenv("KVCS_AUTH_TOKEN")
            late = desk.expired("late.token", second)
            for token in (None, theirs, producing, late):
                args = [] if token is None else ["--auth-token", token]
                refused = await fetched(desk, capsys, url_b, *args)
                assert refused.status == 5, refused.err
                assert refused.json["status"] == "unauthorised"
            publisher.process.send_signal(signal.SIGTERM)
            desk.note(await publisher.outcome())
    desk.check()


async def test_a_publisher_without_a_token_is_refused(desk: Desk, capsys: Out) -> None:
    keys = desk.key("keys.jwk")
    reader = desk.token("reader.token", keys, "subscribe,fetch")
    async with relaying(desk, "a", "--auth-keys", keys) as (url, _):
        for args in ([], ["--auth-token", reader]):
            refused = desk.note(await kvcs(capsys, *publish(desk, url, *args)))
            assert refused.status == 5
            assert "UNAUTHORIZED" in refused.err
    desk.check()


async def test_keys_are_read_again_at_a_hangup(desk: Desk, capsys: Out) -> None:
    """R2: an old key is refused once it is retired; a file that is broken changes nothing."""
    old, new = desk.key("old.jwk"), desk.key("new.jwk")
    ring = desk.path("ring.jwk")

    def trust(*files: str) -> None:
        keys = [json.loads(Path(file).read_text("ascii")) for file in files]
        ring.write_text(json.dumps({"keys": keys}), "ascii")

    trust(old)
    producing = desk.token("producer.token", old, "publish")
    before = desk.token("before.token", old, "subscribe,fetch")
    after = desk.token("after.token", new, "subscribe,fetch")
    async with relaying(desk, "a", "--auth-keys", str(ring)) as (url, relay):

        async def hang_up(said: str) -> None:
            relay.process.send_signal(signal.SIGHUP)
            await relay.until(said)

        async with program(*publish(desk, url, "--auth-token", producing)) as publisher:
            await publisher.until("publication ")
            statuses = []
            for trusted, said in (
                ([old], None),
                ([old, new], "kvcs: 2 keys"),
                ([new], "kvcs: 1 keys"),
                ([], "kvcs: warning: keys stay as they were"),
            ):
                trust(*trusted)
                if said is not None:
                    await hang_up(said)
                for token in (before, after):
                    got = await fetched(desk, capsys, url, "--auth-token", token)
                    statuses.append(got.status)
            assert statuses == [0, 5, 0, 0, 5, 0, 5, 0]
            publisher.process.send_signal(signal.SIGTERM)
            desk.note(await publisher.outcome())
    desk.check()


async def test_with_keys_a_relay_may_listen_where_others_reach_it(desk: Desk, capsys: Out) -> None:
    shown = ["--cert", str(desk.path("server.pem")), "--key", str(desk.path("server-key.pem"))]
    words = ["relay", "--listen", "0.0.0.0:0", *shown]
    assert "--auth-keys" in (await kvcs(capsys, *words)).complaint(2)
    nowhere = ["--ready-file", str(desk.path("none") / "ready")]
    with_keys = await kvcs(capsys, *words, "--auth-keys", desk.key("k"), *nowhere)
    assert "ready file" in with_keys.complaint(2)  # it had nothing against the address


async def test_flags_about_tokens_need_keys(desk: Desk, capsys: Out) -> None:
    words = ["relay", "--listen", "127.0.0.1:0"]
    for flags in (["--auth-issuer", "x"], ["--auth-audience", "x"], ["--c4m-compact"]):
        assert "need --auth-keys" in (await kvcs(capsys, *words, *flags)).complaint(2)


async def test_a_token_in_the_place_of_its_file_is_not_repeated(desk: Desk, capsys: Out) -> None:
    token = Path(desk.token("t", desk.key("k"), "fetch")).read_text("ascii").strip()
    got = desk.note(await fetched(desk, capsys, "moqt://127.0.0.1:1", "--auth-token", token))
    assert "not the token itself" in got.json["error"] if got.out else got.err
    assert got.status == 2
    for text in (got.out, got.err):
        assert token not in text
        assert token[:24] not in text
    bad = desk.path("bad")
    bad.write_text("no token", "ascii")
    for path, why in ((bad, "holds no token"), (desk.path("none"), "cannot read")):
        got = await fetched(desk, capsys, "moqt://127.0.0.1:1", "--auth-token", str(path))
        assert got.status == 2
        assert why in got.err
