"""The demo migration without downloads: cold with empty caches, then warm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

BARS: Final = {"cold": 120.0, "warm": 45.0}


def measure() -> list[dict[str, Any]]:
    """Run `tapml offload` twice with a separate cache, each time in a new session."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # PoCL caches kernels too; a cold run has none.
        caches = {
            "TAPML_CACHE_DIR": str(Path(folder) / "cache"),
            "POCL_CACHE_DIR": str(Path(folder) / "pocl"),
        }
        for name, bar in BARS.items():
            started = time.perf_counter()
            command = [sys.executable, "-m", "tapml.cli.main", "offload", "--quiet"]
            subprocess.run(
                [*command, "--session", str(Path(folder) / name)],
                env=os.environ | caches,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            seconds = time.perf_counter() - started
            rows.append(
                {
                    "part": "demo",
                    "name": f"tapml offload, {name}",
                    "seconds": round(seconds, 1),
                    "at_most": bar,
                    "met": seconds <= bar,
                }
            )
    return rows
