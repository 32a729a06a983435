"""Key files: made once, for one user, and refused when they are no longer what was made."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from tapml.cli.secrets import make_pair, write_pair
from tapml_rpc.security.keys import (
    KeyPair,
    PublicKey,
    _parse,
    encode_key,
    is_key,
    read_pair,
    read_public,
)
from tapml_rpc.security.private_files import config_folder
from tapml_targets.errors import InputError, SetupError


def mode_of(path: Path) -> int:
    """Permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def written(tmp_path: Path) -> tuple[KeyPair, Path]:
    pair = make_pair("laptop")
    return pair, write_pair(pair, tmp_path / "keys")


def test_a_pair_comes_back_as_it_was_written(written: tuple[KeyPair, Path]) -> None:
    pair, secret = written
    public = secret.with_suffix(".public")
    assert read_pair(secret) == pair
    assert read_public(public) == read_public(str(public)) == PublicKey("laptop", pair.public)
    assert read_public(pair.public).public == pair.public
    assert pair.secret not in public.read_text()
    assert pair.secret not in repr(pair)


def test_the_secret_is_for_its_owner_alone_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        secret = write_pair(make_pair("device"), tmp_path / "deep" / "keys")
    finally:
        os.umask(before)
    assert mode_of(secret) == 0o600
    assert mode_of(secret.parent) == 0o700
    assert mode_of(secret.with_suffix(".public")) == 0o644
    assert sorted(path.name for path in secret.parent.iterdir()) == [
        "device.public",
        "device.secret",
    ]


def test_keys_are_kept_unless_forced(written: tuple[KeyPair, Path]) -> None:
    pair, secret = written
    with pytest.raises(InputError, match=r"laptop\.secret exists.*--force"):
        write_pair(make_pair("laptop"), secret.parent)
    assert read_pair(secret) == pair
    other = make_pair("laptop")
    write_pair(other, secret.parent, force=True)
    assert read_pair(secret) == other
    assert read_public(secret.with_suffix(".public")).public == other.public


def test_a_public_file_alone_is_kept_too(written: tuple[KeyPair, Path]) -> None:
    _, secret = written
    secret.unlink()
    with pytest.raises(InputError, match=r"laptop\.public exists"):
        write_pair(make_pair("laptop"), secret.parent)
    assert not secret.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o666, 0o777, 0o620])
def test_a_secret_that_others_can_reach_is_not_used(
    written: tuple[KeyPair, Path], mode: int
) -> None:
    _, secret = written
    secret.chmod(mode)
    with pytest.raises(SetupError, match=f"others may .*{mode:04o}.*chmod"):
        read_pair(secret)
    secret.chmod(0o400)
    read_pair(secret)


def test_keys_are_not_put_where_others_can_replace_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SetupError, match=r"replace the keys.*chmod go-w"):
        write_pair(make_pair("laptop"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_each_kind_of_file_is_told_from_the_other(written: tuple[KeyPair, Path]) -> None:
    _, secret = written
    with pytest.raises(InputError, match=r"holds a public key.*laptop\.secret"):
        read_pair(secret.with_suffix(".public"))
    with pytest.raises(InputError, match=r"holds a secret key.*laptop\.public"):
        read_public(secret)


def test_what_is_no_key_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a public key of 40 characters or the path"):
        read_public("no-such-file")
    with pytest.raises(InputError, match="No such file"):
        read_pair(tmp_path / "absent.secret")
    with pytest.raises(InputError, match=r"is not a file|Is a directory"):
        read_pair(tmp_path)
    for content in (b"", b"hello: world\n", b"\xff\xfe\x00", b"x" * 10_000):
        path = tmp_path / "file"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InputError):
            read_pair(path)


def test_a_pair_that_does_not_belong_together_is_damaged(written: tuple[KeyPair, Path]) -> None:
    pair, secret = written
    secret.write_text(secret.read_text().replace(pair.public, make_pair("x").public))
    with pytest.raises(InputError, match="two keys do not belong together"):
        read_pair(secret)


@pytest.mark.parametrize(
    "name", ["", "../up", "a b", "-x", ".hidden", "a/b", "x" * 65, "né", "a\n"]
)
def test_a_name_cannot_lead_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a name has"):
        write_pair(make_pair(name), tmp_path)


def test_the_folder_is_the_users_own(tmp_path: Path) -> None:
    assert config_folder("keys", environ={}) == Path.home() / ".config" / "tapml" / "keys"
    assert config_folder(environ={"XDG_CONFIG_HOME": "/x"}) == Path("/x/tapml")
    assert config_folder(environ={"TAPML_CONFIG_DIR": "/y"}) == Path("/y")


@given(st.binary(min_size=32, max_size=32))
def test_key_text_is_zeromqs_own(key: bytes) -> None:
    from zmq.utils import z85

    assert encode_key(key).encode() == z85.encode(key)
    assert is_key(encode_key(key))


@given(st.text(max_size=50) | st.text("#%$0aZ", min_size=40, max_size=40))
def test_what_is_taken_for_a_key_decodes(text: str) -> None:
    try:
        decoded = len(text) == 40 and bool(zmq.curve_public(text.encode()))
    except (zmq.ZMQError, ValueError):
        # The latter where it is not 40 bytes.
        decoded = False
    assert is_key(text) == decoded


RENDERED = [
    "kind: tapml public key\nname: a\npublic: rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n",
    "kind: tapml secret key\nname: a\npublic: Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID\n"
    "secret: D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\n",
]


@given(
    st.sampled_from(RENDERED),
    st.integers(0, 200),
    st.integers(0, 8),
    st.text("abk:\n #secret\x00é", max_size=8),
)
def test_a_damaged_file_is_refused_or_says_the_same_kind_of_thing(
    text: str, start: int, removed: int, added: str
) -> None:
    damaged = text[:start] + added + text[start + removed :]
    try:
        keys = _parse(damaged, "file")
    except InputError as error:
        # What a secret file holds must not get into a log by way of an error.
        assert "D:)Q[" not in str(error)
    else:
        assert is_key(keys["public"])


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        _parse(text, "file")
