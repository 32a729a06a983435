"""The error tree: every error a user can meet, with the exit code the command line gives it.

Raised where the fault is known; a message says what was expected, what came and what to do next.
The tree lives in the lowest package so that a device without the toolkit raises the same classes.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_MISMATCH = 1
EXIT_USAGE = 2
EXIT_NO_DEVICE = 3
EXIT_DEVICE_LOST = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class TapmlError(Exception):
    """Base of all errors raised on purpose."""

    exit_code: ClassVar[int] = EXIT_USAGE


class InputError(TapmlError):
    """The user's input cannot be used: a path, a name, a shape, a prompt."""


class SetupError(TapmlError):
    """The machine lacks something: a package, a tool, disk space, a free session."""


class UnreachableError(SetupError):
    """Nothing answers at the address of a device or a tracker."""

    exit_code: ClassVar[int] = EXIT_NO_DEVICE


class UnsupportedOperatorError(InputError):
    """The model uses an operator that cannot be imported."""


class CompileError(TapmlError):
    """An operator could not be compiled for a target; the compiler's text is in the message."""


class CompilerFailedError(CompileError):
    """A compiler ended, or failed with an error of its own, where it should compile or refuse."""


class LimitExceededError(CompileError):
    """A kernel needs more than the device has."""


class RefusedError(InputError):
    """A library refuses a model or a setting that it does not support."""


class WrongJobError(InputError):
    """A function of a user's training job returns something that cannot be used."""


class MismatchError(TapmlError):
    """A target's result differs from the reference beyond the policy."""

    exit_code: ClassVar[int] = EXIT_MISMATCH


class NoSuchDeviceError(TapmlError):
    """The device asked for does not exist here."""

    exit_code: ClassVar[int] = EXIT_NO_DEVICE


class ProtocolError(TapmlError):
    """A peer broke the protocol."""


class RemoteError(TapmlError):
    """A command failed on the device.

    Attributes
    ----------
    remote_traceback
        The traceback on the device's side, as text.
    command
        The command that failed, as text.
    driver_log
        Output of the platform's compiler or driver.
    """

    def __init__(
        self,
        message: str,
        *,
        remote_traceback: str = "",
        command: str = "",
        driver_log: str = "",
    ) -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback
        self.command = command
        self.driver_log = driver_log


class DeviceLostError(RemoteError):
    """The server or the device behind it is gone."""

    exit_code: ClassVar[int] = EXIT_DEVICE_LOST


class ReferenceFailedError(TapmlError):
    """The device that is the reference failed: no verdict about the target."""


class ReferenceLostError(ReferenceFailedError):
    """The device that is the reference was lost, or its server has ended."""

    exit_code: ClassVar[int] = EXIT_DEVICE_LOST


class DeviceRestartedError(DeviceLostError):
    """The device was reopened, by its server or a new one; older handles are invalid."""


class KernelTimeoutError(DeviceLostError):
    """A kernel did not end before its deadline."""
