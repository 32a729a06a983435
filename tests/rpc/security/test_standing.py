"""Whether those who were let in may stay, and how often they may come; by hand, without clocks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tapml.cli.secrets import add_token, admit, make_pair
from tapml_rpc.security.allow_list import AllowList
from tapml_rpc.security.standing import LOOPBACK_IDENTITY, FailureLimit, Judge, Standing, listed_key
from tapml_rpc.security.token import TokenBook
from tapml_targets.errors import SetupError

ADA, BOB = make_pair("ada").public, make_pair("bob").public


class Sessions:
    """Open sessions, one an identity, and why some were ended."""

    def __init__(self, *identities: str) -> None:
        self.ended: dict[str, str] = {}
        self._identities = identities

    def standing(self, judge: Judge) -> Standing:
        """Looks only when a test has it look."""
        made = Standing(
            lambda: [(each, partial(self.ended.__setitem__, each)) for each in self._identities],
            seconds=3600,
        )
        made.add(judge)
        return made


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    path = tmp_path / "clients"
    for name, key in (("ada", ADA), ("bob", BOB)):
        admit(path, name, key)
    return path


def take_out(path: Path, what: str) -> None:
    kept = [line for line in path.read_text().split("\n") if what not in line]
    path.write_text("\n".join(kept))


def test_whoever_is_taken_out_is_ended_after_two_looks_and_nobody_else(clients: Path) -> None:
    sessions = Sessions(ADA, BOB, LOOPBACK_IDENTITY, "token:01234567")
    standing = sessions.standing(listed_key(AllowList(clients)))
    standing.look()
    take_out(clients, ADA)
    standing.look()
    assert sessions.ended == {}
    standing.look()
    assert sessions.ended == {ADA: "its key was taken out of the device's list of clients"}
    with pytest.raises(SetupError, match=r"not admitted any more: its key was taken out"):
        standing.greet(ADA)
    standing.greet(BOB)
    standing.close()


def test_a_list_that_is_being_replaced_ends_nothing(clients: Path) -> None:
    sessions = Sessions(ADA)
    standing = sessions.standing(listed_key(AllowList(clients)))
    text = clients.read_text()
    clients.unlink()
    standing.look()
    clients.write_text(text)
    clients.chmod(0o600)
    standing.look()
    standing.look()
    assert sessions.ended == {}
    standing.close()


def test_a_damaged_list_lets_nobody_in_and_ends_no_session(
    clients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = Sessions(ADA)
    standing = sessions.standing(listed_key(AllowList(clients)))
    clients.write_text("nonsense")
    for _ in range(3):
        standing.look()
    assert sessions.ended == {}
    with pytest.raises(SetupError, match="the device's list cannot be read"):
        standing.greet(ADA)
    log = capsys.readouterr().err
    assert log.count("open sessions stay") == 1 and "line 1" in log
    standing.close()


def test_a_token_that_is_taken_out_ends_its_sessions(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    stays, once = add_token(path, "page"), add_token(path, "guest", once=True)
    book = TokenBook(path)
    own = book.issue("announced")
    identities = [book.check(token, "10.0.0.1") for token in (stays, once, own)]
    assert [book.revoked(each) for each in identities] == ["", "", ""]
    take_out(path, "page")
    whys = [book.revoked(each) for each in identities]
    assert whys == ["its token was taken out of the device's list", "", ""]


def test_hellos_of_one_identity_are_counted_and_nobody_pays_for_another() -> None:
    now = [0.0]
    limit = FailureLimit(3, 60, clock=lambda: now[0])
    standing = Standing(list, limit=limit)
    for _ in range(3):
        standing.greet(ADA)
    with pytest.raises(SetupError, match=r"too many hellos within a minute.* in 60 s"):
        standing.greet(ADA)
    standing.greet(BOB)
    for _ in range(10):
        standing.greet(LOOPBACK_IDENTITY)
    now[0] = 60
    standing.greet(ADA)
