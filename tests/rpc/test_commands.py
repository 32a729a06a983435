"""``tapml devices``, ``tapml doctor`` and ``tapml rpc serve`` on a machine without the toolkit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tapml_targets.errors import EXIT_NO_DEVICE, EXIT_USAGE
from tests.conftest import RequireDevice
from tests.rpc.peers import RawPeer

ROOT = Path(__file__).resolve().parents[2]
# What the base install does not have cannot be imported.
WITHOUT_TOOLKIT = """
import sys
for name in ("tvm", "torch", "transformers", "safetensors", "tokenizers", "ml_dtypes"):
    sys.modules[name] = None
import tapml.cli.main as main
main.COMMANDS = ("devices", "doctor", "rpc")
sys.exit(main.main(sys.argv[1:]))
"""


def tapml(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TOOLKIT, *words],
        capture_output=True,
        text=True,
        # A doctor tries every driver there is, with programs of its own: most of a minute where
        # others work beside it.
        timeout=600,
        check=False,
        env={**os.environ, **environment},
    )


def test_devices_lists_each_with_its_limits_and_one_default(require_device: RequireDevice) -> None:
    require_device("opencl")
    outcome = tapml("devices", "--platform", "opencl", "--json")
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert sum(device["default"] for device in report["devices"]) == 1
    default = report["devices"][0]
    assert default["default"] and default["why"].startswith("the default: ")
    assert default["spec"].startswith("opencl:")
    assert len(default["fingerprint"]) == 64
    assert default["limits"]["max_buffer_bytes"] > 0
    assert default["milliseconds"] > 0


def test_devices_prints_a_table_for_people(require_device: RequireDevice) -> None:
    require_device("opencl")
    outcome = tapml("devices", "--platform", "opencl")
    assert "opencl:0" in outcome.stdout
    assert "the default: " in outcome.stdout


def test_devices_says_why_there_is_none(tmp_path: Path, require_device: RequireDevice) -> None:
    require_device("opencl")
    outcome = tapml("devices", "--platform", "opencl", OCL_ICD_VENDORS=str(tmp_path))
    assert outcome.returncode == EXIT_NO_DEVICE
    assert "tapml doctor opencl" in outcome.stdout


def test_an_unknown_platform_is_refused_with_the_known_ones() -> None:
    outcome = tapml("devices", "--platform", "abacus")
    assert outcome.returncode == EXIT_USAGE
    assert "'cpu', " in outcome.stderr and "'opencl', " in outcome.stderr


def test_doctor_finds_the_base_sound() -> None:
    outcome = tapml("doctor", "base", "--json")
    report = json.loads(outcome.stdout)
    assert outcome.returncode == 0 and report["ok"], report
    base = {
        check["name"]: check["status"] for check in report["checks"] if check["group"] == "base"
    }
    assert {"python", "numpy", "pyzmq", "loopback", "cache folder"} <= base.keys()
    assert set(base.values()) == {"ok"}


def test_doctor_serves_the_device_it_is_asked_about(require_device: RequireDevice) -> None:
    require_device("opencl")
    outcome = tapml("doctor", "opencl", "--json")
    checks = {(c["group"], c["name"]): c for c in json.loads(outcome.stdout)["checks"]}
    assert outcome.returncode == 0
    assert "moved bytes there and back" in checks["opencl", "server"]["found"]


def test_doctor_names_a_broken_part_with_its_remedy(tmp_path: Path) -> None:
    locked = tmp_path / "file"
    locked.write_text("not a folder")
    outcome = tapml("doctor", "base", "--json", TAPML_CACHE_DIR=str(locked))
    assert outcome.returncode == EXIT_USAGE
    broken = [c for c in json.loads(outcome.stdout)["checks"] if c["status"] == "problem"]
    assert [c["name"] for c in broken if c["group"] == "base"] == ["cache folder"]
    assert "TAPML_CACHE_DIR" in broken[0]["remedy"]


def test_doctor_without_a_device_says_so(tmp_path: Path, require_device: RequireDevice) -> None:
    require_device("opencl")
    outcome = tapml("doctor", "opencl", OCL_ICD_VENDORS=str(tmp_path))
    assert outcome.returncode == EXIT_NO_DEVICE
    assert "problems: opencl: device" in outcome.stdout


def test_doctor_refuses_a_part_it_does_not_know() -> None:
    outcome = tapml("doctor", "everything")
    assert outcome.returncode == EXIT_USAGE
    assert "one of base, host" in outcome.stderr


def test_rpc_serve_serves_until_it_is_interrupted(require_device: RequireDevice) -> None:
    require_device("opencl")
    server = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TOOLKIT, "rpc", "serve", "--device", "opencl:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stdout is not None
    line = json.loads(server.stdout.readline())
    with RawPeer(line["address"]) as peer:
        answer, chunk = peer.batch(["allocate", 1, 4], ["fill", 1, 0, 4, b"ab"], ["read", 1, 0, 4])
        assert (answer["type"], chunk) == ("done", b"abab")
    server.send_signal(signal.SIGINT)
    _, log = server.communicate(timeout=60)
    assert (server.returncode, log) == (0, b"")


@pytest.mark.parametrize(
    "words", [("rpc", "serve"), ("devices",), ("doctor",)], ids=lambda words: words[0]
)
def test_help_has_examples(words: tuple[str, ...]) -> None:
    outcome = tapml(*words, "--help")
    assert outcome.returncode == 0
    assert f"examples:\n  tapml {' '.join(words)}" in outcome.stdout
