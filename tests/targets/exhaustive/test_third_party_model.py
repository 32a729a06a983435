"""A model moves to a platform that is not part of tapml, and its kernels are edited and checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.offload.sessions import offload_arguments, read_report, states, tiny_model
from tests.targets.third_party import install, tapml_in

__all__ = ["tiny_model"]
OPERATOR = "fused_rms_norm"


@dataclass(frozen=True)
class Moved:
    """Where the platform is installed, and a finished session."""

    site: Path
    session: Path


@pytest.fixture(scope="module")
def moved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Moved:
    root = tmp_path_factory.mktemp("abacus")
    found = Moved(install(root / "site"), root / "session")
    given = offload_arguments(tiny_model, found.session, "abacus:0")
    ended = tapml_in(found.site, *map(str, given))
    assert ended.returncode == 0, ended.stderr
    return found


def test_every_operator_moves_and_the_tokens_are_the_references(moved: Moved) -> None:
    assert set(states(moved.session).values()) == {"moved"}
    report = read_report(moved.session)
    assert report["target"]["platform"] == "abacus"
    assert "tokens equal the reference's" in report["outcome"]["text"]


def test_a_kernel_by_hand_that_reads_too_far_is_found_shown_again_and_placed(moved: Moved) -> None:
    session = str(moved.session)
    made = tapml_in(moved.site, "kernel", "new", session, OPERATOR)
    assert made.returncode == 0, made.stderr
    source = moved.session / "kernels" / OPERATOR / "abacus" / f"{OPERATOR}.aba"
    lines = source.read_text().splitlines()
    last = next(
        number for number, line in reversed(list(enumerate(lines, 1))) if "output_0_ptr[" in line
    )
    lines[last - 1] = lines[last - 1].replace("(input_1_ptr[ax2]", "(input_1_ptr[ax2 + 1]")
    source.write_text("\n".join(lines))
    assert "ax2 + 1" in lines[last - 1]
    again = tapml_in(
        moved.site, "offload", "--session", session, "--only", OPERATOR, "--keep-going"
    )
    assert again.returncode == 1, again.stderr
    folder = moved.session / "repro" / OPERATOR
    assert folder.is_dir(), again.stdout + again.stderr
    shown = subprocess.run(
        [sys.executable, str(folder / "repro.py")],
        env=os.environ | {"PYTHONPATH": str(moved.site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the same as when it was written" in shown.stdout, shown.stderr
    checked = tapml_in(moved.site, "replay", str(folder), "--check")
    assert checked.returncode == 1, checked.stderr
    assert "out-of-bounds read" in checked.stdout
    assert re.search(rf"> +{last} ", checked.stdout), "the line is marked"
