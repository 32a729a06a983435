"""``tapml rpc serve``: a supervisor for one device of this machine."""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml_rpc import wire
from tapml_rpc.child_process import prepared_environment
from tapml_rpc.memory import keep_freed_memory
from tapml_rpc.security.bind import bracketed, check_bind, check_effects
from tapml_rpc.security.standing import listed_key
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.waking import StopRequest
from tapml_targets.description import to_plain
from tapml_targets.driver_discovery import use_environment
from tapml_targets.errors import InputError, SetupError
from tapml_targets.limit_profiles import narrowed
from tapml_targets.ranking import find_device

if TYPE_CHECKING:
    from tapml_rpc.security.curve import ServerCurve
    from tapml_rpc.supervisor.websocket_front import WebSocketFront
    from tapml_rpc.supervisor.zmq_front import ZmqFront
    from tapml_rpc.tracker.registration import Registration


_LOOK_SECONDS: Final = 0.1


def serve(options: SupervisorOptions, announce: Callable[[dict[str, Any]], None]) -> int:
    """Serve a device until a signal: the exit code. Raises TapmlError if it cannot.

    `announce` is called with what a line of JSON is to say, once the device has been opened in a
    worker.
    """
    _check_bindings(options)
    _check_tracker(options)
    check_effects(options)
    curve = _curve(options)
    host, port = check_bind(options.bind, secret=curve is not None)
    device = find_device(options.device)
    if options.limits:
        device = narrowed(device, options.limits)
    # Workers inherit what their driver's loader needs.
    use_environment(prepared_environment(device.platform))
    faulthandler.enable()
    keep_freed_memory()
    stopping = StopRequest()
    with ExitStack() as stack:
        hub = Hub(device, options)
        stack.callback(hub.close)
        if not hub.start(stopping.asked):
            return 0
        front = _zmq_front(hub, host, port, curve) if _has_zmq() else None
        line: dict[str, Any] = {
            "address": "" if front is None else front.address,
            "device": to_plain(device),
            "epoch": hub.epoch.hex(),
            "pid": os.getpid(),
            "protocol": wire.VERSION,
        }
        if curve is not None:
            hub.standing.add(listed_key(curve.clients))
            line["server_key"] = curve.keys.public
        pages = None
        if options.websocket:
            pages, secrets = _websocket(hub, options)
            stack.callback(pages.close)
            line |= {"websocket": pages.address, **secrets}
        if options.tracker:
            stack.enter_context(_registration(hub, options, _reached(options, front, pages), line))
        # What start-up made stays: the garbage collector need not visit it again, nor wait until
        # sessions have left a quarter as much behind.
        gc.freeze()
        gc.collect()
        announce(line)
        if front is not None:
            front.run(stopping.asked)
        while not stopping.asked():
            # The other binding has its own thread.
            time.sleep(_LOOK_SECONDS)
    return 0


def _has_zmq() -> bool:
    return importlib.util.find_spec("zmq") is not None


def _check_bindings(options: SupervisorOptions) -> None:
    """Check the bindings: a board may lack ZeroMQ, and then serves WebSocket only."""
    if _has_zmq():
        return
    asks = ["key"] if options.key else []
    asks += ["tracker tcp://..."] if options.tracker.startswith("tcp://") else []
    if asks or not options.websocket:
        raise SetupError(
            "pyzmq is not installed here, so this device is served over WebSocket alone: give "
            "--websocket ws://127.0.0.1:PORT"
            + (f", and leave out {' and '.join(f'--{name}' for name in asks)}" if asks else "")
        )


def _check_tracker(options: SupervisorOptions) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("name", "through_tracker")
        if getattr(options, name)
    ]
    if given and not options.tracker:
        raise InputError(
            f"{' and '.join(given)} without a tracker: give --tracker tcp://HOST:PORT as well, "
            "where `tapml rpc tracker` runs"
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

    return ServerCurve.from_files(Path(options.key).expanduser(), _path(options.clients))


def _websocket(hub: Hub, options: SupervisorOptions) -> tuple[WebSocketFront, dict[str, str]]:
    """The front, and what the announcement says about its secrets."""
    from tapml_rpc.supervisor.websocket_front import WebSocketFront
    from tapml_rpc.websocket.admission import LOOPBACK_ORIGINS, LeaseGuard, prepare

    listening = prepare(
        options.websocket,
        tokens=_path(options.tokens),
        certificate=str(_path(options.certificate) or ""),
        certificate_key=str(_path(options.certificate_key) or ""),
    )
    guard = None
    if listening.tokens is not None:
        hub.standing.add(listening.tokens.revoked)
        guard = LeaseGuard(hub.holder, listening.tokens)
    front = WebSocketFront(
        hub,
        listening.host,
        listening.port,
        tokens=guard,
        ssl_context=listening.context,
        origins=(*LOOPBACK_ORIGINS, *options.origins),
    )
    return front, listening.announced


def _reached(
    options: SupervisorOptions, front: ZmqFront | None, pages: WebSocketFront | None
) -> dict[str, Any]:
    """The addresses at which a tracker's clients, or its relay, reach this device."""
    from tapml_rpc.tracker.connection import is_websocket
    from tapml_rpc.tracker.records import on_this_machine

    if front is None or (options.through_tracker and is_websocket(options.tracker)):
        if pages is None:
            raise InputError(
                "a tracker's ws:// or wss:// address relays only a device's WebSocket binding: "
                "give --websocket ws://127.0.0.1:0 as well"
            )
        return {"address": pages.address}
    if options.through_tracker:
        return {"address": front.address, "data_address": front.data_address}
    both = [front.address, *([pages.address] if pages is not None else [])]
    # If one is open to others, the one that is not need not be announced.
    address, *beside = [each for each in both if not on_this_machine(each)] or both
    return {"address": address, "websocket": "".join(beside)}


def _registration(
    hub: Hub, options: SupervisorOptions, reached: dict[str, Any], line: dict[str, Any]
) -> Registration:
    from tapml_rpc.tracker.registration import Registration
    from tapml_rpc.tracker.request import tracker_credentials

    return Registration(
        options.tracker,
        hub.device,
        **reached,
        name=options.name or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63],
        relayed=options.through_tracker,
        server_key=line.get("server_key", ""),
        certificate=line.get("fingerprint", ""),
        load=hub.load,
        on_lease=hub.lend,
        on_lease_ended=hub.take_back,
        credentials=tracker_credentials(options.tracker),
    )


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
