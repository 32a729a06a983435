"""What the list of CUDA devices depends on; see :mod:`tapml_targets.driver_discovery`."""

from __future__ import annotations

from tapml_targets.cuda.sanitizer import is_watched
from tapml_targets.installed import package_version
from tapml_targets.simulator import discovery as simulator


def drivers_state() -> str:
    """Text that changes with the binding, the simulator's compiler, and where GPUs are watched."""
    watched = " watched" if is_watched() else ""
    return f"{package_version('cuda-core')} {simulator.drivers_state()}{watched}"
