"""The runtime against TVM's own RPC: one operator test over loopback, transfers, an empty call.

Both serve the same LLVM shared object from a server process, and take turns within one run, so that
only the runtime differs and a busy machine slows both. TVM's RPC needs ``cloudpickle``, which it
does not declare; without it the peer's columns stay empty.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml_rpc.client import RemoteTensor, Session
from tapml_rpc.local import open_local
from tapml_targets.library import (
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    TensorArgument,
)
from tests.rpc.network import free_ports

PEER: Final = "TVM RPC"
INPUT_BYTES: Final = {"4 KB": 4 << 10, "1 MB": 1 << 20, "64 MB": 64 << 20}
TRANSFER_BYTES: Final = {"1 MB": 1 << 20, "16 MB": 16 << 20, "64 MB": 64 << 20}
_WARM_UP: Final = 3
_SECONDS_PER_MEASUREMENT: Final = 2.0
_MOST_TURNS: Final = 200
_FEWEST_TURNS: Final = 2
_PEER_SERVER: Final = """
import sys
from tvm import rpc
server = rpc.Server("127.0.0.1", int(sys.argv[1]), int(sys.argv[1]) + 1, no_fork=False, silent=True)
print("ready", flush=True)
sys.stdin.read()
"""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Measurement:
    """One line of the table.

    Attributes
    ----------
    name
        What was measured.
    seconds, peer_seconds
        Median time; `peer_seconds` is None if the peer is not installed.
    nbytes
        Payload, for a rate; 0 if there is none.
    """

    name: str
    seconds: float
    peer_seconds: float | None
    nbytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data: microseconds, the peer's, and how many times faster."""
        result: dict[str, Any] = {
            "part": "runtime",
            "name": self.name,
            "microseconds": round(self.seconds * 1e6, 1),
            "peer": PEER,
            "peer_microseconds": None,
            "times_faster": None,
        }
        if self.peer_seconds is not None:
            result["peer_microseconds"] = round(self.peer_seconds * 1e6, 1)
            result["times_faster"] = round(self.peer_seconds / self.seconds, 2)
        if self.nbytes:
            result["megabytes_per_second"] = round(self.nbytes / self.seconds / 1e6)
        return result


