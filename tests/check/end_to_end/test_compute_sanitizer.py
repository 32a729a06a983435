"""compute-sanitizer's place in a check, with stand-ins of it and of cuda-core in real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tapml.check.checker import open_checker
from tapml_targets.cuda import sanitizer
from tapml_targets.ranking import list_devices

pytest.importorskip("ziglang", reason="ziglang is not installed: no simulated CUDA")

# What every Python of this test does first: NVIDIA's binding is the stand-in, on the simulator.
BINDING = """\
from tapml_targets.cuda import description, driver, gpu, programs
from tapml_targets.errors import SetupError
from tapml_targets.simulator.description import simulated_device
from tests.targets.cuda import stand_in
from tests.targets.gpu_machine import Machine

made = []

def import_core():
    if not made:
        # There is no GPU yet while the simulated one is opened, which lists what there is.
        made.append(None)
        opened = driver.open_device(simulated_device("cuda", 0, "sm_80", driver._SIMULATED))
        made[0] = stand_in.core(Machine(opened))
    if made[0] is None:
        raise SetupError("no binding")
    return made[0]

gpu.import_core = description.import_core = programs._core = import_core
description._driver_version = lambda: "CUDA 13.0"
"""
# It starts the command behind its options, as NVIDIA's does.
PROGRAM = """\
#!/bin/sh
while [ "$1" != --log-file ]; do shift; done
echo "========= COMPUTE-SANITIZER" > "$2"
shift 2
exec "$@"
"""


def test_the_gpu_is_a_checker_also_where_a_list_of_the_same_gpus_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BINDING)
    program = tmp_path / sanitizer.NAME
    program.write_text(PROGRAM)
    program.chmod(0o755)
    roots = [str(tmp_path), str(Path(__file__).parents[3])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(roots))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sanitizer, "_gpus", lambda: 1)
    assert [each.device_type for each in list_devices("cuda")] == ["gpu", "simulated"]
    with open_checker("cuda") as checker:
        assert (checker.tool.NAME, checker.session.device.device_type) == (
            "compute-sanitizer", "checker",
        )  # fmt: skip
