"""Tokens: random, kept as hashes, used as often as they may be."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.cli.secrets import add_token
from tapml_rpc.security.private_files import folder_lock
from tapml_rpc.security.standing import FailureLimit
from tapml_rpc.security.token import (
    TokenBook,
    TokenRefusedError,
    digest_of,
    identity_of,
    make_token,
    parse_tokens,
)
from tapml_targets.errors import InputError, SetupError

HERE = "127.0.0.1"


class Clock:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_32_random_bytes_that_need_no_quoting() -> None:
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(
        len(token) == 43 and token.replace("-", "a").replace("_", "a").isalnum() for token in tokens
    )


def test_identity_is_the_beginning_of_the_hash() -> None:
    book = TokenBook()
    token = book.issue("ada")
    assert book.check(token, HERE) == identity_of(digest_of(token))
    assert book.check(token, HERE).startswith("token:") and len(book.check(token, HERE)) == 14


@pytest.mark.parametrize("wrong", ["", "x", "é\ud800", "a" * 100_000])
def test_anything_else_is_refused_with_what_to_do(wrong: str) -> None:
    book = TokenBook()
    token = book.issue("ada")
    for other in (wrong, token[:-1], token + "x", token.swapcase(), make_token()):
        with pytest.raises(TokenRefusedError, match=r"does not take that token.*keygen --token"):
            book.check(other, HERE)


def test_a_token_for_one_session_opens_one() -> None:
    book = TokenBook()
    token = book.issue("phone", once=True)
    identity = book.check(token, HERE)
    assert book.check(token, HERE, opens=False) == identity, "its data connection"
    with pytest.raises(TokenRefusedError):
        book.check(token, HERE)
    with pytest.raises(TokenRefusedError):
        TokenBook().check(token, HERE, opens=False)


def test_a_token_ends_at_its_time() -> None:
    clock = Clock()
    book = TokenBook(clock=clock)
    token = book.issue("ada", seconds=60)
    clock.now += 59
    book.check(token, HERE)
    clock.now += 1
    with pytest.raises(TokenRefusedError, match="too old"):
        book.check(token, HERE)


def test_a_list_holds_hashes_and_outlives_the_server(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tokens"
    token = add_token(path, "ada")
    assert token not in path.read_text() and digest_of(token) in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    book = TokenBook(path)
    assert book.check(token, HERE) == identity_of(digest_of(token))
    later = add_token(path, "bob")
    assert book.check(later, HERE) != book.check(token, HERE)
    path.write_text("")
    with pytest.raises(TokenRefusedError):
        book.check(token, HERE)
    assert token not in repr(book)


def test_a_used_up_token_is_used_up_for_the_next_server_too(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token, kept = add_token(path, "once", once=True), add_token(path, "kept")
    TokenBook(path).check(token, HERE)
    book = TokenBook(path)
    with pytest.raises(TokenRefusedError):
        book.check(token, HERE)
    book.check(kept, HERE)


def test_a_list_with_an_end_ends(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = add_token(path, "short", seconds=1)
    clock = Clock()
    clock.now = 4e9
    with pytest.raises(TokenRefusedError):
        TokenBook(path, clock=clock).check(token, HERE)


def test_a_list_that_others_may_read_or_that_is_damaged_admits_nobody(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = add_token(path, "ada")
    with pytest.raises(InputError, match="has a token 'ada' already"):
        add_token(path, "ada")
    path.chmod(0o644)
    with pytest.raises(SetupError, match=r"others may read.*chmod 600"):
        TokenBook(path).check(token, HERE)
    path.chmod(0o600)
    path.write_text(path.read_text() + token + "\n")
    with pytest.raises(InputError, match=r"tokens, line 3") as raised:
        TokenBook(path).check(token, HERE)
    assert token not in str(raised.value)


def test_failures_are_counted_by_address_and_a_right_token_is_never_held_up() -> None:
    clock = Clock()
    book = TokenBook(limit=FailureLimit(3, 60, clock=clock), clock=clock)
    token = book.issue("ada")

    def fail(address: str) -> float:
        with pytest.raises(TokenRefusedError) as raised:
            book.check("wrong", address)
        return raised.value.retry_after

    assert [fail("10.0.0.1") for _ in range(4)] == [0, 0, 0, 60]
    clock.now += 20
    assert fail("10.0.0.1") == 40
    assert fail("10.0.0.2") == 0
    book.check(token, "10.0.0.1")
    clock.now += 40
    assert fail("10.0.0.1") == 0


def test_an_ipv6_client_has_one_count_for_its_network() -> None:
    limit = FailureLimit(1, 60)
    assert limit.note("2001:db8::1") == 0
    assert limit.note("2001:db8::ffff:2") > 0
    assert limit.note("2001:db8:0:1::1") == 0
    assert limit.note("::ffff:10.0.0.1") == 0
    assert limit.note("10.0.0.1") > 0


def test_counting_takes_bounded_memory() -> None:
    limit = FailureLimit(2, 60)
    for number in range(10_000):
        limit.note(f"10.0.{number // 256}.{number % 256}")
    assert len(limit._times) <= 4096


@given(st.text(max_size=200))
def test_any_text_is_a_list_or_an_error_with_a_line(text: str) -> None:
    try:
        parse_tokens(text, "tokens")
    except InputError as error:
        assert "tokens, line " in str(error) or "a name has" in str(error)


@given(st.text(max_size=100), st.text(max_size=40))
def test_no_text_opens_a_door(token: str, address: str) -> None:
    book = TokenBook()
    book.issue("ada")
    with suppress(TokenRefusedError):
        book.check(token, address)
        raise AssertionError("a token nobody made was taken")


def test_a_list_that_somebody_holds_keeps_nobody_waiting_but_whoever_spends_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    once, kept = add_token(path, "once", once=True), add_token(path, "kept")
    book = TokenBook(path)
    waits, asked = threading.Event(), threading.Event()

    @contextmanager
    def noted(folder: Path) -> Iterator[None]:
        waits.set()
        with folder_lock(folder):
            yield

    def ask() -> None:
        assert book.revoked(book.check(kept, HERE)) == ""
        with pytest.raises(TokenRefusedError):
            book.check(once, HERE)
        asked.set()

    monkeypatch.setattr("tapml_rpc.security.token.folder_lock", noted)
    spender = threading.Thread(target=book.check, args=(once, HERE))
    other = threading.Thread(target=ask)
    with folder_lock(tmp_path):
        spender.start()
        assert waits.wait(60)
        other.start()
        free = asked.wait(60)
    spender.join(60)
    other.join(60)
    assert free
    assert list(parse_tokens(path.read_text(), "tokens")) == [digest_of(kept)]
