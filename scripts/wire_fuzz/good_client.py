"""A well-behaved client that runs during fuzzing and measures the time of its answers.

``python -m scripts.wire_fuzz.good_client ADDRESS`` runs operator tests with checked results until
its standard input ends, then prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from scripts.wire_fuzz.kernel import operator_test, packed_library
from tapml_rpc.client import Session, connect
from tapml_targets.errors import TapmlError

# Leaves the processor to the server and the fuzzer.
_PAUSE_SECONDS: Final = 0.005
_STREAMED_EVERY: Final = 50
_STREAMED_BYTES: Final = 3 << 20
_PATIENCE_SECONDS: Final = 30


@dataclass
class Experience:
    """Its experience with the server.

    Attributes
    ----------
    operations
        Operator tests with the right result.
    worst_seconds
        The longest of them.
    error
        The error, if any.
    """

    operations: int = 0
    worst_seconds: float = 0.0
    error: str = ""


class GoodClient:
    """Handle of the client's process, which finds its keys in `environ`."""

    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.wire_fuzz.good_client", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environ,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the good client did not get its first result")

    @property
    def ended(self) -> bool:
        """Whether it has given up."""
        return self._process.poll() is not None

    def end(self) -> Experience:
        """Stop it and get its report."""
        try:
            output, _ = self._process.communicate(timeout=_PATIENCE_SECONDS)
            return Experience(**json.loads(output))
        except (subprocess.TimeoutExpired, ValueError) as error:
            self._process.kill()
            self._process.communicate()
            return Experience(error=f"it gave no account of itself: {error}")


def _stream(session: Session, turn: int) -> None:
    data = np.full(_STREAMED_BYTES, turn % 251, np.uint8)
    buffer = session.allocate(data.nbytes)
    session.write(buffer, data)
    found = np.frombuffer(session.read(buffer), np.uint8)
    session.free(buffer)
    if not np.array_equal(found, data):
        raise ValueError("a streamed read is wrong")


def _work(session: Session, experience: Experience) -> None:
    library = session.upload(packed_library())
    operator_test(session, library, 0)
    _stream(session, 0)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0]:
        started = time.monotonic()
        operator_test(session, library, experience.operations)
        if experience.operations % _STREAMED_EVERY == 0:
            _stream(session, experience.operations)
        taken = time.monotonic() - started
        experience.worst_seconds = max(experience.worst_seconds, round(taken, 4))
        experience.operations += 1


def main(arguments: list[str] | None = None) -> int:
    """Run operator tests until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    options = parser.parse_args(arguments)
    experience = Experience()
    try:
        with connect(options.address) as session:
            _work(session, experience)
    except (TapmlError, ValueError) as error:
        experience.error = f"{type(error).__name__}: {error}"
    account: dict[str, Any] = asdict(experience)
    print(json.dumps(account), flush=True)
    return 1 if experience.error else 0


if __name__ == "__main__":
    sys.exit(main())
