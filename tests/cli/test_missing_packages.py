"""A board without numpy and pyzmq has the command line, and is told what the rest of it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "keygen": ["rpc", "keygen", "--token", "--list", "LIST"],
    "address": ["devices", "tcp://127.0.0.1:9", "--platform", "cpu"],
    "tracker": ["rpc", "tracker", "--bind", "tcp://127.0.0.1:0"],
    "run": ["run", "nowhere", "--tokens", "1"],
    "doctor": ["doctor", "cpu", "--json"],
}
BARE = """
import contextlib, io, json, sys
from tests.rpc.deploy.bare_device import Absent
sys.meta_path.insert(0, Absent())
from tapml.cli.main import main
said = {}
for name, words in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said[name] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Exit code, output and errors of each command."""
    tokens = str(tmp_path_factory.mktemp("tokens") / "tokens")
    words = {
        name: [tokens if word == "LIST" else word for word in each]
        for name, each in COMMANDS.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", BARE, json.dumps(words)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tokens_are_made_without_them(said: Any) -> None:
    code, out, _ = said["keygen"]
    assert code == 0
    assert "export TAPML_RPC_TOKEN=" in out


def test_a_tracker_and_an_address_of_zeromq_name_the_package_and_the_way_without(said: Any) -> None:
    code, out, _ = said["address"]
    assert code == 3
    assert 'pip install "pyzmq' in out
    assert "ws:// or wss:// address" in out
    code, _, err = said["tracker"]
    assert code == 2
    assert "needs the Python package 'pyzmq'" in err


def test_what_computes_names_numpy(said: Any) -> None:
    code, _, err = said["run"]
    assert code == 2
    assert "needs the Python package 'numpy', which is not installed: pip install \"numpy" in err


def test_the_doctor_looks_at_what_there_is(said: Any) -> None:
    _, out, _ = said["doctor"]
    checks = {each["name"]: each for each in json.loads(out)["checks"]}
    assert checks["loopback"]["status"] == "ok"
    assert checks["loopback"]["found"].startswith("TCP at 127.0.0.1:")
