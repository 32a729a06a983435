"""Entry point of the installed ``tapml`` command; Ctrl-C ends it without a traceback.

This module imports nothing slow; the command is imported inside the guard.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command and return its exit code; 130 if it was interrupted."""
    try:
        _deliver_interrupts_again()
        _open_closed_streams()
        import gc
        import signal

        # With Python's 700, the collector walks over PyTorch and TVM so often that it takes an
        # eighth of a small migration.
        gc.set_threshold(50_000, 20, 20)
        from tapml.cli.main import main as run

        exit_code = run()
        # Skip Python's last garbage collection, a second with TVM and PyTorch.
        gc.freeze()
        # An interrupt during Python's shutdown would show a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        print("tapml: interrupted", file=sys.stderr)
        return 130
    return exit_code


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed.

    A service may be started without them. Their numbers would go to other files, which then got
    what is printed.
    """
    if sys.stdin is not None and sys.stdout is not None and sys.stderr is not None:
        return
    import os

    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - as a stream


def _deliver_interrupts_again() -> None:
    """Make a Ctrl-C that arrives within a finalizer or a callback end the command as well.

    Python prints and drops an exception that is raised there, a KeyboardInterrupt included. An
    import has such a callback, so nothing is imported before the hook is in its place.
    """
    ignore = sys.unraisablehook

    def deliver(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            import os
            import signal
            import threading

            # A moment later, when the main thread has left the finalizer.
            again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            ignore(unraisable)

    sys.unraisablehook = deliver
