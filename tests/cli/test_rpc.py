"""``tapml rpc keygen``: what it prints is what the next command takes."""

from __future__ import annotations

import shlex
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tapml.cli.main import main
from tapml_rpc.security.allow_list import AllowList
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.security.keys import encode_key, read_pair
from tapml_rpc.security.token import TokenBook, parse_tokens


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    monkeypatch.setenv("TAPML_CONFIG_DIR", str(folder))
    return folder


def keygen(*words: str) -> int:
    """Run it as the shell would."""
    return main(["rpc", "keygen", *words])


def command_in(text: str, beginning: Sequence[str]) -> list[str]:
    """The words of the printed command that begins so."""
    for line in text.splitlines():
        if line.startswith("  "):
            words = shlex.split(line)
            if words[: len(beginning)] == list(beginning):
                return words
    raise AssertionError(text)


def test_the_printed_command_admits_the_key_that_was_made(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keygen("--name", "laptop") == 0
    out = capsys.readouterr().out
    pair = read_pair(config / "keys" / "laptop.secret")
    assert stat.S_IMODE((config / "keys").stat().st_mode) == 0o700
    assert pair.public in out and pair.secret not in out
    assert main(command_in(out, ["tapml", "rpc", "keygen"])[1:]) == 0
    found = AllowList(config / "clients").find(pair.public)
    assert found is not None and found.name == "laptop"


def test_the_printed_variables_are_what_a_client_reads(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keygen("--name", "device")
    exported = command_in(capsys.readouterr().out, ["export"])[1:]
    keygen("--name", "laptop")
    environ = dict(word.split("=", 1) for word in exported)
    environ["TAPML_RPC_KEY"] = str(config / "keys" / "laptop.secret")
    credentials = Credentials.from_environment(environ)
    assert credentials is not None
    assert credentials.server_key == read_pair(config / "keys" / "device.secret").public


def test_keys_are_kept_unless_forced(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keygen("--name", "laptop")
    secret = config / "keys" / "laptop.secret"
    first = read_pair(secret)
    assert keygen("--name", "laptop") == 2
    log = capsys.readouterr().err
    assert log.count("\n") == 1 and "--force" in log
    assert read_pair(secret) == first
    assert keygen("--name", "laptop", "--force") == 0
    assert read_pair(secret) != first


def test_a_public_file_brings_its_name(config: Path) -> None:
    keygen("--name", "laptop", "--folder", str(config / "elsewhere"))
    public = config / "elsewhere" / "laptop.public"
    assert keygen("--authorize", str(public), "--list", str(config / "mine")) == 0
    assert [client.name for client in AllowList(config / "mine").clients()] == ["laptop"]


@pytest.mark.parametrize("first", ["-", "%", "!", "*"])
def test_a_key_may_begin_with_anything(first: str, config: Path) -> None:
    key = next(
        key
        for number in range(1 << 16)
        if (key := encode_key(number.to_bytes(2, "big") + bytes(30))).startswith(first)
    )
    assert keygen(f"--authorize={key}", "--name", "ada") == 0
    assert AllowList(config / "clients").find(key) is not None


def test_without_a_name_one_is_made_or_asked_for(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keygen() == 0
    assert len(list((config / "keys").glob("*.secret"))) == 1
    assert keygen("--authorize", encode_key(bytes(32))) == 2
    assert "add --name NAME" in capsys.readouterr().err


def test_a_guests_token_opens_one_session_and_soon_none(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keygen("--token", "--name", "guest", "--once", "--hours", "0.5") == 0
    assert "token 'guest' for one session for 0.5 h, shown this once" in capsys.readouterr().out
    (known,) = parse_tokens((config / "tokens").read_text(), "tokens").values()
    assert known.once and 0 < known.expires - time.time() <= 1800


def test_a_token_is_shown_once_and_taken(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keygen("--token", "--name", "phone") == 0
    word = command_in(capsys.readouterr().out, ["export"])[1]
    token = word.removeprefix("TAPML_RPC_TOKEN=")
    assert TokenBook(config / "tokens").check(token, "127.0.0.1").startswith("token:")
    assert token not in (config / "tokens").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--list", "x"),
        ("--force", "--token"),
        ("--once",),
        ("--hours", "2"),
        ("--authorize", "nonsense"),
        ("--name", "../x"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert keygen(*words) == 2
    out, log = capsys.readouterr()
    assert out == "" and log.count("\n") == 1
