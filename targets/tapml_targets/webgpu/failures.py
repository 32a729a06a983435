"""wgpu's errors as tapml's.

wgpu raises an error in the call that caused it. Errors without a call, such as a lost device or a
fault during execution, go to its log. They are kept here and reported with the next failure or
wait.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from typing import Any, Final

from tapml_targets.errors import CompileError, DeviceLostError, RemoteError, SetupError, TapmlError
from tapml_targets.vulkan_loader.validation import is_checking

_LOST: Final = re.compile(r"device (?:is |was )?lost|DeviceLost|DEVICE LOST", re.IGNORECASE)
# wgpu logs a lost device in two lines, and only the second gives the reason.
_EXPECTED: Final = re.compile(r"^DEVICE LOST!$|device was lost \((?:destroyed|CallbackCancelled)\)")
_LAYERS: Final = ("VALIDATION [", "objects: (")
_NO_MEMORY: Final = re.compile(r"not enough memory|out of memory", re.IGNORECASE)
_MAX_KEPT: Final = 32
_MAX_TEXT: Final = 8000


class ErrorLog(logging.Handler):
    """Errors that wgpu logged and that are not yet reported."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._kept: deque[str] = deque(maxlen=_MAX_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's text, unless it is about a device that was closed, or a layer's."""
        text = record.getMessage()
        # What a layer that checks finds is in its own log.
        layers = is_checking() and text.lstrip().startswith(_LAYERS)
        if not layers and not _EXPECTED.search(text):
            self._kept.append(text)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def take(self) -> str:
        """Return and forget the kept texts, each once."""
        texts = []
        while self._kept:
            texts.append(self._kept.popleft())
        return "\n".join(dict.fromkeys(texts))


_LOG: Final = ErrorLog()


def error_log() -> ErrorLog:
    """The log of this process; wgpu has one for all devices.

    Call it after wgpu is imported, which creates a logger of its own class.
    """
    logger = logging.getLogger("wgpu")
    if _LOG not in logger.handlers:
        logger.addHandler(_LOG)
    return _LOG


def caught(wgpu: Any) -> tuple[type[BaseException], ...]:
    """Exceptions of wgpu's calls: its own, and Python's from its argument checks."""
    # BaseException as the type: wgpu has no stubs, and `except` wants one.
    return (wgpu.GPUError, RuntimeError, ValueError, TypeError, OverflowError, OSError)


def failure(device: str, what: str, error: object) -> TapmlError:
    """The error for the failed operation `what`: no memory, a lost device, or another.

    `error` is an exception or a text.
    """
    log = _LOG.take()
    text = _joined(error, log)
    if _LOST.search(text):
        return DeviceLostError(
            f"{device}: {what} failed: the device is lost: {text}; open it again",
            command=what,
            driver_log=log,
        )
    if type(error).__name__ == "GPUOutOfMemoryError" or _NO_MEMORY.search(text):
        return SetupError(f"{device}: {what}: {text}; free buffers or use a smaller model")
    return RemoteError(f"{device}: {what} failed: {text}", command=what, driver_log=text)


def compile_failure(device: str, kernel: str, error: object) -> TapmlError:
    """The error for a kernel that was not built, with the compiler's messages."""
    log = _LOG.take()
    text = _joined(error, log)
    if _LOST.search(text):
        return failure(device, f"building kernel {kernel!r}", text)
    return CompileError(f"{device} does not build kernel {kernel!r}:\n{text}")


def _joined(error: object, log: str) -> str:
    text = str(error).strip() or type(error).__name__
    if log and log not in text:
        text = f"{text}\n{log}"
    return text[:_MAX_TEXT]
