"""A server that only welcomes and answers, on the sockets a real one has; run as a process.

``python curve_server.py SECRET_FILE ALLOW_LIST`` prints its control address, and on standard error
what an operator would read. With ``-`` for the secret file it is a server without keys.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import zmq

from tapml_rpc import wire
from tapml_rpc.security.curve import Authenticator, ServerCurve, client_identity
from tapml_rpc.welcome import Bounds
from tapml_rpc.zeromq.router import RouterBounds, bind_router
from tapml_targets.description import to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.limits import Limits

DEVICE = DeviceDescription("opencl", 0, "none", "none", "cpu", "0", Limits())


def main(keys: str, clients: str) -> None:
    """Welcome whoever gets in; a batch is answered with who sent it."""
    curve = None if keys == "-" else ServerCurve.from_files(Path(keys), Path(clients))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    if curve is not None:
        Authenticator(context, curve.clients)
    control, _of_control = bind_router(context, "tcp://127.0.0.1:0", RouterBounds(), curve)
    data, _of_data = bind_router(context, "tcp://127.0.0.1:0", RouterBounds(), curve)
    poller = zmq.Poller()
    poller.register(control, zmq.POLLIN)
    poller.register(data, zmq.POLLIN)
    print(control.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        for socket, _ in poller.poll():
            frames = socket.recv_multipart(copy=False)
            header = wire.unpack(frames[1].bytes)
            answer = _answer(header, data, client_identity(frames[1], curve))
            if answer is not None:
                with suppress(zmq.ZMQError):  # who asked has gone
                    socket.send_multipart([frames[0].bytes, wire.pack(answer)])


def welcome(data_address: str) -> wire.Header:
    """What a hello is answered by."""
    return {
        "type": "welcome",
        "version": wire.VERSION,
        "features": [],
        "device": to_plain(DEVICE),
        "bounds": Bounds().to_wire(),
        "epoch": b"epoch",
        "session": b"session",
        "data_address": data_address,
    }


def _answer(header: wire.Header, data: zmq.Socket[bytes], identity: str) -> wire.Header | None:
    if header["type"] == "hello":
        return welcome(data.getsockopt_string(zmq.LAST_ENDPOINT))
    if header["type"] == "ping":
        return {"type": "pong", "sequence": header["sequence"]}
    if header["type"] == "batch":
        return {"type": "done", "sequence": header["sequence"], "results": [[0, identity]]}
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
