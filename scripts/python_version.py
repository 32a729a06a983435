"""The first thing every script checks. Any Python 3 can read this file, so that it can say no."""

import shutil
import sys

OLDEST = (3, 11)


def require_python(version=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Leave with status 2, naming what to run instead, when this Python is too old."""
    version = tuple(version or sys.version_info[:3])
    if version[:2] >= OLDEST:
        return
    wanted = ".".join(map(str, OLDEST))
    newer = [
        path
        for path in (
            shutil.which("python3." + str(minor)) for minor in range(20, OLDEST[1] - 1, -1)
        )
        if path
    ]
    lines = [
        "tapml needs Python " + wanted + " or newer; this is " + ".".join(map(str, version)) + ".",
        "Run instead: " + newer[0] + " " + " ".join(sys.argv)
        if newer
        else "Install Python " + wanted + " (for example: apt-get install python3 on Debian 12 "
        "or Ubuntu 24.04, brew install python@3.13 on macOS, or uv python install 3.13).",
    ]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.exit(2)
