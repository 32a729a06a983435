"""Checks ``web/``: types, lint, unit tests, and that the committed page is the built one.

``python -m scripts.web_checks`` installs web/'s tools from its lock file if missing or outdated,
and runs all checks. Without node nothing is checked: the exit code is 77, and 1 under
``TAPML_REQUIRE_DEVICES=1`` or ``CI=true``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
STAMP = WEB / "node_modules" / ".tapml-lock"
NOT_RUN: Final = 77
"""Exit code where none can run and none is required."""


def main() -> int:
    """Return 0 if all checks pass, :data:`NOT_RUN` if none can run and none is required."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        print("web/ was not checked: it needs node and npm (Debian: nodejs, npm)")
        return 1 if _is_required() else NOT_RUN
    wanted = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    if not STAMP.is_file() or STAMP.read_text("ascii") != wanted:
        if not os.access(WEB, os.W_OK):
            print(f"web/ was not checked: {WEB} cannot be written, and its tools are not there")
            return 1 if _is_required() else NOT_RUN
        status = subprocess.call([npm, "ci", "--no-audit", "--no-fund"], cwd=WEB)
        if status:
            print("web/: `npm ci` failed; its tools come from npm's registry")
            return status
        STAMP.write_text(wanted, "ascii")
    return subprocess.call([node, "scripts/check.mjs"], cwd=WEB)


def _is_required() -> bool:
    on = ("1", "true")
    named = ("CI", "TAPML_REQUIRE_DEVICES")
    return any(os.environ.get(name, "").lower() in on for name in named)


if __name__ == "__main__":
    sys.exit(main())
