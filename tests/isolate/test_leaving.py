"""Nothing is left when the pool's process ends, whichever way it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tests.isolate.processes import (
    PATIENCE_SECONDS,
    alive,
    shared_memory,
    wait_until,
    wait_until_gone,
)

ENDINGS = [signal.SIGKILL, signal.SIGINT, signal.SIGTERM]


@contextmanager
def _owner(script: str) -> Iterator[subprocess.Popen[bytes]]:
    owner = subprocess.Popen(
        [sys.executable, "-c", dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield owner
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_job_is_left(ending: signal.Signals, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    script = f"""
        from tapml.isolate.pool import Pool
        from tests.isolate.jobs import name, names
        with Pool(names(), workers=1) as pool:
            pool.submit(name("announce"), {str(note)!r}).result()
    """
    with _owner(script) as owner:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
        pids = [int(pid) for pid in note.read_text().split()]
        owner.send_signal(ending)
        owner.wait(PATIENCE_SECONDS)
        wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_member_folder_or_shared_memory_of_a_group_is_left(
    ending: signal.Signals, tmp_path: Path
) -> None:
    before = shared_memory()
    script = f"""
        import numpy
        from tapml.isolate.pool import Pool
        from tests.isolate.jobs import name, names
        pool = Pool(names())
        arrays = pool.submit(name("doubled"), {{"a": numpy.ones(1 << 20)}}).result()
        pool.group(3, name("announce_member"), {str(tmp_path)!r}, folder=True).result()
    """
    with _owner(script) as owner:
        wait_until(lambda: len(list(tmp_path.glob("*.note"))) == 3)
        notes = [path.read_text().split() for path in tmp_path.glob("*.note")]
        pids = [int(pid) for own, inner, _ in notes for pid in (own, inner)]
        folder = Path(notes[0][2])
        assert folder.exists()
        wait_until_gone(before)
        owner.send_signal(ending)
        owner.wait(PATIENCE_SECONDS)
        wait_until(lambda: not any(map(alive, pids)))
        wait_until(lambda: not folder.exists())


def test_a_server_that_is_still_importing_ends_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (tmp_path / "imported_for_ever.py").write_text(
        f"import os, time\nopen({str(note)!r}, 'w').write(f'{{os.getpid()}} ')\ntime.sleep(600)\n"
    )
    script = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from tapml.isolate.environment import Environment
        from tapml.isolate.pool import Pool
        with Pool(["math:sqrt"], environment=Environment(preload=("imported_for_ever",))) as pool:
            pool.submit("math:sqrt", 2).result()
    """
    with _owner(script) as owner:
        wait_until(lambda: note.exists() and note.read_text().endswith(" "))
        owner.kill()
        owner.wait()
        wait_until(lambda: not alive(int(note.read_text())))
