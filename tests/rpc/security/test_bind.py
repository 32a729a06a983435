"""Off loopback only with a secret, and what is checked is what is bound."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_rpc.security.bind import bracketed, check_bind, is_loopback
from tapml_targets.errors import InputError, SetupError


def resolver(**known: list[str]) -> Any:
    """A resolver that knows these names."""

    def resolve(host: str, port: int) -> list[Any]:
        if host not in known:
            raise socket.gaierror("no such name")
        return [(None, None, None, "", (number, port)) for number in known[host]]

    return resolve


@pytest.mark.parametrize(
    ("address", "bound"),
    [
        ("tcp://127.0.0.1:0", ("127.0.0.1", 0)),
        ("tcp://127.9.8.7:9000", ("127.9.8.7", 9000)),
        ("tcp://localhost:5", ("127.0.0.1", 5)),
        ("tcp://[::1]:5", ("::1", 5)),
        ("tcp://[::ffff:127.0.0.1]:5", ("::ffff:127.0.0.1", 5)),
        ("ws://localhost:5", ("127.0.0.1", 5)),
        ("wss://127.0.0.1:5", ("127.0.0.1", 5)),
    ],
)
def test_loopback_needs_nothing(address: str, bound: tuple[str, int]) -> None:
    number, port = check_bind(address, secret=False)
    assert (number.replace("7f00:1", "127.0.0.1"), port) == bound


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "*", "[::]", "192.168.1.4", "10.0.0.1", "[fe80::1]", "8.8.8.8", "[::ffff:8.8.8.8]"],
)
@pytest.mark.parametrize("scheme", ["tcp", "wss"])
def test_anything_else_names_the_secret_to_make(scheme: str, host: str) -> None:
    address = f"{scheme}://{host}:9000"
    with pytest.raises(SetupError, match=r"only loopback is safe.*tapml rpc keygen.*ssh -L"):
        check_bind(address, secret=False)
    number, port = check_bind(address, secret=True)
    assert port == 9000 and not is_loopback(number)


@pytest.mark.parametrize("secret", [False, True])
def test_a_token_never_travels_readably(secret: bool) -> None:
    with pytest.raises(SetupError, match="Use wss://"):
        check_bind("ws://0.0.0.0:9000", secret=secret)


def test_a_name_is_as_safe_as_the_address_it_stands_for() -> None:
    resolve = resolver(here=["127.0.1.1"], board=["192.168.1.7"], six=["2001:db8::1", "10.0.0.2"])
    assert check_bind("tcp://here:1", secret=False, resolve=resolve) == ("127.0.1.1", 1)
    with pytest.raises(SetupError, match="refusing to listen on board"):
        check_bind("tcp://board:1", secret=False, resolve=resolve)
    assert check_bind("tcp://board:1", secret=True, resolve=resolve) == ("192.168.1.7", 1)
    assert check_bind("tcp://six:1", secret=True, resolve=resolve) == ("10.0.0.2", 1)


def test_an_unknown_name_is_no_loopback() -> None:
    with pytest.raises(SetupError, match="refusing to listen on nowhere"):
        check_bind("tcp://nowhere:1", secret=False, resolve=resolver())
    with pytest.raises(InputError, match="no address is known for 'nowhere'"):
        check_bind("tcp://nowhere:1", secret=True, resolve=resolver())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:0",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://:9000",
        "tcp://[::1",
        "tcp://::1:5",
        "tcp://user@127.0.0.1:5",
        "tcp://127.0.0.1:5/path",
        "tcp://127.0.0.1:5?x",
        "tcp://127.0.0.1:5 ",
        "ipc:///x",
        "http://127.0.0.1:5",
        "",
    ],
)
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(InputError, match="expected an address to listen on"):
        check_bind(address, secret=True)


def test_a_server_takes_only_the_schemes_it_speaks() -> None:
    with pytest.raises(InputError, match=r"such as tcp://127\.0\.0\.1:0"):
        check_bind("ws://127.0.0.1:0", secret=False, schemes=("tcp",))


@given(st.ip_addresses(), st.integers(0, 65535))
def test_without_a_secret_every_address_that_is_taken_is_loopback(ip: Any, port: int) -> None:
    try:
        number, _ = check_bind(f"tcp://{bracketed(str(ip))}:{port}", secret=False)
    except SetupError:
        assert not is_loopback(str(ip))
    else:
        assert is_loopback(number)


@given(st.text(max_size=60))
def test_any_text_gives_an_address_or_one_of_our_errors(text: str) -> None:
    for secret in (False, True):
        try:
            check_bind(text, secret=secret, resolve=resolver())
            check_bind(f"tcp://{text}:1", secret=secret, resolve=resolver())
        except (InputError, SetupError):
            pass
