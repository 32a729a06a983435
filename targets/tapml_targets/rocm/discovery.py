"""What the list of ROCm devices depends on; see :mod:`tapml_targets.driver_discovery`."""

from tapml_targets.simulator.discovery import drivers_state

__all__ = ["drivers_state"]
