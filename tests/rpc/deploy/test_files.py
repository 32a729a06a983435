"""What is deployed says what the command takes, runs as nobody special and holds no secret."""

from __future__ import annotations

import argparse
import configparser
import re
import shlex
from pathlib import Path

import pytest

from tapml.cli.rpc import add_parser

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "rpc_server" / "deploy"
SYSTEM, USER = DEPLOY / "tapml-rpc.service", DEPLOY / "user" / "tapml-rpc.service"
DOCKERFILE = DEPLOY / "Dockerfile"
UNITS = pytest.mark.parametrize("path", [SYSTEM, USER], ids=["system", "user"])


class Unit(dict[str, dict[str, list[str]]]):
    """A unit file: sections, and per key every value it is given."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        section: dict[str, list[str]] = {}
        for line in path.read_text("utf-8").splitlines():
            if not line.strip() or line.startswith(("#", ";")):
                continue
            if line.startswith("["):
                section = self.setdefault(line.strip("[]"), {})
                continue
            key, equals, value = line.partition("=")
            assert equals, f"{path.name}: {line!r} is no assignment"
            section.setdefault(key, []).append(value)

    def one(self, key: str) -> str:
        [value] = self["Service"][key]
        return value

    @property
    def environment(self) -> dict[str, str]:
        return dict(each.partition("=")[::2] for each in self["Service"]["Environment"])


def options_of(words: list[str]) -> argparse.Namespace:
    """The options of ``tapml rpc serve`` in words of a command line; fails where one is none."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["rpc", "serve", *words])


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with what follows them; continued lines joined."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text("utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last(name: str) -> str:
    return [rest for word, rest in instructions() if word == name][-1]


def exec_form(text: str) -> list[str]:
    """Words of an instruction in exec form, which no shell takes apart."""
    assert text.startswith("[") and text.endswith("]"), text
    return [word.strip().strip('"') for word in text[1:-1].split(",")]


@UNITS
def test_the_command_of_a_unit_is_one_that_the_server_takes(path: Path) -> None:
    unit = Unit(path)
    known = unit.environment
    words: list[str] = []
    for word in shlex.split(unit.one("ExecStart")):
        # As systemd does it: a braced variable is one argument, a bare one any number of them.
        if word.startswith("$") and not word.startswith("${"):
            words += known[word[1:]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], word))
    assert words[0].startswith("/") or words[0].startswith("%h/")
    assert Path(words[0]).name == "tapml" and words[1:3] == ["rpc", "serve"]
    options = options_of(words[3:])
    assert options.bind == "tcp://127.0.0.1:9190"
    assert options.data_port == 9191


def test_the_example_of_the_environment_holds_options_that_exist_and_no_secret() -> None:
    text = (DEPLOY / "rpc.env.example").read_text("utf-8")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string("[all]\n" + re.sub(r"^#(?=[A-Z_]+=)", "", text, flags=re.MULTILINE))
    settings = dict(parser["all"])
    assert {name for name in settings if name.startswith("TAPML_")} <= set(Unit(SYSTEM).environment)
    options = options_of(settings["TAPML_OPTIONS"].split())
    assert options.session_bytes == 1 << 30
    assert Path(options.key).is_absolute()


@UNITS
def test_a_unit_comes_back_and_is_bounded(path: Path) -> None:
    unit = Unit(path)
    assert unit.one("Restart") == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == ["0"]
    for key in ("MemoryMax", "TasksMax", "LimitNOFILE", "NoNewPrivileges"):
        assert unit.one(key)
    # A worker that takes too much must not take the supervisor along.
    assert unit.one("OOMPolicy") == "continue"


def test_the_system_unit_runs_as_an_account_without_rights() -> None:
    unit = Unit(SYSTEM)
    assert unit.one("User") == "tapml"
    accounts = (DEPLOY / "tapml-rpc.sysusers").read_text("utf-8")
    assert re.search(r"^u tapml ", accounts, re.MULTILINE)
    assert unit.one("CapabilityBoundingSet") == unit.one("AmbientCapabilities") == ""
    assert unit.one("ProtectSystem") == "strict"


@UNITS
def test_what_opencl_drivers_do_not_live_with_is_left_out(path: Path) -> None:
    service = Unit(path)["Service"]
    barred = {"MemoryDenyWriteExecute", "PrivateDevices", "DevicePolicy", "ProtectClock"}
    assert not barred & set(service)
    assert "PrivateUsers" not in service and "ProcSubset" not in service


def test_the_image_runs_the_server_as_a_user_by_number() -> None:
    user = last("USER")
    assert user.isdigit() and int(user) > 0
    assert f"--uid {user} " in " ".join(rest for word, rest in instructions() if word == "RUN")
    port, data_port = last("EXPOSE").split()
    command = [*exec_form(last("ENTRYPOINT")), *exec_form(last("CMD"))]
    assert command[:3] == ["tapml", "rpc", "serve"]
    options = options_of(command[3:])
    assert options.bind.endswith(f":{port}") and options.data_port == int(data_port)
    assert f"'127.0.0.1', {port})" in last("HEALTHCHECK")


def test_what_the_image_copies_exists_and_is_let_into_the_build() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    admitted = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(each.split("/")[0] == source for each in admitted), source
    assert all((ROOT / each).exists() for each in admitted)


def test_no_file_holds_a_secret_or_asks_for_root() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_dir():
            continue
        text = path.read_text("utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        for line in lines:
            assert not re.search(r"(?i)(secret|password|token|private.?key)\s*[=:]", line), line
            # A CURVE key is forty characters of z85, a digest or a token as long.
            assert all("/" in word or len(word) < 40 for word in line.split()), line
            assert not re.fullmatch(r"(?i)user[ =](root|0)", line.strip()), line
