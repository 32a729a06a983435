"""``tapml doctor rpc``: what devices elsewhere take is looked at, and each fault is a sentence."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tapml.cli.doctor import Check, check_rpc
from tapml.cli.secrets import admit, make_pair, write_pair
from tapml_rpc.security.allow_list import default_path


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's keys, and no tracker."""
    monkeypatch.setenv("TAPML_CONFIG_DIR", str(tmp_path / "config"))
    for name in ("RPC_KEY", "RPC_SERVER_KEY", "RPC_TOKEN", "TRACKER_KEY", "TRACKER"):
        monkeypatch.delenv(f"TAPML_{name}", raising=False)


def found() -> dict[str, Check]:
    return {check.name: check for check in check_rpc()}


def test_a_machine_of_its_own_is_sound_and_says_who_is_admitted() -> None:
    checks = found()
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["clients"].found.endswith("admits no client")
    assert "tracker" not in checks
    admit(default_path(), "laptop", make_pair("laptop").public)
    assert found()["clients"].found.endswith("admits laptop")


def test_certificates_are_made_by_openssl_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found()["certificates"]
    assert check.status == "problem"
    assert "install the command openssl" in check.remedy


def test_a_list_that_others_may_write_to_is_a_problem() -> None:
    admit(default_path(), "laptop", make_pair("laptop").public)
    default_path().chmod(0o666)
    assert found()["clients"].status == "problem"


def test_a_key_that_is_not_there_is_named_and_one_that_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_RPC_KEY", str(tmp_path / "nope.secret"))
    monkeypatch.setenv("TAPML_RPC_SERVER_KEY", make_pair("board").public)
    check = found()["credentials"]
    assert check.status == "problem"
    assert "nope.secret" in check.found
    monkeypatch.setenv("TAPML_RPC_KEY", str(write_pair(make_pair("laptop"), tmp_path / "keys")))
    check = found()["credentials"]
    assert check.found == "sound: TAPML_RPC_KEY, TAPML_RPC_SERVER_KEY"


def test_a_tracker_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TAPML_TRACKER", f"tcp://127.0.0.1:{bound.getsockname()[1]}")
        check = found()["tracker"]
    assert check.status == "problem"
    assert "no tracker answers" in check.found
