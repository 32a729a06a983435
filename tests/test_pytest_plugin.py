"""The pytest plug-in where nobody uses it: every pytest of the environment loads it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"numpy", "tvm", "torch", "zmq", "msgpack", "rich", "pyopencl", "sqlite3"}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Pytest with the plug-in, in a process of its own."""
    code = (
        "import sys, pytest, tapml.pytest_plugin as plugin\n"
        "code = pytest.main(sys.argv[1:], plugins=[plugin])\n"
        "print('loaded', *sorted({name.split('.')[0] for name in sys.modules}))\n"
        "sys.exit(code)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), "-p", "no:cacheprovider", *arguments],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )


def test_the_project_announces_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"tapml": "tapml.pytest_plugin"}


def test_tests_of_others_run_as_ever_and_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("def test_it(): pass\n")
    ended = run(tmp_path, "-W", "error")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    loaded = ended.stdout.rpartition("loaded ")[2].split()
    assert "tapml" in loaded
    assert set(loaded) & HEAVY == set()


@pytest.mark.parametrize("option", ["--tapml-device", "--tapml-policy", "--tapml-repro"])
def test_its_options_are_explained(tmp_path: Path, option: str) -> None:
    ended = run(tmp_path, "--help")
    assert ended.returncode == 0
    assert option in ended.stdout


def test_a_file_that_no_export_wrote_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from tapml.pytest_plugin import carved_cases\ncarved_cases(__file__)\n"
    )
    ended = run(tmp_path)
    assert ended.returncode == 2
    assert "cases.json" in ended.stdout
    assert "export again with `tapml carve --from-suite SUITE --export pytest" in ended.stdout


def test_a_mistake_in_a_device_ends_pytest_before_any_test(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("def test_it(): pass\n")
    ended = run(tmp_path, "--tapml-device", "opencll")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--tapml-device: unknown target 'opencll'" in ended.stderr
    assert "passed" not in ended.stdout


def test_a_mistake_in_a_policy_ends_pytest_before_any_test(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("def test_it(): pass\n")
    (tmp_path / "policy.toml").write_text("[limit.float32.product]\npassing = 1.0\n")
    ended = run(tmp_path, "--tapml-policy", str(tmp_path / "policy.toml"))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--tapml-policy: " in ended.stderr
    assert "policy.toml, line 1" in ended.stderr
    assert "passed" not in ended.stdout
