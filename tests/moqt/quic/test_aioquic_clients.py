"""moqt.quic.aioquic_clients: who is let in by certificate, over real sockets; and certificates that change meanwhile."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from aioquic.tls import Context, load_pem_x509_certificates
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtensionOID

from kvcs.certs import make
from moqt import ClientTls, Publisher, ServerTls, Track, connect, serve
from moqt.errors import LocalError, MoqtError, SessionClosed, SessionErrorCode
from moqt.quic import backend
from moqt.quic.aioquic_clients import HOOKS, ClientCheck
from moqt.server import Server
from moqt.session import Session
from tests.support.ends import ALL, NAME, eventually

REQUIRED = "a client certificate is required"
UNTRUSTED = "the client certificate is not trusted here"
PATIENCE = 20.0


def server_tls(directory: Path, clients: Path | None) -> ServerTls:
    ca = None if clients is None else clients / "ca.pem"
    return ServerTls(
        certificate=directory / "server.pem", private_key=directory / "server-key.pem", client_ca=ca
    )


def client_tls(directory: Path, own: Path | None, name: str = "client") -> ClientTls:
    return ClientTls(
        ca_file=directory / "ca.pem",
        certificate=None if own is None else own / f"{name}.pem",
        private_key=None if own is None else own / f"{name}-key.pem",
    )


async def listening(tls: ServerTls) -> Server:
    origin = Publisher()
    track = origin.add_track(Track(NAME))
    track.end()
    return await serve("127.0.0.1", 0, origin, tls=tls)


async def use(session: Session) -> None:
    """Something that only a session which was let in can do."""
    async with asyncio.timeout(PATIENCE):
        await session.peer_options()
        await session.subscribe(*NAME, location=ALL)


async def refused(url: str, tls: ClientTls) -> str:
    """What the server says as it ends the connection; nothing of the session works before that."""
    with pytest.raises(SessionClosed) as caught:
        async with await connect(url, tls=tls) as session:
            await use(session)
    assert caught.value.code is SessionErrorCode.UNAUTHORIZED
    return str(caught.value)


def test_the_hooks_are_there() -> None:
    """Fails with a version of the library that has them no more: listening with `client_ca` does as well."""
    context = Context(is_client=False)
    assert [name for name in HOOKS if not hasattr(context, name)] == []


def test_no_listening_without_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moqt.quic.aioquic_clients.HOOKS", (*HOOKS, "_not_there"))
    with pytest.raises(LocalError, match="has no _not_there"):
        ClientCheck([])


def test_no_resumed_sessions(certificates: Path) -> None:
    """They would come in without a certificate."""
    context = Context(is_client=False)
    context.get_session_ticket_cb = lambda label: None
    with pytest.raises(LocalError, match="resumed"):
        ClientCheck(load_pem_x509_certificates((certificates / "ca.pem").read_bytes())).watch(
            context
        )


async def test_who_shows_a_good_one_is_let_in(certificates: Path) -> None:
    """And the server knows who it is."""
    async with (
        await listening(server_tls(certificates, certificates)) as server,
        await connect(server.url, tls=client_tls(certificates, certificates)) as session,
    ):
        await use(session)
        (far,) = server.sessions
        pem = (certificates / "client.pem").read_bytes()
        (shown,) = load_pem_x509_certificates(pem)
        der = far.driver.peer_certificate
        assert der is not None
        assert der == shown.public_bytes(Encoding.DER)
        assert session.driver.peer_certificate is None


async def test_nobody_is_asked_by_default(certificates: Path) -> None:
    async with (
        await listening(server_tls(certificates, None)) as server,
        await connect(server.url, tls=client_tls(certificates, certificates)) as session,
    ):
        await use(session)
        assert [far.driver.peer_certificate for far in server.sessions] == [None]


async def test_who_shows_none(certificates: Path) -> None:
    async with await listening(server_tls(certificates, certificates)) as server:
        assert REQUIRED in await refused(server.url, client_tls(certificates, None))
        await eventually(lambda: not server.sessions)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    make(tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


async def test_who_shows_that_of_another_authority(certificates: Path, elsewhere: Path) -> None:
    async with await listening(server_tls(certificates, certificates)) as server:
        assert UNTRUSTED in await refused(server.url, client_tls(certificates, elsewhere))


async def test_who_shows_names_that_cannot_be_read(tmp_path: Path) -> None:
    """Such as an x400Address, in a certificate that is good otherwise; the next one is let in."""
    make(tmp_path)
    pem = (tmp_path / "ca-key.pem").read_bytes()
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    good = x509.load_pem_x509_certificate((tmp_path / "client.pem").read_bytes())
    names = x509.UnrecognizedExtension(
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3002a300")
    )
    builder = x509.CertificateBuilder(
        good.issuer,
        good.subject,
        good.public_key(),
        good.serial_number + 1,
        good.not_valid_before_utc,
        good.not_valid_after_utc,
    )
    for extension in good.extensions:
        is_name = extension.oid == ExtensionOID.SUBJECT_ALTERNATIVE_NAME
        builder = builder.add_extension(names if is_name else extension.value, extension.critical)
    odd = builder.sign(key, SHA256())
    (tmp_path / "odd.pem").write_bytes(odd.public_bytes(Encoding.PEM))
    (tmp_path / "odd-key.pem").write_bytes((tmp_path / "client-key.pem").read_bytes())
    async with await listening(server_tls(tmp_path, tmp_path)) as server:
        told = await refused(server.url, client_tls(tmp_path, tmp_path, "odd"))
        assert "the client certificate cannot be read" in told
        async with await connect(server.url, tls=client_tls(tmp_path, tmp_path)) as session:
            await use(session)


async def test_who_shows_that_of_a_server(certificates: Path) -> None:
    """The purpose counts: a server's certificate of the same authority is none of a client."""
    async with await listening(server_tls(certificates, certificates)) as server:
        tls = client_tls(certificates, certificates, "server")
        assert UNTRUSTED in await refused(server.url, tls)


