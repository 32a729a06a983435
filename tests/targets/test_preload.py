"""What a process imports before it forks starts no thread and changes no variable."""

from __future__ import annotations

import subprocess
import sys

import pytest

_IMPORTS = """
import os, sys
from tapml_targets.driver_discovery import driver_discovery
os.environ.pop("OPENBLAS_NUM_THREADS", None)
driver_discovery(sys.argv[1]).preload()
print(len(os.listdir("/proc/self/task")), "OPENBLAS_NUM_THREADS" in os.environ)
print(sorted({"pyopencl", "wgpu"} & sys.modules.keys()))
with open("/proc/self/maps") as maps:
    print(any("pocl" in line or "libvulkan_" in line for line in maps))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing forks")
@pytest.mark.parametrize(("platform", "package"), [("opencl", "pyopencl"), ("webgpu", "wgpu")])
def test_it_starts_no_thread_and_loads_no_driver(platform: str, package: str) -> None:
    pytest.importorskip(package)
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORTS, platform],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.split("\n")[:3] == ["1 False", f"['{package}']", "False"]
