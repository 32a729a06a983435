"""One operator test over a link of 50 ms, beside TVM's RPC doing the same over the same link.

The link is a process that copies streams between two loopback addresses and holds every byte for
25 ms on its way; both sides run the same LLVM library on 4 KB inputs. What counts is how often each
waits for the other end: a round trip is 50 ms, whatever the machine.

``python -m scripts.bench_far_link`` runs it alone; ``scripts/bench.py --part wire`` with the rest.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts import bench_runtime
from scripts.wire_peers import tapml
from tapml_rpc.client import connect
from tests.rpc.network import free_ports, shaped_link

ROUND_TRIP_SECONDS: Final = 0.050


def measure(seconds: float = 5.0) -> Iterator[dict[str, Any]]:
    """Rows of the wire's bench; the bar is less than two round trips."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shared_object = folder / "add.so"
        bench_runtime._compile_add(shared_object)
        code = shared_object.read_bytes()
        link = stack.enter_context(shaped_link(delay_ms=500 * ROUND_TRIP_SECONDS, kind="streams"))
        [data_port] = free_ports(1)
        server = stack.enter_context(
            tapml.serve("--data-port", str(data_port), "--websocket", "ws://127.0.0.1:0")
        )
        a, b = (np.full(512, value, np.float32) for value in (1, 2))
        turns = {}
        for who, key in (("ZeroMQ", "address"), ("WebSocket", "websocket")):
            address = link.reach(server.line[key], data_port)
            ours = bench_runtime._Ours(stack.enter_context(connect(address)), code)
            turns[f"tapml, {who}"] = partial(ours.operator_test, a, b, a + b)
        theirs = stack.enter_context(bench_runtime._peer(shared_object, link.reach))
        if theirs is not None:
            turns[bench_runtime.PEER] = partial(theirs.operator_test, a, b, a + b)
        for who, taken in bench_runtime.take_turns(turns, seconds).items():
            trips = taken / ROUND_TRIP_SECONDS
            row = {
                "part": "wire",
                "name": f"operator test over a link of 50 ms, {who}",
                "value": round(1e3 * taken, 1),
                "unit": "ms",
                "bar": "",
                "met": None,
            }
            if who != bench_runtime.PEER:
                row["bar"], row["met"] = "one round trip", trips < 2
            yield row


if __name__ == "__main__":
    for each in measure():
        print(json.dumps(each))