async def test_who_shows_one_that_is_over(certificates: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    make(old, now=datetime.now(UTC) - timedelta(days=30))
    async with await listening(server_tls(certificates, old)) as server:
        assert UNTRUSTED in await refused(server.url, client_tls(certificates, old))


async def test_another_key_than_that_of_the_certificate(
    certificates: Path, elsewhere: Path
) -> None:
    """Not even tried: the files do not belong together."""
    tls = ClientTls(
        ca_file=certificates / "ca.pem",
        certificate=certificates / "client.pem",
        private_key=elsewhere / "client-key.pem",
    )
    async with await listening(server_tls(certificates, certificates)) as server:
        with pytest.raises(LocalError, match="is not that of"):
            await connect(server.url, tls=tls)


async def test_certificates_change_while_it_listens(certificates: Path, elsewhere: Path) -> None:
    """Sessions that are open stay; those who come see the new one, and are checked by the new rules."""
    async with await listening(server_tls(certificates, None)) as server:
        async with await connect(server.url, tls=client_tls(certificates, None)) as before:
            await use(before)
            server.reload(server_tls(elsewhere, elsewhere))
            with pytest.raises(MoqtError):
                await connect(server.url, tls=client_tls(certificates, None))
            async with await connect(server.url, tls=client_tls(elsewhere, elsewhere)) as after:
                await use(after)
            await use(before)
        with pytest.raises(LocalError):
            server.reload(server_tls(elsewhere / "missing", None))
        async with await connect(server.url, tls=client_tls(elsewhere, elsewhere)) as after:
            await use(after)


@pytest.mark.parametrize("name", ["qh3", "aiopquic"])
async def test_backends_that_cannot_say_so(name: str, certificates: Path) -> None:
    """They refuse to listen, and to show one, rather than leaving it out."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    library = backend(name)
    with pytest.raises(LocalError, match="use aioquic"):
        await serve(
            "127.0.0.1",
            0,
            Publisher(),
            tls=server_tls(certificates, certificates),
            backend=library,
        )
    with pytest.raises(LocalError, match="use aioquic"):
        await connect(
            "moqt://127.0.0.1:4443",
            tls=client_tls(certificates, certificates),
            backend=library,
        )
