"""The suites that every platform of tapml passes, over a platform that is not part of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.targets.third_party import install

pytest.importorskip("ziglang", reason="ziglang is not installed: abacus compiles no kernel")

SUITES = ("test_cases.py", "test_driver.py", "test_evaluator.py", "test_codegen.py")
# TVM's sorts for processors are calls of its runtime, and this platform has but one schedule.
NOT_OFFERED = "test_a_sort or test_topk or test_an_operator_without_its_schedule"


def test_it_conforms(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    folder = Path(__file__).parents[1] / "conformance"
    ended = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q",
            "-k", f"abacus and not ({NOT_OFFERED})", *(str(folder / name) for name in SUITES),
        ],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None and int(passed[1]) > 84
