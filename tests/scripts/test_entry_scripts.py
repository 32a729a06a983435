from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.environment import ROOT

SCRIPTS = ("demo.py", "test.py")


def run_script(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run an entry script with this Python, a PATH, a HOME and nothing else."""
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *arguments],
        check=False,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "TAPML_VENV": str(cwd / "venv")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_works_from_any_folder_and_makes_nothing(name: str, tmp_path: Path) -> None:
    result = run_script(name, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "examples:" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_setup_that_cannot_be_made_is_one_line_and_status_2(name: str, tmp_path: Path) -> None:
    (tmp_path / "venv").write_text("a file where the environment should be")
    result = run_script(name, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(f"scripts/{name}: ")
    assert "Traceback" not in result.stderr


TESTS = """
import time
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("torn down")
"""


def test_what_ends_the_script_ends_the_tests_as_ctrl_c_does() -> None:
    code = (
        "import signal, scripts.test as script;"
        "signal.signal(signal.SIGTERM, script._terminate);"
        f"script.run_tests(['-c', {TESTS!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        said, _ = process.communicate(timeout=30)
    assert said == "torn down\n"


CHECKS = {
    "right": ["-c", "print('not shown')"],
    "wrong": ["-c", "raise SystemExit('this is wrong')"],
    "endless": ["-c", "import time; time.sleep(600)"],
}


def test_checks_run_beside_the_tests_and_end_with_them() -> None:
    code = (
        "import scripts.test as script;"
        f"checks = script.Checks({CHECKS!r}).__enter__();"
        "checks.finish(['right', 'wrong', 'left out']); print(checks.failed);"
        "process, _ = checks._running['endless'];"
        "checks.__exit__(); print(process.returncode)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    lines = [line.partition(",")[0] for line in ran.stdout.splitlines()]
    assert lines == ["right: passed", "this is wrong", "wrong: FAILED", "['wrong']", "-15"]


def test_continuous_integration_does_what_a_newcomer_does() -> None:
    commands = [
        line
        for line in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert commands[-1] == 'exec python3 scripts/test.py "$@"'
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
