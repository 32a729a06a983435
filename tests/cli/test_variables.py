"""A misspelt variable of tapml's is said; a user's own is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.cli.variables import PREFIX, VARIABLES, misspelt

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tapml", "rpc_server/tapml_rpc", "targets/tapml_targets")


def test_every_variable_that_is_read_is_known() -> None:
    named = re.compile(rf'"{PREFIX}([A-Z_]+[A-Z])"')
    files = [each for package in PACKAGES for each in (ROOT / package).rglob("*.py")]
    read = {name for each in files for name in named.findall(each.read_text("utf-8"))}
    assert read == VARIABLES


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TAPML_CASHE_DIR", "TAPML_CACHE_DIR"),
        ("TAPML_TRACKER_TOKENS", "TAPML_TRACKER_TOKEN"),
        ("TAPML_RPCTOKEN", "TAPML_RPC_TOKEN"),
        ("TAPML_CACHE_DIR", ""),
        ("TAPML_BIND", ""),
        ("TAPML_MY_OWN", ""),
        ("CACHE_DIR", ""),
    ],
)
def test_the_nearest_is_named(name: str, near: str) -> None:
    expected = [f"tapml reads no variable {name}: did you mean {near}?"] if near else []
    assert list(misspelt([name])) == expected


def test_a_command_says_it_beside_its_result() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tapml.cli.main", "devices", "--platform", "cpu", "--json"],
        env={"PATH": "", "TAPML_PROBE_SECOND": "9"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = "tapml reads no variable TAPML_PROBE_SECOND: did you mean TAPML_PROBE_SECONDS?"
    assert ended.stderr.splitlines() == [said]
