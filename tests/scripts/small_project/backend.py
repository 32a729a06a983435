"""A build backend inside a project, so that pip has nothing to fetch.

Every build is noted in builds.txt. While a file named "hold" is there the build waits, as a long
download would; with a file named "broken" the disk is full.
"""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
INFO = "small-1.0.dist-info"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
METADATA = (
    "Metadata-Version: 2.1\nName: small\nVersion: 1.0\nProvides-Extra: a\nProvides-Extra: b\n"
)


def build_editable(
    wheel_directory: str,
    config_settings: object = None,
    metadata_directory: str | None = None,
) -> str:
    """Write the wheel pip asks for (PEP 660)."""
    with (HERE / "builds.txt").open("a") as builds:
        builds.write(f"{os.getpid()}\n")
    while (HERE / "hold").exists():
        time.sleep(0.02)
    if (HERE / "broken").exists():
        raise OSError(28, "No space left on device")
    name = "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w") as wheel:
        wheel.writestr("small.pth", str(HERE))
        wheel.writestr(f"{INFO}/WHEEL", WHEEL)
        wheel.writestr(f"{INFO}/METADATA", METADATA)
        wheel.writestr(f"{INFO}/RECORD", "")
    return name


build_wheel = build_editable
