"""The wire: bytes each way beside raw sockets, bare ``zmq``, bare ``websockets`` and TVM's RPC.

Each peer is a separate process on loopback and takes turns within one run, so that a busy machine
slows all. In addition to transfers (`scripts.bench_transfers`): commands a second, the cost of a
prepared launch over the wire, the start of a worker, one operator test compared with TVM's RPC with
the same LLVM library, the uploads of a second session, and how long another session's pings wait
beside an upload.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

import numpy as np

from scripts import bench_runtime, bench_transfers
from scripts.bench_runtime import take_turns
from scripts.bench_transfers import PLAIN, TVM, WEB, row
from scripts.processes import processor_ticks
from scripts.wire_fuzz.bindings import open_binding
from scripts.wire_fuzz.kernel import packed_library
from scripts.wire_fuzz.peer import Heard, Peer
from scripts.wire_peers import tapml
from tapml.package.in_process import InProcessTransport, open_in_process
from tapml_rpc.client import RemoteTensor, Session, connect
from tapml_rpc.supervisor.worker_process import PROGRAM, WorkerProcess
from tapml_rpc.uploads import BlobWrite
from tapml_targets.driver import Driver, TensorUse
from tapml_targets.errors import TapmlError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library_format import unpack
from tapml_targets.ranking import find_device
from tapml_targets.template import Template
from tests.rpc.network import free_ports, shaped_link

_SECONDS: Final = 2.0
_COMMANDS: Final = 20_000
_LAUNCHES: Final = 5_000
_BATCH: Final = 500
_STARTS: Final = 5
_WEIGHT_BYTES: Final = 8 << 20
_ROUND_TRIP_SECONDS: Final = 0.050
_PINGS: Final = 500
"""For each second that a line may take."""
_PAUSE_SECONDS: Final = 0.002
_UPLOADS: Final = """\
import sys
import numpy as np
from tapml_rpc.client import connect
with connect(sys.argv[1]) as session:
    data = np.zeros(16 << 20, np.uint8)
    buffer = session.allocate(data.nbytes)
    session.write(buffer, data)
    print(flush=True)
    while True:
        session.write(buffer, data)
