"""The version check of every script. Any Python 3 can parse this file."""

import shutil
import subprocess
import sys

OLDEST = (3, 11)


def require_python(version: "tuple[int, ...] | None" = None) -> None:
    """Leave with status 2, naming what to run instead, when this Python is too old."""
    version = version or tuple(sys.version_info[:3])
    if version[:2] >= OLDEST:
        return
    wanted = ".".join(map(str, OLDEST))
    newer = newer_python()
    sys.stderr.write(
        f"tapml needs Python {wanted} or newer; this is {'.'.join(map(str, version))}.\n"
    )
    if newer:
        sys.stderr.write(f"Run instead: {newer} {' '.join(sys.argv)}\n")
    else:
        sys.stderr.write(
            f"Install Python {wanted} or newer: apt-get install python3 (Debian 12, Ubuntu 24.04), "
            "brew install python@3.13 (macOS), or uv python install 3.13.\n"
        )
    sys.exit(2)


def newer_python() -> str:
    """Return a newer interpreter on the PATH that runs, or the empty string."""
    for minor in range(13, OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.call([found, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return found
    return ""
