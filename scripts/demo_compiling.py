"""Seconds of compiling the demo model's operators for a device, each time in a new process."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

# Compiles the demo's operators twice, with an empty and with a full cache; without an argument it
# only fills the cache with the plan.
_COMPILE: Final = """
import json, sys, time
from tapml.compiler.compiler import Compiler
from tapml.importing.cache import PlanCache
from tapml.importing.importer import import_model
from tapml.models.huggingface import load_model
from tapml_targets.ranking import find_device
from tapml_targets.target import Target
operators = import_model(load_model("pydoc-llama"), cache=PlanCache()).plan.operators.values()
if len(sys.argv) > 1:
    device = find_device(sys.argv[1])
    target = Target(device.platform, limits=device.limits)
    if sys.argv[2] == "loaded":
        import tvm
        import tapml.compiler.host_build
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        with Compiler() as compiler:
            for operator, library in compiler.compile_all(operators, target):
                if isinstance(library, Exception):
                    raise library
            seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))
"""


class DemoCompiling:
    """Compiles the demo in child processes that have its plan already.

    Parameters
    ----------
    folder
        An empty folder for their caches.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._planned = folder / "planned"
        self._runs = 0
        _child({"TAPML_CACHE_DIR": str(self._planned)})

    def seconds(self, spec: str, *, begin: str = "bare", turns: int = 1) -> tuple[float, float]:
        """Medians of a run with an empty cache and of one with a full cache.

        Parameters
        ----------
        spec
            The device, such as ``webgpu:0``.
        begin
            ``loaded`` imports TVM before the clock starts, ``bare`` does not.
        turns
            New processes.
        """
        runs = []
        for _ in range(turns):
            self._runs += 1
            cache = self._folder / str(self._runs)
            shutil.copytree(self._planned, cache)
            runs.append(json.loads(_child({"TAPML_CACHE_DIR": str(cache)}, spec, begin)))
        cold, cached = (statistics.median(each) for each in zip(*runs, strict=True))
        return cold, cached


def _child(environ: dict[str, str], *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _COMPILE, *arguments],
        env=os.environ | environ,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