"""


def measure(seconds: float = _SECONDS) -> list[dict[str, Any]]:
    """Measure everything; `seconds` is about how long each line may take."""
    rows: list[dict[str, Any]] = []
    parts: dict[str, Callable[[float], Iterator[dict[str, Any]]]] = {
        "transfers": bench_transfers.measure,
        "commands": _commands,
        "launches": _launches,
        "workers": _workers,
        "operator test": _operator_test,
        "far link": _far_link,
        "second session": _second_session,
        "pings": _pings,
    }
    for name, part in parts.items():
        try:
            rows += part(seconds)
        except (TapmlError, ImportError) as error:
            rows.append(row(name, str(error)[:100]))
    return rows


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
        yield row(f"{what} streamed, {who}", round(best), "1/s", f"{least:,}", best >= least)


def _recorded(session: Session) -> Callable[[int], None]:
    """A function that runs a program of one call `count` times and waits."""
    library = session.upload(packed_library())
    tensors = [RemoteTensor(session.allocate(256), 0, (64,), "float32") for _ in range(2)]
    session.fill(tensors[0].buffer, b"\0")
    with session.program("add") as program:
        program.call(library, "add_one", tensors)

    def run(count: int) -> None:
        with session.batch() as batch:
            for _ in range(count):
                batch.execute(program)
            batch.read(tensors[1].buffer, 4)

    return run


def _workers(seconds: float) -> Iterator[dict[str, Any]]:
    """A session's worker until its device is open: forked from a template, and as a program."""
    device = find_device(_opencl())
    with closing(Template(PROGRAM, device.platform)) as template:
        for name, given in (("forked", template), ("as a program", None)):
            walls, works = [], []
            # The first fork waits for the template.
            for _ in range(_STARTS + 1):
                started = time.perf_counter()
                worker = WorkerProcess(device, allow_native=False, template=given)
                worker.wait_until_open()
                walls.append(time.perf_counter() - started)
                works.append(processor_ticks(worker.pid) / os.sysconf("SC_CLK_TCK"))
                worker.let_go().join()
            yield row(f"a worker is ready, {name}", round(median(walls[1:]), 3), "s")
            yield row(f"a worker's processor time, {name}", round(median(works[1:]), 3), "s")


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
        yield row("a prepared launch, bare driver", round(micros["bare"], 1), "us")
        for name in runs:
            over = micros[name] - micros["bare"]
            yield row(
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
        # Two servers, because TVM's has one client: clients that share a device go through the
        # supervisor.
        addresses = {
            PLAIN: stack.enter_context(tapml.serve()).line["address"],
            WEB: stack.enter_context(tapml.serve("--websocket", "ws://127.0.0.1:0")).line[
                "websocket"
            ],
        }
        times = _operator_test_times(stack, addresses, seconds)
    for who, taken in times.items():
        found = row(f"operator test, 4 KB, {who}", round(1e6 * taken), "us")
        if who != TVM and TVM in times:
            found["bar"], found["met"] = "TVM's RPC", taken <= times[TVM]
        yield found


def _far_link(seconds: float) -> Iterator[dict[str, Any]]:
    """The same over a link of 50 ms per round trip; the bar is less than two round trips.

    The link is a process that copies streams between two loopback addresses and delays every byte
    by 25 ms. It shows how often each side waits for the other.
    """
    with ExitStack() as stack:
        link = stack.enter_context(shaped_link(delay_ms=500 * _ROUND_TRIP_SECONDS, kind="streams"))
        [port] = free_ports(1)
        server = stack.enter_context(
            tapml.serve("--data-port", str(port), "--websocket", "ws://127.0.0.1:0")
        )
        addresses = {
            PLAIN: link.reach(server.line["address"], port),
            WEB: link.reach(server.line["websocket"], port),
        }
        times = _operator_test_times(stack, addresses, seconds, link.reach)
    for who, taken in times.items():
        found = row(f"operator test over a link of 50 ms, {who}", round(1e3 * taken, 1), "ms")
        if who != TVM:
            found["bar"], found["met"] = "one round trip", taken < 2 * _ROUND_TRIP_SECONDS
        yield found


def _operator_test_times(
    stack: ExitStack,
    addresses: Mapping[str, str],
    seconds: float,
    route: Callable[[str], str] = lambda address: address,
) -> dict[str, float]:
    """Median seconds of one operator test per server; `route` maps the address of TVM's."""
    shared_object = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "add.so"
    bench_runtime._compile_add(shared_object)
    random = np.random.default_rng(20240229)
    a, b = (random.random(512, np.float32) for _ in range(2))
    sides: dict[str, Any] = {
        who: bench_runtime._Ours(stack.enter_context(connect(address)), shared_object.read_bytes())
        for who, address in addresses.items()
    }
    theirs = stack.enter_context(bench_runtime._peer(shared_object, route))
    if theirs is not None:
        sides[TVM] = theirs
    turns = {who: partial(side.operator_test, a, b, a + b) for who, side in sides.items()}
    return take_turns(turns, seconds)


def _second_session(seconds: float) -> Iterator[dict[str, Any]]:
    """Bytes sent for weights that the server already holds by hash."""
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
            yield row(f"{8 * _WEIGHT_BYTES >> 20} MB of weights, {name} session", sent, "bytes")
            yield row(f"the same, {name} session takes", round(1000 * taken), "ms")
        yield row("a second session uploads", sent, "bytes", "0", sent == 0)


def _pings(seconds: float) -> Iterator[dict[str, Any]]:
    """How long a session's pings wait, alone and while another one writes without a pause."""
    with ExitStack() as stack:
        server = stack.enter_context(tapml.serve("--websocket", "ws://127.0.0.1:0"))
        line = server.line
        peers = {
            who: Peer(stack.enter_context(open_binding(binding, line, None)), Heard())
            for who, binding in ((PLAIN, "zmq"), (WEB, "websocket"))
        }
        for peer in peers.values():
            # A data connection that says nothing is closed.
            peer.settle()
        for beside in ("", " beside an upload over WebSocket"):
            if beside:
                command = [sys.executable, "-c", _UPLOADS, line["websocket"]]
                writer = subprocess.Popen(command, stdout=subprocess.PIPE)
                stack.callback(writer.communicate)
                stack.callback(writer.kill)
                assert writer.stdout is not None
                if not writer.stdout.readline():
                    raise TapmlError("the upload ended before it had begun")
            for who, peer in peers.items():
                waits = np.array([_ping(peer) for _ in range(round(_PINGS * seconds))])
                for what, share in (("median", 0.5), ("99th percentile", 0.99)):
                    name = f"a ping's answer{beside}, {what}, {who}"
                    yield row(name, round(1e3 * float(np.quantile(waits, share)), 2), "ms")


def _ping(peer: Peer) -> float:
    """Seconds until a ping is answered, and a pause."""
    started = time.perf_counter()
    peer.ask()
    taken = time.perf_counter() - started
    time.sleep(_PAUSE_SECONDS)
    return taken


def _opencl() -> str:
    device = find_device("opencl")
    return f"{device.platform}:{device.index}"
