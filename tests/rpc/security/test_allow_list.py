"""The list of admitted clients: strict, and as it is now."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.cli.secrets import admit
from tapml_rpc.security.allow_list import AllowList, Client, parse_allow_list
from tapml_rpc.security.keys import encode_key
from tapml_targets.errors import InputError, SetupError

ADA = encode_key(bytes(range(32)))
BOB = encode_key(bytes(range(1, 33)))
HASH = "#" * 40  # not a number of 32 bits
KEYS = st.binary(min_size=32, max_size=32).map(encode_key)


def test_names_keys_and_comments() -> None:
    text = f"# heading\n\n  ada {ADA}  # her laptop # really \r\nbob\t{BOB}\n"
    clients = parse_allow_list(text, "clients")
    assert clients[ADA] == Client("ada", ADA, "her laptop # really")
    assert clients[BOB] == Client("bob", BOB)
    assert len(clients) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ada", "expected a name, a public key"),
        (ADA, "expected a name, a public key"),
        (f"ada {ADA} bob", "expected a name, a public key"),
        (f"ada {ADA[:-1]}", "40 characters after the name"),
        (f"ada {HASH}", "40 characters after the name"),
        (f"{ADA} ada", "a name has"),
        (f"../x {ADA}", "a name has"),
        (f"bob {ADA}", "the key of 'first' again"),
        (f"first {BOB}", "the name 'first' again, it is in line 2"),
        ("ada \x1b[2J", r"got '\?\[2J'"),
    ],
)
def test_an_error_names_the_line(line: str, said: str) -> None:
    with pytest.raises(InputError, match=f"clients, line 4: .*{said}"):
        parse_allow_list(f"# list\nfirst {ADA}\n\n{line}\n", "clients")


def test_a_change_holds_at_once(tmp_path: Path) -> None:
    path = tmp_path / "clients"
    clients = AllowList(path)
    assert clients.find(ADA) is None and clients.clients() == ()
    admit(path, "ada", ADA, "laptop")
    assert clients.find(ADA) == Client("ada", ADA, "laptop")
    admit(path, "bob", BOB)
    assert {client.name for client in clients.clients()} == {"ada", "bob"}
    path.write_text(f"bob {BOB}\n")
    assert clients.find(ADA) is None and clients.find(BOB) is not None
    path.unlink()
    assert clients.find(BOB) is None


def test_a_list_that_cannot_be_read_admits_nobody(tmp_path: Path) -> None:
    path = tmp_path / "clients"
    admit(path, "ada", ADA)
    clients = AllowList(path)
    assert clients.find(ADA)
    path.write_text(f"ada {ADA}\nbob {BOB} oops\n")
    with pytest.raises(InputError, match="clients, line 2"):
        clients.find(ADA)
    path.write_text(f"ada {ADA}\n")
    assert clients.find(ADA)
    path.chmod(0o666)
    with pytest.raises(SetupError, match=r"others may write to .*0666.*chmod go-w"):
        clients.find(ADA)


def test_admitting_twice_is_said_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "clients"
    admit(path, "ada", ADA)
    before = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InputError, match="admits this key already, as 'ada'"):
        admit(path, "bob", ADA)
    with pytest.raises(InputError, match="has a client 'ada' with another key"):
        admit(path, "ada", BOB)
    with pytest.raises(InputError, match="a public key of 40 characters"):
        admit(path, "eve", "nonsense")
    assert path.read_text() == before


def test_what_people_wrote_into_the_list_stays(tmp_path: Path) -> None:
    path = tmp_path / "clients"
    path.write_text(f"# the team\nada {ADA} # laptop")
    path.chmod(0o644)
    admit(path, "bob", BOB)
    assert path.read_text() == f"# the team\nada {ADA} # laptop\nbob {BOB}\n"


def test_a_comment_cannot_start_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "clients"
    admit(path, "ada", ADA, f"harmless\nbob {BOB}")
    assert AllowList(path).find(BOB) is None


def test_two_who_admit_at_once_both_do(tmp_path: Path) -> None:
    path = tmp_path / "clients"
    keys = [encode_key(bytes([number]) * 32) for number in range(16)]
    threads = [
        threading.Thread(target=admit, args=(path, f"client{number}", key))
        for number, key in enumerate(keys)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {client.public for client in AllowList(path).clients()} == set(keys)


@given(
    st.dictionaries(
        KEYS,
        st.tuples(
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,20}", fullmatch=True),
            st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
        ),
        max_size=5,
    )
)
def test_every_list_that_is_written_is_read(entries: dict[str, tuple[str, str]]) -> None:
    named = {name: (key, comment) for key, (name, comment) in entries.items()}
    text = "".join(f"{name} {key} # {comment}\n" for name, (key, comment) in named.items())
    clients = parse_allow_list(text, "clients")
    assert {(c.name, c.public, c.comment) for c in clients.values()} == {
        (name, key, comment.strip()) for name, (key, comment) in named.items()
    }


@given(st.text(max_size=200))
def test_any_text_is_a_list_or_an_error_with_a_line(text: str) -> None:
    try:
        parse_allow_list(text, "clients")
    except InputError as error:
        assert str(error).startswith("clients, line ")
