"""The interface of a platform's ``checker.py``: a driver that checks every access of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol, cast

from tapml_targets.check_messages import Message
from tapml_targets.errors import InputError
from tapml_targets.platforms import has_part, optional_part, platform_names

CHECKS: Final = "TAPML_CHECKS"
"""The variable of a process that checks: lists of devices are kept apart from other processes'."""


class PlatformChecker(Protocol):
    """What a platform's ``checker.py`` defines.

    The checker runs as a driver of the platform in a process of its own, with an environment in
    which it is found; its device has the type ``checker``, and it writes a log.
    """

    NAME: str
    """The checker, as messages name it."""
    MAX_MESSAGES: int
    """It stops logging after about so many."""
    UNOPTIMISED: str
    """Build option for what it does not run optimised; empty for none."""
    ON_DEVICES: bool
    """Whether it checks on the platform's own devices, each of which then has the type."""

    def find_checker(self) -> Path:
        """Its driver's file; raises SetupError, with the remedy, if it is not installed."""

    def environment(self, library: Path, log: Path) -> dict[str, str]:
        """Variables of a process in which it is the driver and logs to `log`."""

    # It may also define prefix(library, log): words before the command of that process, for a
    # checker that is a program which starts what it watches.

    def read_messages(self, text: str) -> Iterator[Message]:
        """The messages in a part of a log."""

    def is_silenced(self, text: str) -> bool:
        """Whether it stopped logging there."""


def checker_of(platform: str) -> PlatformChecker:
    """The checker of a platform's kernels.

    Raises
    ------
    InputError
        If there is none; the platforms with one are named.
    """
    module = optional_part(platform, "checker")
    if module is None:
        others = ", ".join(name for name in platform_names() if has_checker(name))
        raise InputError(
            f"kernels for {platform} cannot be checked: it has no checker; there is one for "
            f"{others or 'no platform'}"
        )
    return cast("PlatformChecker", module)


def command_prefix(tool: PlatformChecker, library: Path, log: Path) -> tuple[str, ...]:
    """Words before the command of the process that `tool` watches; mostly none."""
    made = getattr(tool, "prefix", None)
    return () if made is None else tuple(made(library, log))


def has_checker(platform: str) -> bool:
    """Whether the kernels of a platform can be checked."""
    return has_part(platform, "checker")
