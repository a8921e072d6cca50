"""kvcs.cli.mutual: certificates of clients, in processes of their own; SIGHUP; and what the flags refuse."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from kvcs.certs import make
from kvcs.cli.main import main
from tests.kvcs.cli.test_relay import ca, identical, publish, relaying, shared
from tests.support.cli import Files, Out, kvcs, program

__all__ = ["shared"]


def own(files: Files, name: str = "client") -> list[str]:
    """What shows a certificate."""
    pair = (files.directory / f"{name}.pem", files.directory / f"{name}-key.pem")
    return ["--client-cert", str(pair[0]), "--client-key", str(pair[1])]


def scopes(files: Files, **entry: object) -> Path:
    path = files.directory / "clients.json"
    known = {"scopes": [files.identity.scope_id.hex()]} | entry
    path.write_text(json.dumps({"identities": [known]}), "utf-8")
    return path


async def test_certificates_and_scopes_at_a_relay(shared: Files, capsys: Out) -> None:
    """R2: who shows no certificate is not let in; what one allows is in the file, for publishers as for consumers."""
    rules = ["--client-ca", str(shared.directory / "ca.pem"), "--client-scopes"]
    rules += [str(scopes(shared, san="client", publish=True))]
    async with (
        relaying(shared.directory, "relay", *rules) as (url, _),
        program(*publish(shared, url, *own(shared))) as publisher,
    ):
        await publisher.until("announced to ")
        ended = await kvcs(capsys, *shared.subscribe(url, *ca(shared), *own(shared)))
        assert ended.status == 0, ended.err
        assert identical(shared)
        shared.output.unlink()
        ended = await kvcs(capsys, *shared.subscribe(url, *ca(shared), "--deadline", "10"))
        assert "a client certificate is required" in ended.complaint(5)
        assert shared.nothing_written()
    # The same certificate may read and not publish.
    rules[-1] = str(scopes(shared, cn="KVCS client"))
    async with (
        relaying(shared.directory, "reader", *rules) as (url, _),
        program(*publish(shared, url, *own(shared))) as publisher,
    ):
        ended = await publisher.outcome()
        assert ended.status == 5, ended.err
        assert "the certificate does not grant this" in ended.err


async def test_scopes_are_read_again_at_a_hangup(shared: Files, capsys: Out) -> None:
    """R2: a certificate that is taken out of the file is good for nothing more; a broken file changes nothing."""
    listed = scopes(shared, san="client")
    rules = ["--client-ca", str(shared.directory / "ca.pem"), "--client-scopes", str(listed)]
    async with relaying(shared.directory, "relay", *rules) as (url, relay):

        async def status() -> int:
            words = shared.subscribe(url, *ca(shared), *own(shared), "--wait", "0.1")
            return (await kvcs(capsys, *words)).status

        assert await status() == 3
        listed.write_text("{", "utf-8")
        relay.process.send_signal(signal.SIGHUP)
        line = await relay.until(f"kvcs: {listed}: client scopes")
        assert line.endswith("what clients may do stays as it was")
        assert await status() == 3
        scopes(shared, san="somebody else")
        relay.process.send_signal(signal.SIGHUP)
        await relay.until("kvcs: client scopes read again")
        assert await status() == 5


async def test_a_publisher_that_lets_in_whom_it_knows(shared: Files, capsys: Out) -> None:
    """And SIGHUP has it show another certificate, and let in others, while it goes on serving."""
    here = shared.directory
    listen = ["--listen", "127.0.0.1:0", "--cert", str(here / "server.pem")]
    listen += ["--key", str(here / "server-key.pem"), "--client-ca", str(here / "clients.pem")]
    shutil.copyfile(here / "ca.pem", here / "clients.pem")
    async with program("publish", shared.cache, *shared.key, *listen) as publisher:
        url = (await publisher.until("serving at ")).split()[-1]
        await publisher.until("publication ")
        ended = await kvcs(capsys, *shared.subscribe(url, *ca(shared), *own(shared)))
        assert ended.status == 0, ended.err
        shared.output.unlink()
        make(here / "new")
        for name in ("server.pem", "server-key.pem"):
            shutil.copyfile(here / "new" / name, here / name)
        publisher.process.send_signal(signal.SIGHUP)
        await publisher.until("certificate read again: ")
        ended = await kvcs(capsys, *shared.subscribe(url, *ca(shared), *own(shared)))
        assert ended.status == 1, ended.err
        trust = ["--ca", str(here / "new" / "ca.pem")]
        ended = await kvcs(capsys, *shared.subscribe(url, *trust, *own(shared)))
        assert ended.status == 0, ended.err
        (here / "server.pem").write_text("nothing", "ascii")
        publisher.process.send_signal(signal.SIGHUP)
        assert "the old certificate is kept" in await publisher.until("cannot use")
        publisher.process.send_signal(signal.SIGTERM)
        assert (await publisher.outcome()).status == 0


async def test_another_name_than_the_hosts(shared: Files, capsys: Out) -> None:
    """--server-name says whose certificate it has to be."""
    make(shared.directory, ["relay.example"])
    async with relaying(shared.directory, "relay") as (url, _):
        ended = await kvcs(capsys, *shared.subscribe(url, *ca(shared)))
        assert ended.status == 1, ended.err
        words = [*ca(shared), "--server-name", "relay.example"]
        ended = await kvcs(capsys, *shared.subscribe(url, *words, "--wait", "0"))
        assert ended.status == 3, ended.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["subscribe", "--client-cert", "client.pem"], "go together"),
        (["subscribe", "--client-key", "client-key.pem"], "go together"),
        (
            ["subscribe", "--client-cert", "client.pem", "--client-key", "server-key.pem"],
            "is not the key of",
        ),
        (["subscribe", "--client-cert", "none", "--client-key", "none"], "cannot read"),
        (["publish", "--client-ca", "ca.pem"], "--client-ca goes with"),
        (["publish", "--client-ca", "none"], "cannot read"),
        (["relay", "--client-ca", "ca.pem"], "--client-ca goes with"),
        (["relay", "--client-scopes", "clients.json"], "needs --client-ca"),
        (["relay", "--client-ca", "ca.pem", "--client-scopes", "none"], "cannot read"),
    ],
)
def test_what_is_refused(
    words: list[str],
    reason: str,
    shared: Files,
    capsys: Out,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shared.directory)
    command, *flags = words
    rest = {
        "subscribe": shared.subscribe("moqt://127.0.0.1:1")[1:],
        "publish": [shared.cache, *shared.key, "--listen", "127.0.0.1:0"],
        "relay": ["--listen", "127.0.0.1:0"],
    }[command]
    assert main([command, *rest, *flags]) == 2
    assert reason in capsys.readouterr().err
