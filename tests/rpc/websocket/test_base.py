"""The binding works on a machine that has neither numpy nor pyzmq."""

from __future__ import annotations

import subprocess
import sys

from tests.rpc.websocket.serving import ROOT, WebSocketServer

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "zmq"):
            raise ModuleNotFoundError(f"{name} is not installed on this board")
sys.meta_path.insert(0, Block())
"""
CLIENT = """
from tapml_rpc.session import Session
from tapml_rpc.websocket.opening import open_websocket
with Session(open_websocket(sys.argv[1], timeout=20)) as session:
    data = bytes(range(256)) * (12 << 10)
    buffer = session.allocate(len(data))
    session.write(buffer, data)
    assert bytes(session.read(buffer)) == data
"""
SERVER = """
import json
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.websocket_front import WebSocketFront
import tapml_rpc.supervisor.worker
"""


def run_blocked(code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_client_runs_without_numpy_and_pyzmq(server: WebSocketServer) -> None:
    run_blocked(CLIENT, server.address)


def test_a_server_is_imported_without_numpy_and_pyzmq() -> None:
    run_blocked(SERVER)
