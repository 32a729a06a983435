"""A server of pages lets its own in, where they must show a token besides."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from tapml_rpc.websocket.admission import LOOPBACK_ORIGINS, Admission, Refusal
from tests.rpc.websocket.one_token import OneToken

PATH = "/tracker"


def ask(admission: Admission, origin: str, host: str, token: str = "right") -> Refusal | str:
    headers = Headers({"Host": host, "Origin": origin})
    headers["Sec-WebSocket-Protocol"] = f"tapml.1, tapml-token.{token}"
    return admission.check(Request(PATH, headers), "10.0.0.9")


@pytest.fixture
def guarded() -> Admission:
    return Admission(OneToken("right"), LOOPBACK_ORIGINS, (PATH,), "https")


def test_its_own_page_comes_in_with_the_token_alone(guarded: Admission) -> None:
    assert isinstance(ask(guarded, "https://farm:9443", "farm:9443"), str)
    refused = ask(guarded, "https://farm:9443", "farm:9443", "wrong")
    assert isinstance(refused, Refusal) and refused.status == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    "origin", ["https://farm:9444", "http://farm:9443", "https://farm:9443.evil.example", "null"]
)
def test_pages_of_other_addresses_stay_out(guarded: Admission, origin: str) -> None:
    refused = ask(guarded, origin, "farm:9443")
    assert isinstance(refused, Refusal) and refused.status == HTTPStatus.FORBIDDEN


def test_two_hosts_are_none(guarded: Admission) -> None:
    headers = Headers({"Host": "farm:9443", "Origin": "https://farm:9443"})
    headers["Host"] = "farm:9443"
    refused = guarded.check(Request(PATH, headers), "10.0.0.9")
    assert isinstance(refused, Refusal) and refused.status == HTTPStatus.FORBIDDEN


def test_a_rebound_name_does_not_open_a_server_without_a_token() -> None:
    unguarded = Admission(None, LOOPBACK_ORIGINS, (PATH,), "http")
    refused = ask(unguarded, "http://evil.example:9191", "evil.example:9191")
    assert isinstance(refused, Refusal) and refused.status == HTTPStatus.FORBIDDEN
    assert ask(unguarded, "http://localhost:9191", "localhost:9191") == "loopback"
