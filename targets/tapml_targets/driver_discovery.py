"""How a platform's drivers are found: its ``discovery.py``, with defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from tapml_targets.errors import SetupError
from tapml_targets.platforms import optional_part


class DriverDiscovery:
    """Questions of generic code about the drivers of a platform.

    A platform's ``discovery.py`` may define any of these functions. The defaults are those of a
    platform without external drivers.
    """

    def prepare_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment for a process that uses the platform: `environ` with the drivers' paths.

        A loader reads them once, when a process starts.
        """
        return dict(environ)

    def preload(self) -> None:
        """Import what opening a device does, for a process that forks: no driver, no thread."""

    def missing_compiler(self) -> str:
        """What to install before devices here take kernels as text; empty if nothing is missing.

        Only where a device is listed and tried without it.
        """
        return ""

    def drivers_state(self) -> str:
        """Text that changes when a driver is installed, removed or selected; loads no driver."""
        return ""

    def left_out(self) -> dict[str, str]:
        """The drivers that are left out, by the file that names them, with what each did."""
        return {}

    def chosen_by(self) -> str:
        """The variable by which the user has chosen the drivers; empty where they are found."""
        return ""

    def set_faulty_drivers_aside(self, ask: Callable[[Mapping[str, str]], str]) -> dict[str, str]:
        """Leave out the drivers that hang or crash, and return them as :meth:`left_out` does.

        `ask` lists the devices in a child process with an environment, and returns what went wrong.
        """
        return {}

    def forget_faulty_drivers(self) -> None:
        """Use every driver again."""


def use_environment(environ: Mapping[str, str]) -> None:
    """Give this process exactly these variables, before it loads a driver.

    A prepared environment may lack a variable that selects the drivers of the process that started
    this one: they may be another Python environment's.
    """
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)


def require_compiler(platform: str) -> None:
    """Check, before anything slow, that kernels can be built for this machine's devices.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If what compiles their text is missing; the message says what to install.
    """
    if missing := driver_discovery(platform).missing_compiler():
        raise SetupError(missing)


def driver_discovery(platform: str) -> DriverDiscovery:
    """A platform's ``discovery.py``, with the default where it lacks a function.

    Raises
    ------
    InputError
        If there is no such platform.
    """
    found, own = DriverDiscovery(), optional_part(platform, "discovery")
    for name in (each for each in vars(DriverDiscovery) if not each.startswith("_")):
        if hasattr(own, name):
            setattr(found, name, getattr(own, name))
    return found
