"""When the list of devices that was kept is out of date."""

from tapml_targets.installed import package_version


def drivers_state() -> str:
    """Text that changes with the compiler."""
    return str(package_version("ziglang"))
