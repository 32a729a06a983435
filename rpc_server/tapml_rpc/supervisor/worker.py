"""The process that runs one session: ``python -m tapml_rpc.supervisor.worker``.

It ends with its supervisor, and is killed before others when memory runs out.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

from tapml_rpc.supervisor.board import STACK_SIGNAL, Board
from tapml_rpc.supervisor.pipe import Pipe
from tapml_rpc.supervisor.ring import Ring
from tapml_rpc.supervisor.worker_loop import Worker

_PR_SET_PDEATHSIG: Final = 1
# Priority for the system's out-of-memory killer: -1000 never, 1000 first.
_OOM_SCORE: Final = "700"
# Drivers that load machine code check this.
_ALLOW_VARIABLE: Final = "TAPML_ALLOW_SHARED_LIBRARIES"


def _stay_behind_nobody(parent: int) -> None:
    """End with the supervisor, however that ends and whatever a driver is doing here."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def main() -> int:
    """Entry point of the worker."""
    parser = argparse.ArgumentParser(prog="tapml_rpc.supervisor.worker")
    for name in ("--socket", "--up", "--down", "--board", "--parent"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--limits", default="")
    parser.add_argument("--allow-shared-libraries", action="store_true")
    options = parser.parse_args()
    _stay_behind_nobody(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(STACK_SIGNAL, all_threads=True)
    os.environ[_ALLOW_VARIABLE] = str(int(options.allow_shared_libraries))
    pipe = Pipe(socket.socket(fileno=options.socket))
    worker = Worker(
        pipe,
        Ring(options.up),
        Ring(options.down),
        Board(options.board),
        allow_native=options.allow_shared_libraries,
    )
    try:
        worker.run(options.device, options.limits)
    except ConnectionError:
        # The supervisor is gone. Other system faults, such as no memory for one, are reported.
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # A driver's threads may outlive the interpreter.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
