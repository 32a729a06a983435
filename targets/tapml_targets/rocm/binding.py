"""AMD's bindings of HIP and hiprtc: their functions return a status before what they give."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint


class HipError(Exception):
    """A call that failed; the status by its name, and in the library's words."""


def import_binding(name: str) -> Any:
    """Import ``rocm.bindings.hip`` or ``rocm.bindings.hiprtc``.

    The module imports on any machine; ROCm's library is looked for by the first call.

    Raises
    ------
    SetupError
        If it is not installed.
    """
    try:
        return importlib.import_module(f"rocm.bindings.{name}")
    except ImportError as error:
        raise SetupError(
            f"AMD GPUs need the package rocm-bindings-hip ({error}): {install_hint('rocm')}"
        ) from None


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the bindings; the result is what it gives, if anything.

    Raises
    ------
    HipError
        If its status is an error.
    """
    status, *found = function(*arguments)
    if int(status):
        called = getattr(function, "__name__", "a call")
        raise HipError(f"{called}: {getattr(status, 'name', status)} ({int(status)})")
    return found[0] if found else None
