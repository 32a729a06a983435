"""The wire: bytes each way beside raw sockets, bare ``zmq``, bare ``websockets`` and TVM's RPC.

Everybody is a process of its own on this machine's loopback and takes turns within one run, so that
a busy machine slows all. Beside bytes: commands a second, what a prepared launch costs over the
wire, one operator test beside TVM's RPC with the same LLVM library, and what a second session on
the same Library uploads.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from scripts import bench_far_link, bench_runtime
from scripts.bench_runtime import take_turns
from scripts.wire_fuzz.kernel import packed_library
from scripts.wire_peers import bare_relay, bare_websockets, bare_zmq, raw_socket, tapml
from scripts.wire_peers.process import Bytes, Peer, settle
from tapml_rpc.blob_upload import BlobWrite
from tapml_rpc.client import RemoteTensor, Session, connect
from tapml_rpc.in_process import InProcessTransport, open_in_process
from tapml_targets.driver import Driver, TensorUse
from tapml_targets.errors import TapmlError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library_format import unpack
from tapml_targets.ranking import find_device

SIZES: Final = {"1 MB": 1 << 20, "16 MB": 16 << 20, "128 MB": 128 << 20}
# A turn moves so much, one transfer after the other as a session does it.
_TURN_BYTES: Final = 16 << 20
# TVM's RPC takes seconds for more, and no less per byte.
_MOST_FOR_TVM: Final = 16 << 20
_SECONDS: Final = 2.0
_COMMANDS: Final = 20_000
_LAUNCHES: Final = 5_000
_BATCH: Final = 500
_WEIGHT_BYTES: Final = 8 << 20
NOT_BUILT: Final = "not built"

RAW, ZMQ, RELAY, WEBSOCKETS = "raw socket", "zmq", "zmq, handed on", "websockets"
TVM = bench_runtime.PEER
PLAIN, CURVE, WEB = "tapml, ZeroMQ", "tapml, CURVE", "tapml, WebSocket"


def measure(seconds: float = _SECONDS) -> list[dict[str, Any]]:
    """Measure everything; `seconds` is about how long each line may take."""
    rows: list[dict[str, Any]] = []
    for part in (
        _transfers,
        _commands,
        _launches,
        _operator_test,
        bench_far_link.measure,
        _second_session,
    ):
        try:
            rows += part(seconds)
        except (TapmlError, ImportError) as error:
            rows.append(_row(part.__name__.strip("_").replace("_", " "), str(error)[:100]))
    return rows


def _row(name: str, value: Any, unit: str = "", bar: str = "", met: bool | None = None) -> Any:
    return {"part": "wire", "name": name, "value": value, "unit": unit, "bar": bar, "met": met}


class _Tvm:
    """TVM's RPC in the peers' terms."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._sources: dict[int, Any] = {}

    def upload(self, data: Bytes) -> None:
        self._peer.upload(data.view(np.float32))

    def download(self, nbytes: int) -> Bytes:
        if nbytes not in self._sources:
            self._sources[nbytes] = np.zeros(nbytes // 4, np.float32)
        self._peer.download(self._sources[nbytes])
        return np.empty(0, np.uint8)


def _transfers(seconds: float) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers: dict[str, Peer] = {
            RAW: stack.enter_context(raw_socket.open_peer()),
            ZMQ: stack.enter_context(bare_zmq.open_peer()),
            RELAY: stack.enter_context(bare_relay.open_peer()),
            WEBSOCKETS: stack.enter_context(bare_websockets.open_peer()),
        }
        openers: dict[str, Callable[[], Any]] = {
            PLAIN: tapml.open_zmq,
            CURVE: lambda: tapml.open_curve(folder),
            WEB: tapml.open_websocket,
        }
        for name, opener in openers.items():
            with suppress(TapmlError, RuntimeError, LookupError):
                peers[name] = stack.enter_context(opener())
        if importlib.util.find_spec("cloudpickle") is not None:
            shared_object = folder / "add.so"
            bench_runtime._compile_add(shared_object)
            peer = stack.enter_context(bench_runtime._peer(shared_object))
            if peer is not None:
                peers[TVM] = _Tvm(peer)
        settle()
        for size, nbytes in SIZES.items():
            for direction in ("upload", "download"):
                count = max(1, _TURN_BYTES // nbytes)
                rates = _rates(peers, direction, nbytes, count, seconds)
                yield from _judged(f"{direction} {size}", rates)
                if count > 1:
                    # Each transfer after those of all others: no process finds its caches warm.
                    for who, rate in _rates(peers, direction, nbytes, 1, seconds).items():
                        yield _row(f"{direction} {size}, cold, {who}", round(rate), "MB/s")


def _rates(
    peers: dict[str, Peer], direction: str, nbytes: int, count: int, seconds: float
) -> dict[str, float]:
    """MB/s of each peer that moves `nbytes`, waits for the answer, and again, `count` times."""
    data = np.random.default_rng(20240229).integers(0, 256, nbytes, np.uint8)
    argument: Any = data if direction == "upload" else nbytes
    turns = {
        name: partial(_in_a_row, getattr(peer, direction), argument, count)
        for name, peer in peers.items()
        if name != TVM or nbytes <= _MOST_FOR_TVM
    }
    taken = take_turns(turns, seconds)
    return {name: count * nbytes / each / 1e6 for name, each in taken.items()}


def _in_a_row(transfer: Callable[[Any], object], argument: Any, count: int) -> None:
    for _ in range(count):
        transfer(argument)


def _judged(name: str, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    bars: dict[str, list[tuple[str, float]]] = {
        PLAIN: [("60 % of the raw socket", 0.6 * rates[RAW])],
        CURVE: [("200 MB/s", 200.0)],
        WEB: [("80 % of websockets", 0.8 * rates[WEBSOCKETS])],
    }
    if TVM in rates:
        bars[PLAIN].append(("10 times TVM's RPC", 10 * rates[TVM]))
    for who in (RAW, ZMQ, RELAY, WEBSOCKETS, TVM, PLAIN, CURVE, WEB):
        if who not in rates:
            if who in bars:
                yield _row(f"{name}, {who}", NOT_BUILT)
            continue
        row = _row(f"{name}, {who}", round(rates[who]), "MB/s")
        if who in bars:
            row["bar"] = "; ".join(f"{what} ({least:.0f})" for what, least in bars[who])
            row["met"] = all(rates[who] >= least for _, least in bars[who])
        yield row


def _commands(seconds: float) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        device = _opencl()
        server = stack.enter_context(tapml.serve("--websocket", "ws://127.0.0.1:0", device=device))
        for key, who in (("address", PLAIN), ("websocket", WEB)):
            with connect(server.line[key]) as session:
                yield from _streams(session, who)


def _streams(session: Session, who: str) -> Iterator[dict[str, Any]]:
    buffer = session.allocate(8)
    session.fence()

    def empty() -> None:
        for _ in range(_COMMANDS):
            session.fill(buffer, b"\0", 0)
        session.fence()

    run = _recorded(session)

    def launches() -> None:
        for _ in range(_LAUNCHES // _BATCH):
            run(_BATCH)

    for what, work, count, least in (
        ("empty commands", empty, _COMMANDS, 50_000),
        ("launches", launches, _LAUNCHES, 15_000),
    ):
        work()
        rates = []
        for _ in range(3):
            started = time.perf_counter()
            work()
            rates.append(count / (time.perf_counter() - started))
        best = max(rates)
        yield _row(f"{what} streamed, {who}", round(best), "1/s", f"{least:,}", best >= least)


def _recorded(session: Session) -> Callable[[int], None]:
    """Runs a recorded call so many times and waits."""
    library = session.upload(packed_library())
    tensors = [RemoteTensor(session.allocate(256), 0, (64,), "float32") for _ in range(2)]
    session.fill(tensors[0].buffer, b"\0")
    call = session.record(library, "add_one", tensors)

    def run(count: int) -> None:
        with session.batch() as batch:
            for _ in range(count):
                batch.run(call)
            batch.read(tensors[1].buffer, 4)

    return run


def _launches(seconds: float) -> Iterator[dict[str, Any]]:
    """A prepared launch among many: bare driver, in this process, over the wire."""
    device = _opencl()
    with ExitStack() as stack:
        server = stack.enter_context(tapml.serve(device=device))
        far = stack.enter_context(connect(server.line["address"]))
        near = stack.enter_context(open_in_process(find_device(device)))
        transport = cast("InProcessTransport", near._link)
        runs = {"in process": _recorded(near), "over the wire": _recorded(far)}
        bare = _bare(transport._driver)
        times = take_turns(
            {
                "bare": lambda: bare(_BATCH),
                **{name: partial(run, _BATCH) for name, run in runs.items()},
            },
            seconds,
        )
        micros = {name: 1e6 * taken / _BATCH for name, taken in times.items()}
        yield _row("a prepared launch, bare driver", round(micros["bare"], 1), "us")
        for name in runs:
            over = micros[name] - micros["bare"]
            yield _row(
                f"a prepared launch, {name}",
                round(micros[name], 1),
                "us",
                "bare + 10 us",
                over <= 10,
            )


def _bare(driver: Driver) -> Callable[[int], None]:
    """The driver's own launches of the same kernel, without our interpreter."""
    loaded = LoadedLibrary(driver, unpack(packed_library()))
    buffers = [driver.allocate(256) for _ in range(2)]
    call = loaded.record("add_one", [TensorUse(each, 0, (64,), "float32") for each in buffers])
    launch = call.bound.launches

    def run(count: int) -> None:
        for _ in range(count):
            driver.launch_all(launch)
        driver.read(buffers[1], 0, 4)

    return run


def _operator_test(seconds: float) -> Iterator[dict[str, Any]]:
    """One test with 4 KB of inputs, the same LLVM library on both sides."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shared_object = folder / "add.so"
        bench_runtime._compile_add(shared_object)
        server = stack.enter_context(tapml.serve("--websocket", "ws://127.0.0.1:0"))
        random = np.random.default_rng(20240229)
        a, b = (random.random(512, np.float32) for _ in range(2))
        ours = {
            who: bench_runtime._Ours(
                stack.enter_context(connect(server.line[key])), shared_object.read_bytes()
            )
            for key, who in (("address", PLAIN), ("websocket", WEB))
        }
        theirs = stack.enter_context(bench_runtime._peer(shared_object))
        turns = {who: partial(each.operator_test, a, b, a + b) for who, each in ours.items()}
        if theirs is not None:
            turns[TVM] = partial(theirs.operator_test, a, b, a + b)
        times = take_turns(turns, seconds)
        for who, taken in times.items():
            row = _row(f"operator test, 4 KB, {who}", round(1e6 * taken), "us")
            if who != TVM and TVM in times:
                row["bar"], row["met"] = "TVM's RPC", taken <= times[TVM]
            yield row


def _second_session(seconds: float) -> Iterator[dict[str, Any]]:
    """What is sent for weights the server holds by hash."""
    random = np.random.default_rng(20240229)
    weights = [random.integers(0, 256, _WEIGHT_BYTES, np.uint8) for _ in range(8)]
    with tapml.serve() as server:
        for name in ("first", "second"):
            with connect(server.line["address"]) as session:
                started = time.perf_counter()
                sent = session.write_blobs(
                    [BlobWrite(session.allocate(each.nbytes), each) for each in weights]
                )
                session.fence()
                taken = time.perf_counter() - started
            yield _row(f"{8 * _WEIGHT_BYTES >> 20} MB of weights, {name} session", sent, "bytes")
            yield _row(f"the same, {name} session takes", round(1000 * taken), "ms")
        yield _row("a second session uploads", sent, "bytes", "0", sent == 0)


def _opencl() -> str:
    device = find_device("opencl")
    return f"{device.platform}:{device.index}"
