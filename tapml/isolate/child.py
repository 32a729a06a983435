"""What a forked child does: run one job, write its outcome, end."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import traceback
from importlib import import_module
from typing import Any

from tapml.isolate.frame import encode
from tapml_targets.errors import TapmlError

_PR_SET_PDEATHSIG = 1


def run_child(location: str, payload: Any, result_fd: int, output_fd: int) -> None:
    """Run the job at `location` (``module:function``) and leave the process; never returns."""
    code = 1
    try:
        _detach(output_fd)
        _write_all(result_fd, encode(_outcome(location, payload)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        # No interpreter shutdown: the warm modules' exit handlers belong to the server.
        os._exit(code)


def _outcome(location: str, payload: Any) -> dict[str, Any]:
    try:
        module, _, function = location.partition(":")
        return {"result": getattr(import_module(module), function)(payload)}
    except TapmlError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:
        return {
            "error": "TapmlError",
            "message": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc()[-8000:],
        }


def _detach(output_fd: int) -> None:
    """Own process group, output into a file, no core dumps, and an end when the server ends."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The last words of a crash: where Python was, even when the stack is full.
    faulthandler.enable(file=2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_parent()


def end_with_parent() -> None:
    """Ask Linux to kill this process when the thread that made it ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
