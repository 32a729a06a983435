"""An implementation of a platform (device, driver, compiler), and its column in a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any, Final

from tapml.carving.replay_memory import ReplayMemory
from tapml_rpc.client import Session
from tapml_rpc.reach import is_remote
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, TapmlError
from tapml_targets.fingerprint import fingerprint

OWN_SECONDS: Final = 5.0
"""So long may a tracker take to hear that a device was given back, which a column asks for."""
# A driver may name everything it was built with.
_LONGEST_WORDS: Final = 80


@dataclass(frozen=True)
class Implementation:
    """Who ran the kernels, as a report names it.

    Attributes
    ----------
    label
        What the user called it: ``webgpu:1``, ``tracker:firefox``.
    platform
        Empty where it could not be opened.
    name, vendor, driver, compiler
        As the device tells them; the compiler is empty where it tells none.
    fingerprint
        Changes with the driver.
    problem
        Why it ran nothing, or nothing further; empty where nothing was wrong.
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
        # A browser's driver version is what its vendor's text begins with.
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
    """A device while a matrix is run: opened when entered, opened anew after a kernel took it down.

    Parameters
    ----------
    label
        What the user called it.
    connect
        Opens a session with it.

    Attributes
    ----------
    session
        None where it could not be opened, or is lost for good.
    problem
        Why; empty otherwise.
    exit_code
        Of the error that it was lost with.
    missed
        Of what kept an operator from running on it that it came back from; 0 where nothing did.
    """

    def __init__(self, label: str, connect: Callable[[], Session]) -> None:
        self.label = label
        self.session: Session | None = None
        self.problem = ""
        self.exit_code = self.missed = 0
        self._connect = connect
        self._description: DeviceDescription | None = None
        self._memory: ReplayMemory | None = None

    def open(self) -> None:
        """Open it; what keeps it from that is its problem and nobody else's.

        Raises
        ------
        InputError
            If it is the first time, and what was asked for means no device, or another column's.
        """
        self.close()
        try:
            session = self._connect()
        except (TapmlError, OSError) as error:
            if self.problem:
                self.problem = f"{self.problem}; and it does not come back: {error}"
            elif isinstance(error, InputError):
                # Nobody's fault but the command's, and known before anything has run.
                raise
            else:
                self.problem, self.exit_code = str(error), exit_code_of(error)
            return
        if self._description is not None and fingerprint(session.device) != self.fingerprint:
            self.problem = "the device that came back is another one"
            session.close()
            return
        self.session, self._description = session, session.device
        self.problem, self.exit_code = "", 0

    def close(self) -> None:
        """Give the session back."""
        session, self.session, self._memory = self.session, None, None
        if session is not None:
            # What is lost has nothing more to say.
            with suppress(TapmlError, OSError):
                session.close()

    def lose(self, why: str, exit_code: int) -> None:
        """Its device is lost: try to open it anew, with another process behind it."""
        self.problem, self.exit_code = why, exit_code
        self.open()

    @property
    def memory(self) -> ReplayMemory:
        """Guarded memory on the device, kept while it lives."""
        assert self.session is not None, self.problem  # noqa: S101 - asked of open columns alone
        if self._memory is None:
            self._memory = ReplayMemory(self.session, self.description.limits.memory_bytes)
        return self._memory

    @property
    def description(self) -> DeviceDescription:
        """The device as it was described when it was first opened."""
        assert self._description is not None, self.problem  # noqa: S101 - likewise
        return self._description

    @property
    def platform(self) -> str:
        """Its platform; empty where it could not be opened."""
        return self.description.platform if self.opened else ""

    @property
    def opened(self) -> bool:
        """Whether it could be opened at all."""
        return self._description is not None

    @property
    def fingerprint(self) -> str:
        """Of the device."""
        return fingerprint(self.description)

    def implementation(self) -> Implementation:
        """It, for a report."""
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


def columns_of(connecting: Mapping[str, Callable[[], Session]], count: int) -> list[Column]:
    """One column for every device.

    Parameters
    ----------
    count
        How many were named: a name that came twice is there once.

    Raises
    ------
    InputError
        If there is none, or a name came twice. Opening one raises it as well where it is, under
        another name, the device of a column before it.
    """
    if not connecting:
        raise InputError("expected at least one device to validate on, got none")
    if len(connecting) < count:
        raise InputError(
            f"a device is named twice among {count}: {', '.join(connecting)} are the different "
            "ones; name each once"
        )
    known: dict[tuple[object, ...], str] = {}
    return [
        Column(label, partial(_connect_to_another, label, connect, known))
        for label, connect in connecting.items()
    ]


def exit_code_of(error: TapmlError | OSError) -> int:
    """What a command ends with that ends with this error."""
    return error.exit_code if isinstance(error, TapmlError) else TapmlError.exit_code


def _connect_to_another(
    label: str, connect: Callable[[], Session], known: dict[tuple[object, ...], str]
) -> Session:
    """A session with a device that no other column has; `known` are those that the columns have."""
    session = connect()
    device = session.device
    # A server has one device; a device of this machine gets a server for every session.
    there = (session.epoch,) if is_remote(label) else (device.platform, device.index)
    other = known.setdefault(there, label)
    if other == label:
        return session
    session.close()
    raise InputError(
        f"{label} is the same device as {other} ({device.name}), so there is nothing to compare; "
        "name each device once"
    )
