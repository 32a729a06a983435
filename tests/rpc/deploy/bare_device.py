"""A device end without numpy, pyzmq and pyopencl; run as a process of its own.

Arguments: the file of golden messages. Prints one line of JSON: what each golden batch of plain
memory commands was answered with, and which of the forbidden packages were loaded.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

FORBIDDEN: Final = frozenset(("numpy", "pyopencl", "zmq"))
# What a device that speaks WebSocket has to import, whatever its driver is.
NEEDED: Final = (
    "tapml_rpc.blobs.store",
    "tapml_rpc.device.commands",
    "tapml_rpc.failures",
    "tapml_rpc.device.interpreter",
    "tapml_rpc.device.libraries",
    "tapml_rpc.session",
    "tapml_rpc.supervisor.hub",
    "tapml_rpc.supervisor.relay",
    "tapml_rpc.supervisor.serve",
    "tapml_rpc.supervisor.worker",
    "tapml_rpc.supervisor.worker_process",
    "tapml_rpc.supervisor.websocket_front",
    "tapml_rpc.websocket.opening",
    "tapml_targets.cpu.driver",
    "tapml_targets.evaluator",
    "tapml_targets.library_format",
    "tapml_targets.opencl.driver",
    "tapml_targets.probe",
    "tapml_targets.ranking",
)


class Absent(MetaPathFinder):
    """Makes a package look as if it were not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def from_json(value: Any) -> Any:
    """The header a vector describes; byte strings are ``{"$bytes": hex}``."""
    if isinstance(value, dict):
        if set(value) == {"$bytes"}:
            return bytes.fromhex(value["$bytes"])
        return {key: from_json(inner) for key, inner in value.items()}
    return [from_json(inner) for inner in value] if isinstance(value, list) else value


def run_batch(golden: dict[str, Any], name: str) -> tuple[Any, bytes, int]:
    """Header and chunk that a golden batch is answered with; and the buffers held at the end."""
    from tapml_rpc import wire
    from tapml_rpc.device.interpreter import Interpreter
    from tapml_rpc.device.libraries import AttachedBlobs, LibraryStore
    from tapml_rpc.device.session_state import Message, ServerSession
    from tapml_rpc.welcome import Bounds
    from tests.rpc.deploy.memory_driver import MemoryDriver

    message = next(each for each in golden["messages"] if each["name"] == name)
    header = wire.unpack(bytes.fromhex(message["frame"]))
    assert header == from_json(message["header"])
    answers: list[tuple[Any, bytes]] = []
    bounds, driver = Bounds(), MemoryDriver()
    libraries = LibraryStore(driver, library_bytes=bounds.library_bytes, allow_native=False)
    session = ServerSession(bounds.download_window)

    def send(header: wire.Header, parts: list[Any]) -> None:
        answers.append((header, b"".join(parts)))

    interpreter = Interpreter(driver, libraries, AttachedBlobs(), bounds, send)
    chunk = memoryview(bytes.fromhex(message["chunk"]))
    batch = Message(header["sequence"], header["commands"], chunk)
    for _ in interpreter.run(session, batch):
        raise AssertionError("nothing here has to wait for credit")
    interpreter.release(session)
    [(answer, data)] = answers
    return wire.unpack(wire.pack(answer)), data, driver.held


def main() -> None:
    sys.meta_path.insert(0, Absent())
    lacking = {}
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            lacking[name] = str(error)
    golden = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    answer, data, held = run_batch(golden, "allocate, write, fill, copy, read, free")
    loaded = sorted(FORBIDDEN & {name.split(".")[0] for name in sys.modules})
    print(
        json.dumps(
            {
                "lacking": lacking,
                "loaded": loaded,
                "answer": answer,
                "chunk": data.hex(),
                "held": held,
            }
        )
    )


if __name__ == "__main__":
    main()
