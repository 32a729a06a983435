"""Python runs this file at start-up, because its folder is the first in ``PYTHONPATH``.

It waits for the script to import PyTorch; a process that does not is left alone.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_HERE = str(Path(__file__).parent)


class _BeginAfterTorch(importlib.abc.MetaPathFinder):
    """Starts the recording at the end of ``import torch``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Wrap the loader of torch; every other module is left to the other finders."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        loader = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def run(module: ModuleType) -> None:
            execute(module)
            _begin()

        loader.exec_module = run  # type: ignore[method-assign]
        return spec


def _begin() -> None:
    # The script's interpreter may not have tapml: the recording brings its own.
    for folder in os.environ["TAPML_INVARIANTS_PACKAGES"].split(os.pathsep):
        if folder not in sys.path:
            sys.path.append(folder)
    from tapml.invariants.recorded_process import begin

    begin()


def _run_the_next() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    folders = [folder for folder in sys.path if folder != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "TAPML_INVARIANTS_TRACE" in os.environ:
    sys.meta_path.insert(0, _BeginAfterTorch())
_run_the_next()
