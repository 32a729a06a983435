"""What `connect()` takes: read from files or the environment, never shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tapml.cli.secrets import make_pair, write_pair
from tapml_rpc.security.certificates import own_certificate
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.security.token import make_token
from tapml_targets.errors import InputError, SetupError

CLIENT, SERVER = make_pair("client"), make_pair("device")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_pair(CLIENT, tmp_path / "keys")


def test_keys_come_from_files(key: Path, tmp_path: Path) -> None:
    public = write_pair(SERVER, tmp_path / "device").with_suffix(".public")
    for server_key in (public, str(public), SERVER.public):
        curve = Credentials.from_files(key=key, server_key=server_key).curve()
        assert curve is not None
        assert (curve.keys, curve.server) == (CLIENT, SERVER.public)


def test_the_environment_says_the_same(key: Path, tmp_path: Path) -> None:
    ca_file = own_certificate(["localhost"], tmp_path / "tls").certificate
    token = make_token()
    environ = {
        "TAPML_RPC_KEY": str(key),
        "TAPML_RPC_SERVER_KEY": SERVER.public,
        "TAPML_RPC_TOKEN": token,
        "TAPML_RPC_CA": str(ca_file),
    }
    expected = Credentials(keys=CLIENT, server_key=SERVER.public, token=token, ca_file=ca_file)
    found = Credentials.from_environment(environ)
    assert found == expected
    assert found is not None and found.ssl_context().cert_store_stats()["x509"] == 1
    assert Credentials.from_environment({}) is None
    assert Credentials.from_environment({"TAPML_RPC_TOKEN": ""}) is None


def test_nothing_shows_when_they_are_printed(key: Path) -> None:
    token = make_token()
    credentials = Credentials(keys=CLIENT, server_key=SERVER.public, token=token)
    for shown in (repr(credentials), str(credentials), f"{credentials!r}"):
        assert CLIENT.secret not in shown and token not in shown
        assert shown == "Credentials()"


def test_a_missing_half_is_named(key: Path) -> None:
    with pytest.raises(InputError, match=r"server's public one \(TAPML_RPC_SERVER_KEY\)"):
        Credentials.from_files(key=key)
    with pytest.raises(InputError, match=r"own \(TAPML_RPC_KEY, a \.secret file\)"):
        Credentials.from_environment({"TAPML_RPC_SERVER_KEY": SERVER.public})


def test_a_token_comes_from_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    path, token = tmp_path / "token", make_token()
    path.write_text(token + "\n")
    path.chmod(0o644)
    with pytest.raises(SetupError, match="chmod 600"):
        Credentials.from_files(token=path)
    path.chmod(0o600)
    assert Credentials.from_files(token=path).token == token


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Header: 1", "é", "x" * 257])
def test_a_token_cannot_add_to_a_request(token: str) -> None:
    with pytest.raises(InputError, match=r"the token is not a token: expected .* '~'") as raised:
        Credentials(token=token)
    assert not token or token not in str(raised.value)


def test_mistakes_are_said_before_anything_connects(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="64 hex digits"):
        Credentials(fingerprint="abc")
    with pytest.raises(InputError, match="not both"):
        Credentials(fingerprint="ab" * 32, ca_file=tmp_path)
    with pytest.raises(InputError, match="server's public key is not a key: expected the 40"):
        Credentials(keys=CLIENT, server_key="abc")
    assert Credentials().curve() is None


def test_a_websocket_client_needs_no_zeromq(tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["zmq"] = None
from tapml_rpc.security import bind, certificates, tls, token
from tapml_rpc.security.credentials import Credentials
credentials = Credentials(token=token.make_token())
credentials.ssl_context()
token.TokenBook().issue("ada")
bind.check_bind("ws://127.0.0.1:0", secret=False)
folder = certificates.Path({str(tmp_path)!r})
tls.server_context(certificates.own_certificate(["localhost"], folder))
assert not any(name.split(".")[0] == "numpy" for name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
