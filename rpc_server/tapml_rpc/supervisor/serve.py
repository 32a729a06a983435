"""``tapml rpc serve``: a supervisor for one device of this machine.

The address is printed as one JSON line on standard output once the device has been opened in a
worker; everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import signal
import sys
from types import FrameType

from tapml_rpc import wire
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.local import prepared_environment
from tapml_rpc.options import ServerOptions, add_arguments, options_from
from tapml_rpc.security.bind import bracketed, check_bind
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.zmq_front import ZmqFront
from tapml_targets.description_format import to_plain
from tapml_targets.errors import TapmlError
from tapml_targets.ranking import find_device

_BLOB_BYTES = 4 << 30


def serve(options: ServerOptions) -> int:
    """Serve a device until a signal. Returns the exit code.

    Raises
    ------
    SetupError
        If the address cannot be used.
    NoSuchDeviceError
        If there is no such device.
    """
    host, port = check_bind(options.bind, secret=False)
    device = find_device(options.device)
    # Workers are born with what their driver's loader needs.
    os.environ.update(prepared_environment(device.platform, {}))
    faulthandler.enable()
    stopping = _StopRequest()
    hub = Hub(device, options, BlobStore(_BLOB_BYTES))
    try:
        hub.start()
        shown = bracketed(host)
        front = ZmqFront(
            hub, f"tcp://{shown}:{port or '*'}", f"tcp://{shown}:{options.data_port or '*'}"
        )
        # What start-up made stays: the collector need not look at it again.
        gc.freeze()
        line = {
            "address": front.address,
            "device": to_plain(device),
            "epoch": hub.epoch.hex(),
            "pid": os.getpid(),
            "protocol": wire.VERSION,
        }
        print(json.dumps(line), flush=True)
        front.run(stopping.asked)
    finally:
        hub.close()
    return 0


class _StopRequest:
    """Signals, as a question."""

    def __init__(self) -> None:
        self._signalled = False
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def asked(self) -> bool:
        return self._signalled

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``python -m tapml_rpc.supervisor.serve``."""
    parser = argparse.ArgumentParser(prog="tapml rpc serve", description=__doc__)
    add_arguments(parser)
    try:
        return serve(options_from(parser.parse_args(arguments)))
    except TapmlError as error:
        print(f"tapml rpc serve: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
