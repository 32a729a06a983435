"""Results that come with the answer of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tapml_rpc import wire
from tapml_targets.errors import InputError, ProtocolError, TapmlError


@dataclass(frozen=True)
class CallResult:
    """What a call reported.

    Attributes
    ----------
    kernel_nanoseconds
        Time in kernels as the device measured it; None if it was not asked for.
    damaged_guards
        Workspaces around which a kernel wrote; checked only if workspaces were poisoned.
    """

    kernel_nanoseconds: int | None
    damaged_guards: tuple[str, ...]


class Pending:
    """A result that has not come; the link sets `value` when the answer comes."""

    __slots__ = ("_error", "_ready")

    def __init__(self) -> None:
        self._ready = False
        self._error: TapmlError | None = None

    def fail(self, error: TapmlError) -> None:
        """Note that the result will not come, and why."""
        if not self._ready:
            self._ready = True
            self._error = error

    def room(self, offset: int, nbytes: int) -> memoryview:
        """Where the next piece of a streamed result belongs."""
        raise ProtocolError("the server streamed a result that has no bytes")

    def arrived(self, nbytes: int) -> None:
        """Note that the last :meth:`room` has been filled."""

    def place(self, offset: int, data: memoryview) -> None:
        """Take a piece of a streamed result from elsewhere."""
        self.room(offset, len(data))[:] = data
        self.arrived(len(data))

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take the value in the answer; `chunk` is the answer's."""
        raise NotImplementedError

    def _check(self) -> None:
        if not self._ready:
            raise InputError("this result comes when its batch ends: leave the `with` block first")
        if self._error is not None:
            raise self._error


PendingResults: TypeAlias = "dict[int | tuple[int, int], Pending]"
"""Expected results, by the command that gives them: in a batch, or in a program it runs."""


class PendingRead(Pending):
    """The future result of a read: an array of `nbytes` bytes."""

    __slots__ = ("_data", "_received", "_streamed", "nbytes")

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes
        self._data = memoryview(b"")
        self._streamed = False
        self._received = 0

    def room(self, offset: int, nbytes: int) -> memoryview:
        """Where a piece belongs; pieces come in order."""
        if offset != self._received or offset + nbytes > self.nbytes:
            raise ProtocolError(
                f"the server sent bytes {offset} to {offset + nbytes} of a read of {self.nbytes}"
            )
        if not self._streamed:
            self._streamed = True
            self._data = fresh_memory(self.nbytes)
        return self._data[offset : offset + nbytes]

    def arrived(self, nbytes: int) -> None:
        """Count a piece."""
        self._received += nbytes

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take ``[position, length]`` in the chunk, or the length of what was streamed."""
        if self._streamed:
            if self._received != self.nbytes:
                raise ProtocolError(f"{self._received} of {self.nbytes} bytes came")
        else:
            position, length = wire.array(value, "read result", 2)
            start = wire.integer(position, "position")
            if length != self.nbytes or start + length > len(chunk):
                raise ProtocolError(f"an answer of {length} bytes to a read of {self.nbytes}")
            self._data = chunk[start : start + length]
        self._ready = True

    def result(self) -> memoryview:
        """The bytes.

        Raises
        ------
        InputError
            If the batch has not ended.
        TapmlError
            The error that kept the read from running.
        """
        self._check()
        return self._data


def fresh_memory(nbytes: int) -> memoryview:
    """Memory to receive into: numpy, if installed, does not clear it first."""
    try:
        import numpy as np
    except ModuleNotFoundError:
        return memoryview(bytearray(nbytes))
    return np.empty(nbytes, np.uint8).data


class PendingValue(Pending):
    """A plain value: the result of a load or a query of held Libraries."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        super().__init__()
        self._value: Any = None

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take the value."""
        self._value = value
        self._ready = True

    def result(self) -> Any:
        """The value; raises as :meth:`PendingRead.result` does."""
        self._check()
        return self._value


class PendingCall(Pending):
    """The report of a timed or poisoned call."""

    __slots__ = ("_result",)

    def __init__(self) -> None:
        super().__init__()
        self._result = CallResult(None, ())

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take ``[nanoseconds or nil, damaged workspaces]``."""
        nanoseconds, damaged = wire.array(value, "call result", 2)
        self._result = CallResult(
            None if nanoseconds is None else wire.integer(nanoseconds, "nanoseconds"),
            tuple(wire.text(name, "workspace") for name in wire.array(damaged, "workspaces")),
        )
        self._ready = True

    def result(self) -> CallResult:
        """The report; raises as :meth:`PendingRead.result` does."""
        self._check()
        return self._result
