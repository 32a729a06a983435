"""What the installed ``tapml`` command calls: Ctrl-C while Python still imports is no traceback.

So this module imports nothing that takes time, and the command itself inside of what it guards.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command and return its exit code; 130 where it was interrupted early or late."""
    try:
        import gc
        import signal

        from tapml.cli.main import main as run

        exit_code = run()
        # At its end Python looks through all objects once more: a second where TVM and PyTorch are.
        gc.freeze()
        # What is left is Python's own end, where an interrupt would show a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        print("tapml: interrupted", file=sys.stderr)
        return 130
    return exit_code
