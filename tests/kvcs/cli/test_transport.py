"""kvcs.cli.transport: every command that opens sessions does so over the library that --quic names."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path

import pytest

import moqt.quic
from kvcs.cli import transport
from kvcs.cli.main import main
from kvcs.cli.verify import compare
from kvcs.errors import KvcsError, UsageError
from kvcs.formats.safetensors import KvFile
from moqt import QUIC_BACKENDS, parse_url
from moqt.errors import LocalError
from tests.support.cli import Files, Out, Outcome, kvcs, program

LISTEN = ["--listen", "127.0.0.1:0"]
URL = "moqt://127.0.0.1:4443"
OPTIONAL = QUIC_BACKENDS[1:]


def command_lines(files: Files) -> list[list[str]]:
    """One for each way to open a session."""
    return [
        ["publish", files.cache, *files.key, *LISTEN],
        ["publish", files.cache, *files.key, "--relay", URL, "--insecure"],
        files.subscribe(URL, "--insecure"),
        ["relay", *LISTEN],
    ]


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """As if these libraries were not installed."""

    def imported(name: str) -> object:
        library = name.rpartition(".")[2]
        if library in missing:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return import_module(name)

    monkeypatch.setattr(moqt.quic, "import_module", imported)


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_library_that_is_not_installed(
    name: str, files: Files, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what to install; status 2; nothing was begun."""
    without(monkeypatch, *OPTIONAL)
    for words in (*command_lines(files), ["demo"], ["bench"]):
        ended = Outcome(main([*words, "--quic", name]), *capsys.readouterr())
        line = ended.complaint(2)
        assert f"pip install 'kvcs[{name}]'" in line
        assert ("Python 3.12" in line) is (name == "aiopquic")
        if "--json" in words:
            assert ended.json["status"] == "error"
            assert "pip install" in ended.json["error"]
    assert files.nothing_written()


def test_names() -> None:
    assert transport.backend("aioquic") is import_module("moqt.quic.aioquic")
    with pytest.raises(UsageError, match="there is aioquic, qh3, aiopquic"):
        transport.backend("quiche")


def test_a_library_that_there_is_not(files: Files, capsys: Out) -> None:
    for words in (*command_lines(files), ["demo"], ["bench"]):
        ended = Outcome(main([*words, "--quic", "quiche"]), *capsys.readouterr())
        assert "'aioquic', 'qh3', 'aiopquic'" in ended.complaint(2)


class Asked:
    """A backend that only says that it was asked."""

    async def connect(self, *args: object, **more: object) -> None:
        raise LocalError("asked to connect")

    async def listen(self, *args: object, **more: object) -> None:
        raise LocalError("asked to listen")


