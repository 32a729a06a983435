"""The Khronos validation layer has nothing to say of what the driver does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tapml_targets.driver import DeviceDescription

LAYER: Final = Path("/usr/lib/chromium/libVkLayer_khronos_validation.so")
NAME: Final = "VK_LAYER_KHRONOS_validation"
USE: Final = """
import random
import sys
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.vulkan.driver import list_devices, open_device
from tapml_targets.vulkan.launching import Together
from tests.targets.libraries import (Tensors, library)
from tests.targets.vulkan.sequences import COUNTS, OTHER_WORK, WINDOWS, Step, play
import numpy as np

drawn = random.Random(1)


def sequence():
    steps = [
        Step(*(drawn.randrange(len(WINDOWS)) for _ in "ab"), drawn.choice(COUNTS), 1)
        for _ in range(12)
    ]
    return [each for each in steps if each.is_defined]


if "no barriers" in sys.argv:
    Together.takes = lambda *_: True

for staged in (None, True):
    driver = open_device(list_devices()[int(sys.argv[1])], staged=staged)
    tensors = Tensors(driver)
    numbers = np.arange(5000, dtype=np.float32)
    with LoadedLibrary(driver, library("vulkan")) as loaded:
        for before in (0, 4):
            given = tensors.put(numbers, before, 20)
            output = tensors.put(numbers, before, 20)
            for timed in (False, True):
                report = loaded.call("chain", [given, output], timed=timed)
                assert np.array_equal(tensors.get(output), 2 * numbers + 2)
            assert report.kernel_nanoseconds() > 0
            loaded.call("chain", [given, output], workspace_poison=b"abc")
        driver.free(given.buffer)
    for _ in range(8):
        play(driver, [sequence(), sequence()], drawn.choices(OTHER_WORK, k=5))
    if "a buffer of no bytes" in sys.argv:
        from tapml_targets.vulkan.api import NULL, ffi, lib, struct
        lib.vkCreateBuffer(
            driver._device, struct("VkBufferCreateInfo", usage=32), NULL, ffi.new("VkBuffer *")
        )
    if staged:
        driver.close()
print("done")
"""


def under_the_layer(tmp_path: Path, *arguments: str) -> str:
    if not LAYER.is_file():
        pytest.skip(f"there is no {LAYER}, which Debian's chromium brings")
    manifest = {
        "file_format_version": "1.2.0",
        "layer": {
            "name": NAME,
            "type": "GLOBAL",
            "library_path": str(LAYER),
            "api_version": "1.3.239",
            "implementation_version": "1",
            "description": "validation",
        },
    }
    (tmp_path / "layer.json").write_text(json.dumps(manifest))
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "VK_LAYER_PATH": str(tmp_path),
        "VK_INSTANCE_LAYERS": NAME,
        "VK_LAYER_VALIDATE_SYNC": "1",
        "VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", USE, *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_it_has_nothing_to_say(device: DeviceDescription, tmp_path: Path) -> None:
    """One driver is closed, the other is left to the end of the process: both leave nothing."""
    assert under_the_layer(tmp_path, str(device.index)) == "done\n"


def test_it_would_say_what_is_wrong(device: DeviceDescription, tmp_path: Path) -> None:
    words = under_the_layer(tmp_path, str(device.index), "a buffer of no bytes", "no barriers")
    assert "VUID-VkBufferCreateInfo-size-00912" in words
    assert "SYNC-HAZARD-WRITE-AFTER-WRITE" in words
