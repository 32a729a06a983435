"""One command for a migration to WebGPU: what it takes, and that Ctrl-C leaves nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.migrate_webgpu import line_of, make_model
from tapml.models import resolve_model
from tapml.runs.journal import JOURNAL
from tests.offload.processes import MARK, left_after, marked, new_mark
from tests.report.browser import need_browser
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, wait_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "migrate_webgpu.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_its_help_shows_commands_devices_and_exit_codes() -> None:
    told = run("--help").stdout
    for word in ("examples:", "--device firefox --dtype float16", "webgpu:1", "exit codes"):
        assert word in told


def test_a_migration_in_which_nothing_was_measured_has_its_line() -> None:
    summary = {
        "model": "m", "device": "webgpu:0", "adapter": "a", "dtype": "float32", "moved": 0,
        "operators": 3, "tests": 0, "worst_ratio": None, "headline": "fail", "seconds": 1.0,
        "exit_code": 1,
    }  # fmt: skip
    assert "0 of 3 operators moved, 0 tests, worst ratio none; fail" in line_of(summary)


def test_the_other_model_has_another_shape_than_the_demo_and_stays_with_its_sessions(
    tmp_path: Path,
) -> None:
    other, demo = (
        json.loads((Path(each) / "config.json").read_text())
        for each in (make_model("other", tmp_path), resolve_model("pydoc-llama"))
    )
    assert (tmp_path / "other").is_dir()
    shape = ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "rope_parameters")
    for key in (*shape, "num_attention_heads", "num_key_value_heads", "attention_bias", "mlp_bias"):
        assert other[key] != demo[key], key
    grouped, paired = (
        each["num_attention_heads"] // each["num_key_value_heads"] for each in (other, demo)
    )
    assert (grouped, paired) == (3, 2)
    assert other["head_dim"] * other["num_attention_heads"] != other["hidden_size"]


def test_a_browser_that_is_not_there_is_an_error_of_the_environment() -> None:
    ended = run("--here", "--device", "netscape")
    assert ended.returncode == 2
    assert "'netscape' is not a program" in ended.stderr and "Traceback" not in ended.stderr


@contextmanager
def migrating(mark: str, scratch: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The script, in a group of its own as a terminal would give it one."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "--here", *arguments],
        env={**os.environ, MARK: mark, "TMPDIR": scratch},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as script:
        try:
            yield script
        finally:
            script.kill()


def interrupted(script: subprocess.Popen[bytes]) -> str:
    """What it says to Ctrl-C: no traceback, and the exit code of an interrupt."""
    os.killpg(script.pid, signal.SIGINT)
    said = script.communicate(timeout=PATIENCE_SECONDS)[1].decode()
    assert script.returncode == 130, said
    assert "tapml: interrupted" in said and "Traceback" not in said
    return said


def test_ctrl_c_leaves_no_browser_no_tracker_and_no_folder(tmp_path: Path) -> None:
    need_browser()
    mark = new_mark()
    with (
        tempfile.TemporaryDirectory(prefix="t-") as scratch,
        migrating(mark, scratch, "--out", str(tmp_path / "out")) as script,
    ):
        # The session is in its work, and not only about to start.
        journals = f"*/{JOURNAL}"
        wait_for(lambda: list((tmp_path / "out").glob(journals)), 2 * PATIENCE_SECONDS)
        assert marked(mark, "--user-data-dir="), "the browser is there before the migration"
        interrupted(script)
        assert left_after(mark) == {}
        assert list(Path(scratch).glob("tapml-*")) == []


def test_ctrl_c_while_the_migrations_python_starts_is_no_traceback() -> None:
    mark = new_mark()
    with (
        tempfile.TemporaryDirectory(prefix="t-") as scratch,
        migrating(mark, scratch, "--device", "webgpu:0") as script,
    ):
        wait_for(lambda: marked(mark, " offload "), PATIENCE_SECONDS)
        interrupted(script)
        assert left_after(mark) == {}
