"""An implementation of a platform (device, driver, compiler), and its column in a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any, Final

from tapml.devices.reach import is_remote
from tapml.replaying.memory import ReplayMemory
from tapml.session.run_settings import within_profile
from tapml_rpc.client import Session
from tapml_targets.description import fingerprint
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, TapmlError
from tapml_targets.limits import Limits

OWN_SECONDS: Final = 5.0
"""How long a tracker may take to notice that a column has returned its device."""
# Some drivers list everything they were built with.
_LONGEST_WORDS: Final = 80


@dataclass(frozen=True)
class Implementation:
    """An implementation in a report.

    Attributes
    ----------
    label
        The user's name for it: ``webgpu:1``, ``tracker:firefox``.
    platform
        Its platform; empty if it could not be opened.
    name, vendor, driver, compiler
        As the device reports them; the compiler may be empty.
    fingerprint
        Fingerprint of the device, which changes with the driver.
    problem
        Why it did not run, or stopped; empty otherwise.
    """

    label: str
    platform: str = ""
    name: str = ""
    vendor: str = ""
    driver: str = ""
    compiler: str = ""
    fingerprint: str = ""
    problem: str = ""

    @property
    def made_of(self) -> str:
        """Compiler, device and driver with their versions, in one line."""
        words = (self.compiler, self.name, self.vendor, self.driver)
        # A browser's vendor text begins with its driver version: leave out contained texts.
        kept = [shorten(word, _LONGEST_WORDS, placeholder=" ...") for word in words if word]
        shown = [
            word
            for place, word in enumerate(kept)
            if not any(word in other for at, other in enumerate(kept) if at != place)
        ]
        return ", ".join(shown or kept[:1])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


class Column:
    """A device of a matrix, which is opened again after a kernel has crashed it.

    Parameters
    ----------
    label
        The user's name for it.
    connect
        Opens a session with it.
    profile
        Name or file of a limit profile that restricts its kernels.

    Attributes
    ----------
    session
        None if it could not be opened, or is lost for good.
    problem
        The reason for that; empty otherwise.
    error
        The error when it was first opened, if any.
    exit_code
        Exit code of the error that lost it.
    missed
        Exit code of an error that kept an operator from running, but not later ones; 0 if none.
    """

    def __init__(
        self, label: str, connect: Callable[[], Session], profile: str | None = None
    ) -> None:
        self.label = label
        self.session: Session | None = None
        self.problem = ""
        self.error: TapmlError | OSError | None = None
        self._profile = profile
        self.exit_code = self.missed = 0
        self.connect = connect
        self._description: DeviceDescription | None = None
        self._memory: ReplayMemory | None = None

    def open(self) -> None:
        """Open the device; a failure becomes its `problem`.

        Raises
        ------
        InputError
            If it is opened for the first time, and its name is invalid or means another column's
            device.
        """
        self.close()
        try:
            session = self.connect()
        except (TapmlError, OSError) as error:
            if self.problem:
                self.problem = f"{self.problem}; and it cannot be opened again: {error}"
            elif isinstance(error, InputError):
                raise  # A mistake of the user, found before anything has run.
            else:
                self.problem, self.exit_code = str(error), exit_code_of(error)
                self.error = error
            return
        if self._description is not None and fingerprint(session.device) != self.fingerprint:
            self.problem = "a different device was opened after the loss"
            session.close()
            return
        self.session, self._description = session, session.device
        self.problem, self.exit_code, self.error = "", 0, None

    def close(self) -> None:
        """Close the session, ignoring errors of a lost device."""
        session, self.session, self._memory = self.session, None, None
        if session is not None:
            with suppress(TapmlError, OSError):
                session.close()

    def leave_out(self, error: TapmlError) -> None:
        """Close the device for good: it cannot run what is asked for."""
        self.close()
        self.problem, self.exit_code, self.error = str(error), exit_code_of(error), error

    def lose(self, why: str, exit_code: int) -> None:
        """Handle the loss of the device: open it again in a new process."""
        self.problem, self.exit_code = why, exit_code
        self.open()

    @property
    def memory(self) -> ReplayMemory:
        """Guarded memory on the device, as long as the session is open."""
        assert self.session is not None, self.problem  # noqa: S101 - asked of open columns alone
        if self._memory is None:
            self._memory = ReplayMemory(self.session, self.description.limits.memory_bytes)
        return self._memory

    @property
    def description(self) -> DeviceDescription:
        """The device's description when it was first opened."""
        assert self._description is not None, self.problem  # noqa: S101 - likewise
        return self._description

    @property
    def limits(self) -> Limits:
        """The limits of kernels on it. Raises InputError if the profile does not exist."""
        device = self.description
        return within_profile(self._profile, device.platform, device.limits)

    @property
    def platform(self) -> str:
        """Its platform; empty if it could not be opened."""
        return self.description.platform if self.opened else ""

    @property
    def opened(self) -> bool:
        """Whether it has ever been opened."""
        return self._description is not None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the device."""
        return fingerprint(self.description)

    def implementation(self) -> Implementation:
        """Its description for a report."""
        if self._description is None:
            return Implementation(self.label, problem=self.problem)
        device = self._description
        return Implementation(
            label=self.label,
            platform=device.platform,
            name=device.name,
            vendor=device.vendor_platform,
            driver=device.driver_version,
            compiler=str(device.details.get("compiler", "")),
            fingerprint=self.fingerprint,
            problem=self.problem,
        )


def columns_of(
    connecting: Mapping[str, Callable[[], Session]], count: int, profile: str | None = None
) -> list[Column]:
    """One column for each device.

    Parameters
    ----------
    connecting
        Functions that open a session, by label.
    count
        How many devices the user named, including duplicates.
    profile
        A limit profile for all of them.

    Raises
    ------
    InputError
        If there is no device, or a name is duplicated. Opening a column also raises it if an
        earlier column has the same device under another name.
    """
    if not connecting:
        raise InputError("expected at least one device to validate on, got none")
    if len(connecting) < count:
        raise InputError(
            f"{count} devices were named, but only {', '.join(connecting)} are different; name "
            "each once"
        )
    known: dict[tuple[object, ...], str] = {}
    return [
        Column(label, partial(_connect_to_another, label, connect, known), profile)
        for label, connect in connecting.items()
    ]


def exit_code_of(error: TapmlError | OSError) -> int:
    """The exit code of a command that ends with this error."""
    return error.exit_code if isinstance(error, TapmlError) else TapmlError.exit_code


def _connect_to_another(
    label: str, connect: Callable[[], Session], known: dict[tuple[object, ...], str]
) -> Session:
    """Open a session with a device that no other column has; `known` has theirs."""
    session = connect()
    device = session.device
    # A remote server has one device; on this machine, every session starts a server.
    there = (session.epoch,) if is_remote(label) else (device.platform, device.index)
    other = known.setdefault(there, label)
    if other == label:
        return session
    session.close()
    raise InputError(
        f"{label} is the same device as {other} ({device.name}), so there is nothing to compare; "
        "name each device once"
    )
