"""``tapml rpc serve``: a supervisor for one device of this machine.

Its addresses are printed as one JSON line on standard output once the device has been opened in a
worker; everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib.util
import os
import re
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tapml_rpc import wire
from tapml_rpc.announcement import announce
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.local import prepared_environment
from tapml_rpc.security.bind import bracketed, check_bind
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.options import SupervisorOptions, add_arguments, options_from
from tapml_targets.description_format import to_plain
from tapml_targets.errors import InputError, SetupError, TapmlError
from tapml_targets.ranking import find_device

if TYPE_CHECKING:
    from tapml_rpc.security.curve import ServerCurve
    from tapml_rpc.supervisor.zmq_front import ZmqFront
    from tapml_rpc.tracker.registration import Registration
    from tapml_rpc.websocket.front import WebSocketFront

_WEBSOCKET: Final = ("ws", "wss")
_LOOK_SECONDS: Final = 0.1


def serve(options: SupervisorOptions) -> int:
    """Serve a device until a signal. Returns the exit code.

    Raises
    ------
    InputError
        If an address is none.
    SetupError
        If an address cannot be used, or needs a secret.
    NoSuchDeviceError
        If there is no such device.
    """
    _check_bindings(options)
    curve = _curve(options)
    host, port = check_bind(options.bind, secret=curve is not None)
    device = find_device(options.device)
    # Workers are born with what their driver's loader needs.
    os.environ.update(prepared_environment(device.platform, {}))
    faulthandler.enable()
    stopping = _StopRequest()
    with ExitStack() as stack:
        hub = Hub(device, options, _blobs(options))
        stack.callback(hub.close)
        hub.start()
        front = _zmq_front(hub, host, port, curve) if _has_zmq() else None
        line = {
            "address": "" if front is None else front.address,
            "device": to_plain(device),
            "epoch": hub.epoch.hex(),
            "pid": os.getpid(),
            "protocol": wire.VERSION,
        }
        if curve is not None:
            line["server_key"] = curve.keys.public
        if options.websocket:
            pages, secrets = _websocket(hub, options)
            stack.callback(pages.close)
            line |= {"websocket": pages.address, **secrets}
        if options.tracker and front is not None:
            stack.enter_context(_registration(hub, options, front, curve))
        # What start-up made stays: the collector need not look at it again.
        gc.freeze()
        announce(line)
        if front is not None:
            front.run(stopping.asked)
        while not stopping.asked():
            # The other binding has a thread of its own.
            time.sleep(_LOOK_SECONDS)
    return 0


def _has_zmq() -> bool:
    return importlib.util.find_spec("zmq") is not None


def _check_bindings(options: SupervisorOptions) -> None:
    """A board may lack ZeroMQ, and then serves WebSocket alone."""
    if _has_zmq():
        return
    asks = [name for name in ("key", "tracker") if getattr(options, name)]
    if asks or not options.websocket:
        raise SetupError(
            "pyzmq is not installed here, so this device is served over WebSocket alone: give "
            "--websocket ws://127.0.0.1:PORT"
            + (f", and leave out {' and '.join(f'--{name}' for name in asks)}" if asks else "")
        )


def _zmq_front(hub: Hub, host: str, port: int, curve: ServerCurve | None) -> ZmqFront:
    from tapml_rpc.supervisor.zmq_front import ZmqFront

    shown, data_port = bracketed(host), hub.options.data_port
    return ZmqFront(
        hub, f"tcp://{shown}:{port or '*'}", f"tcp://{shown}:{data_port or '*'}", curve=curve
    )


def _curve(options: SupervisorOptions) -> ServerCurve | None:
    if not options.key:
        return None
    from tapml_rpc.security.curve import ServerCurve

    return ServerCurve.from_files(Path(options.key), _path(options.clients))


def _blobs(options: SupervisorOptions) -> BlobStore | None:
    if not options.blob_bytes:
        return None
    return BlobStore(options.blob_bytes, options.blob_disk_bytes, _path(options.blob_folder))


def _websocket(hub: Hub, options: SupervisorOptions) -> tuple[WebSocketFront, dict[str, str]]:
    """The front, and what the announcement says of its secrets."""
    from tapml_rpc.security.certificates import given_certificate, host_names, own_certificate
    from tapml_rpc.security.tls import server_context
    from tapml_rpc.security.token import TokenBook, default_path
    from tapml_rpc.websocket.admission import LOOPBACK_ORIGINS
    from tapml_rpc.websocket.front import serve_websocket

    encrypted = urlsplit(options.websocket).scheme == "wss"
    tokens = _path(options.tokens)
    book = TokenBook(tokens or (default_path() if default_path().exists() else None))
    host, port = check_bind(options.websocket, secret=True, schemes=_WEBSOCKET)
    announced = {}
    guarded = bool(tokens) or not _is_loopback(options.websocket)
    if guarded:
        # Nobody was given one beforehand: whoever reads the announcement may come in.
        announced["token"] = book.issue("announced")
    context = None
    if encrypted:
        if bool(options.certificate) != bool(options.certificate_key):
            raise InputError("--certificate and --certificate-key go together")
        certificate = (
            given_certificate(Path(options.certificate), Path(options.certificate_key))
            if options.certificate
            else own_certificate(host_names(host))
        )
        announced["fingerprint"] = certificate.fingerprint
        context = server_context(certificate)
    origins: tuple[str | re.Pattern[str], ...] = (*LOOPBACK_ORIGINS, *options.origins)
    front = serve_websocket(
        hub,
        host,
        port,
        tokens=book if guarded else None,
        ssl_context=context,
        origins=origins,
    )
    return front, announced


def _is_loopback(address: str) -> bool:
    try:
        check_bind(address, secret=False, schemes=_WEBSOCKET)
    except TapmlError:
        return False
    return True


def _registration(
    hub: Hub, options: SupervisorOptions, front: ZmqFront, curve: ServerCurve | None
) -> Registration:
    from tapml_rpc.tracker.registration import Registration
    from tapml_rpc.tracker.spec import tracker_credentials

    return Registration(
        options.tracker,
        hub.device,
        front.address,
        name=options.name or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63],
        relayed=options.through_tracker,
        data_address=front.data_address,
        server_key="" if curve is None else curve.keys.public,
        load=hub.load,
        on_lease=hub.lend,
        on_lease_ended=hub.take_back,
        credentials=tracker_credentials(),
    )


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


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