def measure(seconds: float = _SECONDS_PER_MEASUREMENT) -> list[dict[str, Any]]:
    """Measure everything.

    Parameters
    ----------
    seconds
        About how long each line may take.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shared_object = folder / "add.so"
        _compile_add(shared_object)
        session = stack.enter_context(open_local("cpu"))
        ours = _Ours(session, shared_object.read_bytes())
        theirs = stack.enter_context(_peer(shared_object))
        return [m.to_dict() for m in _measurements(ours, theirs, seconds)]


def _measurements(ours: _Ours, theirs: _Peer | None, seconds: float) -> Iterator[Measurement]:
    def line(name: str, nbytes: int, method: str, *arguments: Any) -> Measurement:
        turns: dict[str, Callable[[], None]] = {"ours": lambda: getattr(ours, method)(*arguments)}
        if theirs is not None:
            turns["theirs"] = lambda: getattr(theirs, method)(*arguments)
        times = take_turns(turns, seconds)
        return Measurement(name, times["ours"], times.get("theirs"), nbytes)

    random = np.random.default_rng(20240229)
    yield line("empty call", 0, "empty_call")
    for size, nbytes in INPUT_BYTES.items():
        count = nbytes // 8
        a, b = (random.random(count, np.float32) for _ in range(2))
        yield line(f"operator test, {size} of inputs", 0, "operator_test", a, b, a + b)
    for size, nbytes in TRANSFER_BYTES.items():
        data = random.random(nbytes // 4, np.float32)
        yield line(f"upload, {size}", nbytes, "upload", data)
        yield line(f"download, {size}", nbytes, "download", data)


def take_turns(turns: Mapping[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Run each in turn for about `seconds`; the median time of each."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    started = time.perf_counter()
    for _ in range(_WARM_UP):
        for work in turns.values():
            work()
        if time.perf_counter() - started > seconds:
            break
    deadline = time.perf_counter() + seconds
    for turn in range(_MOST_TURNS):
        for name, work in turns.items():
            started = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started)
        if turn + 1 >= _FEWEST_TURNS and time.perf_counter() > deadline:
            break
    return {name: statistics.median(values) for name, values in times.items()}


class _Ours:
    """Our runtime, doing what is measured."""

    def __init__(self, session: Session, code: bytes) -> None:
        self._session = session
        self._library = session.upload(_add_library(code))
        self._kept: dict[int, Any] = {}

    def empty_call(self) -> None:
        self._session.fence()

    def operator_test(self, a: Floats, b: Floats, expected: Floats) -> None:
        with self._session.batch() as batch:
            buffers = [batch.allocate(a.nbytes) for _ in range(3)]
            batch.write(buffers[0], a)
            batch.write(buffers[1], b)
            tensors = [RemoteTensor(buffer, 0, a.shape, "float32") for buffer in buffers]
            batch.call(self._library, "add", tensors)
            output = batch.read(buffers[2])
            for buffer in buffers:
                batch.free(buffer)
        _check(np.frombuffer(output.result(), np.float32), expected)

    def upload(self, data: Floats) -> None:
        self._session.write(self._buffer(data), data)
        self._session.fence()

    def download(self, data: Floats) -> None:
        self._session.read(self._buffer(data))

    def _buffer(self, data: Floats) -> Any:
        if data.nbytes not in self._kept:
            self._kept[data.nbytes] = self._session.allocate(data.nbytes)
        return self._kept[data.nbytes]


class _Peer:
    """TVM's RPC, doing the same."""

    def __init__(self, remote: Any, shared_object: Path) -> None:
        import tvm

        self._tensor, self._empty = tvm.runtime.tensor, tvm.runtime.empty
        self._device = remote.cpu(0)
        remote.upload(str(shared_object))
        self._add = remote.load_module(shared_object.name)["add"]
        self._nothing = remote.get_function("testing.nop")
        self._kept: dict[int, Any] = {}

    def empty_call(self) -> None:
        self._nothing()

    def operator_test(self, a: Floats, b: Floats, expected: Floats) -> None:
        inputs = [self._tensor(a, self._device), self._tensor(b, self._device)]
        output = self._empty(a.shape, "float32", self._device)
        self._add(*inputs, output)
        _check(output.numpy(), expected)

    def upload(self, data: Floats) -> None:
        self._buffer(data).copyfrom(data)

    def download(self, data: Floats) -> None:
        self._buffer(data).numpy()

    def _buffer(self, data: Floats) -> Any:
        if data.nbytes not in self._kept:
            self._kept[data.nbytes] = self._empty(data.shape, "float32", self._device)
        return self._kept[data.nbytes]


@contextmanager
def _peer(
    shared_object: Path, way: Callable[[str], str] = lambda address: address
) -> Iterator[_Peer | None]:
    """TVM's RPC in a separate process; `way` maps its address."""
    if importlib.util.find_spec("cloudpickle") is None:
        print("TVM's RPC is left out: pip install cloudpickle", file=sys.stderr)
        yield None
        return
    from tvm import rpc

    [port] = free_ports(1)
    server = subprocess.Popen(
        [sys.executable, "-c", _PEER_SERVER, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        host, _, reached = way(f"127.0.0.1:{port}").rpartition(":")
        yield _Peer(rpc.connect(host, int(reached)), shared_object)
    finally:
        # It has child processes, and does not end while a session is open.
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def _compile_add(path: Path) -> None:
    """C = A + B over float32, as a shared object that both sides load."""
    import tvm
    from tvm import te

    count = te.var("n", "int64")
    a, b = (te.placeholder((count,), name=name) for name in "AB")
    c = te.compute((count,), lambda i: a[i] + b[i], name="C")
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "add")
    tvm.compile(tvm.IRModule({"add": function}), target="llvm").export_library(str(path))


def _add_library(code: bytes) -> Library:
    parameters = (
        Parameter("A", ("n",), "float32", "input"),
        Parameter("B", ("n",), "float32", "input"),
        Parameter("C", ("n",), "float32", "output"),
    )
    launch = Launch("add", tuple(TensorArgument(parameter.name) for parameter in parameters))
    return Library(
        target="cpu",
        modules=(CodeModule("elf-shared-object", code, kind="machine"),),
        kernels={"add": Kernel("add", "add", 0)},
        operators={"add": OperatorProgram("add", parameters, (launch,))},
    )


def _check(found: Floats, expected: Floats) -> None:
    # Results must be right; comparing the ends is enough to detect a missing piece.
    assert found.shape == expected.shape
    assert found[0] == expected[0] and found[-1] == expected[-1]
