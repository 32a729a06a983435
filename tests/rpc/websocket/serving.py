"""A supervisor's hub behind the WebSocket binding alone, in a process of its own."""

from __future__ import annotations

import argparse
import json
import signal
import ssl
import threading
from pathlib import Path

from tapml.cli.server_options import add_serve_options, serve_options
from tapml_rpc.child_process import prepared_environment
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.websocket_front import STALL_SECONDS, WebSocketFront
from tapml_targets.driver_discovery import use_environment
from tapml_targets.ranking import find_device
from tests.rpc.announced import AnnouncedProcess
from tests.rpc.websocket.one_token import OneToken

ROOT = Path(__file__).parents[3]


def main() -> None:
    parser = argparse.ArgumentParser()
    add_serve_options(parser)
    parser.add_argument("--token")
    parser.add_argument("--stall", type=float, default=STALL_SECONDS)
    parser.add_argument("--pem")
    arguments = parser.parse_args()
    options = serve_options(arguments)
    device = find_device(options.device)
    use_environment(prepared_environment(device.platform))
    hub = Hub(device, options)
    hub.start()
    context = None
    if arguments.pem:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(arguments.pem)
    front = WebSocketFront(
        hub,
        "127.0.0.1",
        0,
        tokens=OneToken(arguments.token) if arguments.token else None,
        ssl_context=context,
        stall_seconds=arguments.stall,
    )
    print(json.dumps({"address": front.address}), flush=True)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    # Another thread may have taken the signal: a handler runs when this one looks.
    while not stopping.wait(0.1):
        pass
    front.close()
    hub.close()


class WebSocketServer(AnnouncedProcess):
    """That process."""

    def __init__(self, *arguments: str, device: str = "opencl:0") -> None:
        super().__init__(__name__, "--device", device, *arguments, in_order=True)


if __name__ == "__main__":
    main()
