from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.environment import ROOT
from scripts.web_checks import NOT_RUN

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
    "not there": ["-c", f"print('this is not there'); raise SystemExit({NOT_RUN})"],
}


def test_checks_run_beside_the_tests_and_end_with_all_that_they_have_started(
    tmp_path: Path,
) -> None:
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    started = f"exec 3> {alive}; echo begun >&3; sleep 100"
    checks = {**CHECKS, "endless": ["-c", f"import os; os.system({started!r})"]}
    code = f"""
import scripts.test as script
with script.Checks() as checks:
    checks.start({checks!r})
    checks.finish(["right", "wrong", "not there", "left out"])
    print(checks.failed)
    alive = open({str(alive)!r})
    print(alive.readline())
# Its end comes once nobody can write to it.
print(alive.read() or "ended")
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.stdout.split("\n") == [
        "right: passed", "this is wrong", "wrong: FAILED", "this is not there",
        "not there: not run", "['wrong']", "begun", "", "ended", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "check", "status"),
    [
        (["--version"], "right", 0),
        (["--version"], "not there", 0),
        (["--version"], "wrong", 1),
        (["--checks-only"], "wrong", 1),
        (["--no-checks", "--version"], "wrong", 0),
        # pytest knows no such option.
        (["--verzion"], "wrong", 4),
    ],
)
def test_the_exit_code_is_that_of_the_tests_and_else_of_the_checks(
    arguments: list[str], check: str, status: int
) -> None:
    code = f"""
import sys
import scripts.test as script
script.environment.ensure = script.environment.enter = lambda _: None
script.debian.install_missing = lambda: None
script.QUICK_CHECKS, script.CHECKS = {{}}, {{"it": {CHECKS[check]!r}}}
sys.exit(script.main({arguments!r}))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert ran.returncode == status, ran.stderr
    checked = "--no-checks" not in arguments
    assert ("failed: it" in ran.stdout) == (checked and check == "wrong")
    # What the tests say comes first.
    assert ran.stdout.startswith("pytest ") == ("--version" in arguments)


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [([], ["-n", "4"]), (["-n", "2", "--durations=9"], ["-n", "2", "--durations=9"])],
)
def test_files_stay_together_however_many_processes_share_the_tests(
    arguments: list[str], passed: list[str]
) -> None:
    code = f"""
import sys
import scripts.test as script
script.environment.ensure = script.environment.enter = lambda _: None
script.debian.install_missing = lambda: None
script.run_tests = lambda arguments: print(*arguments)
script.main(["--no-checks", *{arguments!r}])
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    together = ["--dist", "loadfile", "--no-loadscope-reorder"]
    assert ran.stdout.split() == ["-m", "pytest", *together, *passed]


def test_of_checks_and_tests_only_one_can_be_left_out() -> None:
    ran = subprocess.run(
        [sys.executable, "scripts/test.py", "--no-checks", "--checks-only"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "not allowed with" in ran.stderr


def test_continuous_integration_does_what_a_newcomer_does() -> None:
    commands = [
        line
        for line in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert commands[-1] == 'exec python3 scripts/test.py "$@"'
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