async def test_the_backend_that_is_named_is_used(
    files: Files, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []

    def backend(name: str) -> Asked:
        chosen.append(name)
        return Asked()

    monkeypatch.setattr("kvcs.cli.transport.quic_backend", backend)
    for words in command_lines(files):
        ended = await kvcs(capsys, *words, "--quic", "qh3")
        assert "asked to" in ended.complaint(1)
    assert chosen == ["qh3"] * 4


def test_the_environment_and_the_file_name_one_too(
    files: Files, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all commands at once, the benchmark included, which calls it --backend as well."""
    without(monkeypatch, *OPTIONAL)
    lines = (*command_lines(files), ["demo"], ["bench"])
    (files.directory / "kvcs.toml").write_text('quic = "qh3"\n', "utf-8")
    assert [main(words) for words in lines] == [2] * len(lines)
    assert capsys.readouterr().err.count("pip install 'kvcs[qh3]'") == len(lines)
    monkeypatch.setenv("KVCS_QUIC", "aiopquic")
    assert [main(words) for words in lines] == [2] * len(lines)
    assert capsys.readouterr().err.count("pip install 'kvcs[aiopquic]'") == len(lines)
    assert main(["bench", "--backend", "qh3"]) == 2
    assert "kvcs[qh3]" in capsys.readouterr().err


def test_the_demonstration_hands_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []

    async def start(_environment: object, _heard: Callable[[str], object], *args: str) -> None:
        started.append(args)
        raise KvcsError("enough")

    monkeypatch.setattr("kvcs.cli.stage.Process.start", start)
    monkeypatch.setattr("kvcs.cli.transport.quic_backend", lambda name: Asked())
    assert main(["demo", "--quic", "qh3"]) == 1
    ((*_, flag, value),) = [args[: args.index("qh3") + 1] for args in started]
    assert (flag, value) == ("--quic", "qh3")


@pytest.mark.parametrize("place", ["127.0.0.1:0", "localhost:0", "[::1]:0", "192.0.2.1:0"])
def test_a_library_that_listens_everywhere_is_not_for_one_address(
    place: str, files: Files, certificates: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: what is meant for loopback must not be open to the network; status 2, and nothing listens."""
    monkeypatch.setattr("kvcs.cli.transport.quic_backend", lambda name: Asked())
    shown = ["--cert", str(certificates / "server.pem")]
    shown += ["--key", str(certificates / "server-key.pem")]
    keygen = ["keygen", "--output", str(files.directory / "issuer.pem")]
    assert main(keygen) == 0
    auth = ["--auth-keys", str(files.directory / "issuer.pem.pub")]
    for words in (
        ["relay", *shown, *auth],
        ["publish", files.cache, *files.key, *shown],
    ):
        capsys.readouterr()
        ended = Outcome(
            main([*words, "--listen", place, "--quic", "aiopquic"]), *capsys.readouterr()
        )
        assert "aiopquic listens on every address" in ended.complaint(2)
        assert "asked" not in ended.err
        everywhere = [*words, "--listen", "0.0.0.0:0", "--quic", "aiopquic"]
        assert "asked to listen" in Outcome(main(everywhere), *capsys.readouterr()).complaint(1)


def test_everywhere_means_under_the_rules_for_it(
    files: Files, certificates: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: no relay without tokens, nothing without a certificate."""
    monkeypatch.setattr("kvcs.cli.transport.quic_backend", lambda name: Asked())
    shown = ["--cert", str(certificates / "server.pem")]
    shown += ["--key", str(certificates / "server-key.pem")]
    anywhere = ["--listen", "0.0.0.0:0", "--quic", "aiopquic"]
    for words, hint in (
        (["relay", *anywhere, *shown], "--auth-keys"),
        (["relay", *anywhere], "--cert"),
        (["publish", files.cache, *files.key, *anywhere], "--cert"),
    ):
        assert hint in Outcome(main(words), *capsys.readouterr()).complaint(2)


def tokens(files: Files) -> tuple[list[str], list[str]]:
    """The flags of a relay that asks for tokens, and of those who have one."""
    issuer, token = files.directory / "issuer.pem", files.directory / "token"
    assert main(["keygen", "--output", str(issuer)]) == 0
    allow = ["--allow", "publish,subscribe,fetch", "--expires", "1h"]
    make = ["token", "make", "--key", str(issuer), *files.key, *allow, "--output", str(token)]
    assert main(make) == 0
    return ["--auth-keys", f"{issuer}.pub"], ["--auth-token", str(token)]


async def test_a_cache_through_a_relay(
    socket_name: str, files: Files, certificates: Path, capsys: Out
) -> None:
    """All three in processes of their own, over the library of this run; SIGTERM ends them with 0."""
    quic = ["--quic", socket_name]
    ca = ["--ca", str(certificates / "ca.pem")]
    shown = ["--cert", str(certificates / "server.pem")]
    shown += ["--key", str(certificates / "server-key.pem"), "--ready-file", "ready.json"]
    where = LISTEN
    if socket_name in transport.EVERY_ADDRESS:
        asked, has = tokens(files)
        where, ca = ["--listen", "0.0.0.0:0", *asked], [*ca, *has]
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(program("relay", *where, *shown, *quic))
        await relay.until("kvcs: relaying at ")
        port = parse_url(json.loads(Path("ready.json").read_text("utf-8"))["url"]).port
        url = f"moqt://127.0.0.1:{port}"
        words = ["publish", files.cache, *files.key, "--relay", url, *ca, *quic]
        publisher = await stack.enter_async_context(program(*words))
        await publisher.until("publication ")
        got = await kvcs(capsys, *files.subscribe(url, *ca, *quic))
        assert (got.status, got.json["status"]) == (0, "complete"), got.err
        with KvFile(files.cache) as sent, KvFile(files.output) as copy:
            assert compare(sent, copy).identical
        for ending in (publisher, relay):
            ending.process.send_signal(signal.SIGTERM)
            ended = await ending.outcome()
            assert ended.status == 0
            assert "Traceback" not in ended.err


def test_the_benchmark(socket_name: str, capsys: Out) -> None:
    assert main(["bench", "--quic", socket_name, "--size", "4", "--rounds", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["backend"] == socket_name
    assert result["bytes"] == 4 << 20
    assert result["ratio"] > 0
