"""Time to resume a session: from the command to the first step that is not in its journal.

Two finished sessions, the demo's and one of more than 500 operators
(:mod:`scripts.many_operators`), are made once and kept between runs. In a copy the last operator's
verdict is deleted, and the real command resumes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.carved_model import cache_in
from scripts.many_operators import make_session
from tapml.cli.progress import watch
from tapml.runs.journal import JOURNAL
from tapml.session.journal import open_journal
from tapml.session.kept_model import open_kept
from tapml.session.report_data import FORMAT as REPORT
from tapml_targets.cache_folder import cache_folder

LAYERS: Final = 23
"""22 operators each, and 22 beside them."""
BAR_SECONDS: Final = 2.0
_REPEATS: Final = 5
_PASSED: Final = "pass"


def measure(layers: int = LAYERS, device: str = "") -> list[dict[str, Any]]:
    """Resume the session of many operators and the demo's, several times each."""
    folder = cache_folder("bench", "resume")
    # Compiled code lies beside the sessions, so that nothing else evicts it.
    with cache_in(folder / "cache"):
        many = folder / f"many-{layers}"
        if not _is_current(many):
            _make_many(many, layers, device)
        demo = folder / "demo"
        if not _is_current(demo):
            _make_demo(demo, device)
        return [_row(many, bar=True), _row(demo, bar=False)]


def _is_current(session: Path) -> bool:
    """Whether these versions finished the session, so that a rerun has nothing to do."""
    kept = open_kept(session)
    report = session / "report.json"
    if kept is None or kept.outdated or not report.is_file():
        return False
    data = json.loads(report.read_text(encoding="utf-8"))
    return bool(data["format"] == REPORT and data["outcome"]["status"] == _PASSED)


def _make_many(session: Path, layers: int, device: str) -> None:
    shutil.rmtree(session, ignore_errors=True)
    print(f"making a session of more than {22 * layers} operators (about ten minutes)", flush=True)
    with watch(quiet=False) as watcher:
        result = make_session(session, session.with_suffix(".model"), layers, device, watcher)
    if result.status != _PASSED:
        raise RuntimeError(f"the session to resume ended otherwise: {result.text}")


def _make_demo(session: Path, device: str) -> None:
    shutil.rmtree(session, ignore_errors=True)
    print("making the demo's session", flush=True)
    chosen = ("--device", device) if device else ()
    _offload("--session", str(session), *chosen)


def _row(session: Path, *, bar: bool) -> dict[str, Any]:
    operators = len(json.loads((session / "report.json").read_text(encoding="utf-8"))["operators"])
    with tempfile.TemporaryDirectory() as folder:
        # The first run warms the file system's caches.
        _, *seconds = (_resume(session, Path(folder) / str(n)) for n in range(1 + _REPEATS))
    median = statistics.median(seconds)
    row: dict[str, Any] = {
        "part": "resume",
        "name": f"first new step, {operators} operators",
        "seconds": round(median, 2),
        "best": round(min(seconds), 2),
        "worst": round(max(seconds), 2),
    }
    return row | ({"at_most": BAR_SECONDS, "met": median <= BAR_SECONDS} if bar else {})


def _resume(session: Path, copy: Path) -> float:
    """Seconds from the start of the command to its first new step, in a copy of the session."""
    shutil.copytree(session, copy)
    with contextlib.closing(sqlite3.connect(copy / JOURNAL)) as connection:
        connection.execute(
            "DELETE FROM result WHERE stage = 'operator' AND subject ="
            " (SELECT subject FROM result WHERE stage = 'operator' ORDER BY id DESC LIMIT 1)"
        )
        connection.commit()
    started = time.time()
    _offload("--session", str(copy))
    with open_journal(copy / JOURNAL) as journal:
        steps = [moment for moment, _, _ in journal.events("step") if moment > started]
    if len(steps) != 1:
        raise RuntimeError(f"expected one new step of the resumed session, found {len(steps)}")
    shutil.rmtree(copy)
    return steps[0] - started


def _offload(*arguments: str) -> None:
    command = [sys.executable, "-m", "tapml.cli.main", "offload", "--quiet", *arguments]
    # An installed package has byte code; a checkout may be configured not to write any.
    variables = dict(os.environ)
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    variables["PYTHONPYCACHEPREFIX"] = str(Path(variables["TAPML_CACHE_DIR"]) / "byte-code")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=variables)
