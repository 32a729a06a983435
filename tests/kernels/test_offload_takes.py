"""A session takes a hand-written kernel on its next run, and validates it like any other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kernels.sessions import OPERATOR, KernelSession
from tests.offload.commands import Ended, run_here
from tests.offload.sessions import FinishedSession, read_report

BODY = ") {\n"


def offload(session: KernelSession, *arguments: str | Path) -> Ended:
    """Resume the session for this operator alone."""
    return run_here(
        "offload", "--session", session.folder, "--only", OPERATOR, *arguments,
        cache=session.cache,
    )  # fmt: skip


def of_operator(session: KernelSession) -> dict[str, Any]:
    """What the report says of the operator."""
    (found,) = (o for o in read_report(session.folder)["operators"] if o["name"] == OPERATOR)
    return dict(found)


def test_a_broken_kernel_fails_its_operator_until_it_is_mended(
    kernel_session: KernelSession,
) -> None:
    right = kernel_session.manifest.read_text()
    kernel_session.manifest.write_text(right.replace("block =", "blokc ="))
    ended = offload(kernel_session)
    kernel_session.manifest.write_text(right)
    assert ended.exit_code == 1, ended.errors
    failed = of_operator(kernel_session)
    assert (failed["state"], failed["written"]) == ("failed", str(kernel_session.place))
    assert f"{kernel_session.manifest}:" in failed["reason"]
    assert "did you mean 'block'?" in failed["reason"]

    right = kernel_session.source.read_text()
    kernel_session.source.write_text(right.replace(BODY, f"{BODY}  flot x;\n"))
    ended = offload(kernel_session)
    listed = kernel_session.kernel("list").output
    kernel_session.source.write_text(right)
    assert ended.exit_code == 1, ended.errors
    failed = of_operator(kernel_session)
    assert (failed["state"], failed["written"]) == ("failed", str(kernel_session.place))
    assert f"{kernel_session.source}:" in failed["reason"], "the file that is to be mended"
    assert "flot x;" in failed["reason"]
    assert f"{OPERATOR}  fail, 20" in listed, "no worst ratio of tests that did not run"
    assert f"{kernel_session.source}:" in listed
    repro = [sys.executable, str(Path(failed["repro"]) / "repro.py")]
    again = subprocess.run(repro, capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr
    assert "the same as when it was written" in again.stdout

    ended = offload(kernel_session)
    assert ended.exit_code == 0, ended.errors
    moved = of_operator(kernel_session)
    assert (moved["state"], moved["written"]) == ("moved", str(kernel_session.place))
    listed = kernel_session.kernel("list").output
    assert f"{OPERATOR}  pass, worst ratio" in listed


def test_a_kernel_that_breaks_a_limit_is_in_its_repro_folder_with_the_limit(
    kernel_session: KernelSession,
) -> None:
    right = kernel_session.manifest.read_text()
    wrong = re.sub(r"block = \[.*?\]", "block = [100_000]", right, flags=re.DOTALL)
    kernel_session.manifest.write_text(wrong)
    ended = offload(kernel_session)
    kernel_session.manifest.write_text(right)
    assert ended.exit_code == 1, ended.errors
    failed = of_operator(kernel_session)
    lack = next(each for each in failed["lacks"] if each["need"] == "100000")
    assert not lack["device"], "another kernel keeps within it"
    folder = Path(failed["repro"])
    page = (folder / "README.txt").read_text()
    assert "needs max_threads_per_block 100000, the device has " in page
    assert "there is no kernel" not in page
    assert f"Edit it in {kernel_session.place}" in page
    assert f"tapml kernel check {kernel_session.folder} {OPERATOR} --watch" in page
    assert (folder / "kernels" / kernel_session.source.name).is_file() or list(
        (folder / "kernels").iterdir()
    )
    again = subprocess.run(
        [sys.executable, folder / "repro.py"], capture_output=True, text=True, check=False
    )
    assert again.returncode == 1, again.stderr
    assert "needs max_threads_per_block 100000" in again.stdout
    assert "the same as when it was written" in again.stdout
    assert "--watch` tries every save of its kernel" in ended.output.splitlines()[-1]


def test_a_shared_kernel_is_taken_and_remembered(finished: FinishedSession, tmp_path: Path) -> None:
    session = KernelSession(finished.copy(tmp_path / "session"), finished.cache)
    shared = tmp_path / "shared"
    assert session.kernel("new", OPERATOR, "--shared", shared).exit_code == 0
    assert offload(session, "--kernels", shared).exit_code == 0
    assert of_operator(session)["written"] == str(shared / OPERATOR / "opencl")
    assert f"{shared / OPERATOR / 'opencl'}" in session.kernel("list").output
