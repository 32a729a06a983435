"""When the list of devices that was kept is out of date."""

import os

from tapml_abacus.driver import LOG
from tapml_targets.installed import package_version


def drivers_state() -> str:
    """Text that changes with the compiler, and in a process that checks."""
    return f"{package_version('ziglang')} {'checks' if LOG in os.environ else ''}"
