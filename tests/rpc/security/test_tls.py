"""TLS between real sockets: whom a client trusts, and what it says where it does not."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tapml_rpc.security.certificates import (
    Certificate,
    given_certificate,
    host_names,
    own_certificate,
    parse_fingerprint,
)
from tapml_rpc.security.tls import client_context, server_context, tls_failure
from tapml_targets.errors import InputError, SetupError

NAMES = ["localhost", "127.0.0.1", "::1"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return own_certificate(NAMES, tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return own_certificate(NAMES, tmp_path_factory.mktemp("other"))


class Server:
    """Accepts over TLS and keeps what each client sent."""

    def __init__(self, certificate: Certificate) -> None:
        self.heard: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._context = server_context(certificate)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.settimeout(5)
            try:
                with self._context.wrap_socket(connection, server_side=True) as secured:
                    self.heard.append(secured.recv(100))
                    secured.sendall(b"welcome")
            except OSError:
                connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


@pytest.fixture
def server(own: Certificate) -> Iterator[Server]:
    running = Server(own)
    yield running
    running.close()


def talk(server: Server, context: ssl.SSLContext, name: str = "localhost") -> bytes:
    """Say the secret and hear the answer."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        secured.sendall(b"token")
        return secured.recv(100)


def test_the_fingerprint_that_the_server_shows_is_enough(server: Server, own: Certificate) -> None:
    plain = own.fingerprint.replace(":", "").lower()
    for fingerprint in (own.fingerprint, plain, f"sha256:{plain}"):
        assert talk(server, client_context(fingerprint=fingerprint), "any.name") == b"welcome"


def test_another_certificate_gets_not_a_byte(server: Server, other: Certificate) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        talk(server, client_context(fingerprint=other.fingerprint))
    server.close()
    assert server.heard in ([], [b""])
    said = str(tls_failure(raised.value, "wss://board:1"))
    assert "somebody is in between" in said and other.fingerprint in said


def test_a_pin_holds_for_asyncio_too(server: Server, own: Certificate, other: Certificate) -> None:
    async def open_and_say(fingerprint: str) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=client_context(fingerprint=fingerprint)
        )
        writer.write(b"token")
        answer = await reader.read(100)
        writer.close()
        return answer

    assert asyncio.run(open_and_say(own.fingerprint)) == b"welcome"
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(open_and_say(other.fingerprint))


def test_the_certificates_own_file_is_enough_for_its_names(
    server: Server, own: Certificate, other: Certificate
) -> None:
    context = client_context(ca_file=own.certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in NAMES:
        assert talk(server, context, name) == b"welcome"
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        talk(server, context, "board.example")
    assert "give its fingerprint" in str(tls_failure(raised.value, "wss://board.example:1"))
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(server, client_context(ca_file=other.certificate))


def test_the_system_does_not_trust_it_and_the_error_says_what_would(server: Server) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        talk(server, client_context())
    said = str(tls_failure(raised.value, "wss://localhost:1"))
    assert "fingerprint that `tapml rpc serve` printed" in said and "TAPML_RPC_CA" in said


def test_a_server_without_tls_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            pytest.raises(ssl.SSLError) as raised,
            socket.create_connection(listening.getsockname(), timeout=5) as plain,
        ):
            client_context().wrap_socket(plain, server_hostname="localhost")
        thread.join()
    assert "is it a ws:// address" in str(tls_failure(raised.value, "wss://localhost:1"))


def test_an_old_tls_is_refused(own: Certificate) -> None:
    for context in (
        server_context(own),
        client_context(),
        client_context(fingerprint=own.fingerprint),
    ):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_it_is_made_once_and_again_when_it_no_longer_fits(tmp_path: Path) -> None:
    first = own_certificate(NAMES, tmp_path).fingerprint
    assert own_certificate(NAMES[:1], tmp_path).fingerprint == first
    assert stat.S_IMODE((tmp_path / "device.key").stat().st_mode) == 0o600
    second = own_certificate([*NAMES, "10.1.2.3"], tmp_path).fingerprint
    assert second != first
    note = tmp_path / "device.names"
    fingerprint, _, *names = note.read_text().split()
    note.write_text("\n".join([fingerprint, "1000000000", *names]))
    assert own_certificate(NAMES, tmp_path).fingerprint != second


@pytest.mark.parametrize("name", ["device.key", "device.crt", "device.names"])
def test_one_that_is_half_there_is_made_again(tmp_path: Path, name: str) -> None:
    first = own_certificate(NAMES, tmp_path).fingerprint
    (tmp_path / name).unlink()
    assert own_certificate(NAMES, tmp_path).fingerprint != first


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    own_certificate(NAMES, tmp_path)
    (tmp_path / "device.key").chmod(0o644)
    with pytest.raises(SetupError, match="others may read the secret"):
        own_certificate(NAMES, tmp_path)


def test_given_files_are_looked_at_before_anybody_connects(
    own: Certificate, other: Certificate, tmp_path: Path
) -> None:
    assert given_certificate(own.certificate, own.key) == own
    with pytest.raises(InputError, match="are not a certificate and its key"):
        given_certificate(own.certificate, other.key)
    with pytest.raises(InputError, match="holds no certificate"):
        given_certificate(own.key, own.key)
    with pytest.raises(InputError, match="cannot read"):
        given_certificate(own.certificate, tmp_path / "absent")


def test_what_is_trusted_is_said_once(own: Certificate, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not both"):
        client_context(ca_file=own.certificate, fingerprint=own.fingerprint)
    with pytest.raises(InputError, match="holds no certificate"):
        client_context(ca_file=own.key)
    with pytest.raises(InputError, match="No such file"):
        client_context(ca_file=tmp_path / "absent")


@pytest.mark.parametrize("text", ["", "AB", "g" * 64, "ab:" * 32, "a" * 63, "a" * 65])
def test_what_is_no_fingerprint_is_said(text: str) -> None:
    with pytest.raises(InputError, match="64 hex digits"):
        parse_fingerprint(text)


def test_a_strange_host_name_adds_nothing_to_the_certificate(tmp_path: Path) -> None:
    strange = ["a,DNS:bank.example", "x\nbasicConstraints=CA:TRUE", "-", "*.example", ""]
    own_certificate([*NAMES, *strange], tmp_path)
    assert (tmp_path / "device.names").read_text().split()[2:] == NAMES


def test_a_server_is_reached_by_these_names() -> None:
    assert {"localhost", "127.0.0.1", "::1", socket.gethostname()} <= set(host_names("0.0.0.0"))
    assert "192.168.7.7" in host_names("192.168.7.7")


def test_without_a_maker_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="install the command openssl, or give --certificate"):
        own_certificate(NAMES, tmp_path / "tls")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no command openssl")
def test_what_is_made_serves_and_is_strict_x509(tmp_path: Path) -> None:
    made = own_certificate(NAMES, tmp_path / "tls")
    running = Server(made)
    try:
        context = client_context(ca_file=made.certificate)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        assert talk(running, context, "127.0.0.1") == b"welcome"
    finally:
        running.close()
