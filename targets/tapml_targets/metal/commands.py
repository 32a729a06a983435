"""The commands of a device in their order: encoded, committed, waited for, timed.

One command buffer is open at a time, and one encoder in it, for kernels or for copies. Encoders of
a queue run one after another and kernels of an encoder that touch the same memory as well, so
nothing else keeps the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tapml_targets.errors import DeviceLostError, RemoteError
from tapml_targets.metal.api import said

# A GPU idles while a whole model is encoded, and where each kernel is committed by itself.
_MOST_COMMANDS: Final = 256
_NANOSECONDS: Final = 1_000_000_000


class CommandStream:
    """Encodes commands into command buffers of one queue.

    Parameters
    ----------
    metal
        The module of the binding.
    device
        The MTLDevice.
    name
        The device's name, for errors.
    """

    def __init__(self, metal: Any, device: Any, name: str) -> None:
        self._metal = metal
        self._queue = device.newCommandQueue()
        self._name = name
        self._open: Any = None
        self._encoder: Any = None
        self._computes = False
        self._count = 0
        self._committed: list[Any] = []
        self._timed: list[Any] | None = None
        self._what = ""

    @property
    def idle(self) -> bool:
        """Whether everything that was encoded is known to have ended."""
        return self._open is None and not self._committed

    def compute(self, what: str) -> Any:
        """The encoder of kernels; `what` is to be encoded, for errors."""
        return self._encoding(what, computes=True)

    def blit(self, what: str) -> Any:
        """The encoder of copies and fills."""
        return self._encoding(what, computes=False)

    def flush(self) -> None:
        """Commit what was encoded; it runs from now on."""
        if self._open is None:
            return
        self._end_encoder()
        self._open.commit()
        self._committed.append(self._open)
        if self._timed is not None:
            self._timed.append(self._open)
        self._open, self._count = None, 0

    def finish(self) -> None:
        """Wait for everything.

        Raises
        ------
        RemoteError
            If a command failed on the device.
        DeviceLostError
            If the device is gone.
        """
        self.flush()
        committed, self._committed = self._committed, []
        for buffer in committed:
            buffer.waitUntilCompleted()
        for buffer in committed:
            self._check(buffer)

    def begin_timing(self) -> None:
        """Note the command buffers from here on."""
        self.flush()
        self._timed = []

    def end_timing(self) -> Callable[[], int]:
        """The nanoseconds that the GPU worked on the noted ones, once they have ended."""
        self.flush()
        noted, self._timed = self._timed or [], None

        def elapsed() -> int:
            seconds = sum(each.GPUEndTime() - each.GPUStartTime() for each in noted)
            return round(float(seconds) * _NANOSECONDS)

        return elapsed

    def close(self) -> None:
        """End the open encoder, which Metal demands before it is released."""
        self._end_encoder()
        self._open = None
        self._committed.clear()

    def _encoding(self, what: str, *, computes: bool) -> Any:
        self._what = what
        self._count += 1
        if self._count > _MOST_COMMANDS:
            self.flush()
            self._count = 1
        if self._open is None:
            self._open = self._queue.commandBuffer()
            if self._open is None:
                raise RemoteError(f"{self._name} gives no command buffer for {what}", command=what)
        if self._encoder is None or self._computes != computes:
            self._end_encoder()
            buffer = self._open
            self._encoder = (
                buffer.computeCommandEncoder() if computes else buffer.blitCommandEncoder()
            )
            self._computes = computes
        return self._encoder

    def _end_encoder(self) -> None:
        if self._encoder is not None:
            self._encoder.endEncoding()
            self._encoder = None

    def _check(self, buffer: Any) -> None:
        if buffer.status() != self._metal.MTLCommandBufferStatusError:
            return
        error = buffer.error()
        text = said(error) or "the GPU stopped without a reason"
        where = f"{self._name}: commands up to {self._what} failed: {text}"
        gone = (
            self._metal.MTLCommandBufferErrorDeviceRemoved,
            self._metal.MTLCommandBufferErrorAccessRevoked,
        )
        if error is not None and error.code() in gone:
            raise DeviceLostError(where)
        raise RemoteError(where, command=self._what, driver_log=text)
