"""What the list of ROCm devices depends on; see :mod:`tapml_targets.driver_discovery`."""

from __future__ import annotations

from tapml_targets.installed import package_version
from tapml_targets.simulator import discovery as simulator


def drivers_state() -> str:
    """Text that changes with the binding, or with the simulator's compiler."""
    return f"{package_version('rocm-bindings-hip')} {simulator.drivers_state()}"
