"""Exported folders and the real pytest that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

LIMIT_SECONDS = 240.0
# As if TVM, PyTorch and their kin were not installed.
_WITHOUT_TOOLKIT = """
import sys
for name in ('tvm', 'torch', 'transformers', 'safetensors', 'tokenizers'):
    sys.modules[name] = None
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Tested:
    """How pytest ended, what it printed, and its JUnit file: properties and outcome by test."""

    exit_code: int
    output: str
    cases: dict[str, dict[str, str]]

    def outcomes(self) -> dict[str, int]:
        """How many tests there are of each outcome."""
        found: dict[str, int] = {}
        for case in self.cases.values():
            found[case["outcome"]] = found.get(case["outcome"], 0) + 1
        return found


def run_pytest(
    folder: Path,
    *arguments: str | Path,
    cache: Path,
    junit: Path,
    toolkit: bool = True,
    **environment: str,
) -> Tested:
    """Run pytest in an exported folder, in a process of its own."""
    start = ["-m", "pytest"] if toolkit else ["-c", _WITHOUT_TOOLKIT]
    installed = any(each.name == "tapml" for each in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "tapml.pytest_plugin"]
    ended = subprocess.run(
        [
            sys.executable, *start, str(folder), *plugin, "-p", "no:cacheprovider", "-rs",
            "--rootdir", str(folder), "--junitxml", str(junit), *map(str, arguments),
        ],
        env={
            **os.environ,
            "TAPML_CACHE_DIR": str(cache),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=LIMIT_SECONDS,
    )  # fmt: skip
    cases = _read_junit(junit) if junit.is_file() else {}
    return Tested(ended.returncode, ended.stdout + ended.stderr, cases)


def _read_junit(path: Path) -> dict[str, dict[str, str]]:
    cases = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        outcome = next(
            (each.tag for each in case if each.tag in ("failure", "error", "skipped")), "passed"
        )
        found = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        message = "".join(each.get("message") or "" for each in case)
        cases[case.get("name", "")] = {**found, "outcome": outcome, "message": message}
    return cases
