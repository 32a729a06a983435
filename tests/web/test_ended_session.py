"""A client that vanishes leaves no work behind that keeps a page's GPU from the others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tapml_rpc.client import connect
from tapml_rpc.remote import RemoteLibrary, RemoteTensor
from tapml_rpc.session import Session
from tapml_rpc.tracker.request import request_device
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
)
from tests.rpc.tracker.trackers import PATIENCE_SECONDS
from tests.web.pages import NAME, DevicePage

# Some tenths of a second for one thread, and the same number each time.
STEPS = 20_000_000
LONG = f"""\
@group(0) @binding(0) var<storage, read_write> o : array<u32>;
@compute @workgroup_size(1)
fn long() {{
  var state = o[0];
  for (var i = 0u; i < {STEPS}u; i++) {{ state = state * 1664525u + 1013904223u; }}
  o[0] = state;
}}
"""
CALLS, BATCHES = 100, 30
VANISHING = """
import os, sys
from tapml_rpc.client import connect
from tests.web.test_ended_session import queue_minutes
session = connect(sys.argv[1], lease=sys.argv[2])
queue_minutes(session)
os._exit(0)
"""


def long_library() -> Library:
    parameter = Parameter("o", ("n",), "uint32", "inout")
    return Library(
        "webgpu",
        (CodeModule("wgsl", LONG.encode()),),
        {"long": Kernel("long", "long", 0, 1)},
        {"long": OperatorProgram("long", (parameter,), (Launch("long", (BufferArgument("o"),)),))},
    )


def prepare(session: Session) -> tuple[RemoteLibrary, RemoteTensor]:
    """The Library, and what its kernel changes."""
    library = session.upload(long_library())
    buffer = session.allocate(4)
    session.fill(buffer, b"\0")
    return library, RemoteTensor(buffer, 0, (1,), "uint32")


def queue_minutes(session: Session) -> None:
    """Have long kernels sent that nobody waits for, until the page has begun with them."""
    library, tensor = prepare(session)
    session.fence()
    for _ in range(BATCHES):
        for _ in range(CALLS):
            session.call(library, "long", [tensor])
        session._queue.flush()
    while "command" not in getattr(session._link, "pong", {}):
        time.sleep(0.05)


def test_the_queue_of_a_client_that_vanishes_keeps_nobody_from_the_gpu(shown: DevicePage) -> None:
    # Both have sessions under one lease: the page is lent to one holder at a time.
    lease = request_device(shown.tracker.address, name=NAME, timeout=PATIENCE_SECONDS)
    with lease, connect(lease.address, lease=lease) as session:
        subprocess.run(
            [sys.executable, "-c", VANISHING, lease.address, lease.token],
            check=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            timeout=PATIENCE_SECONDS,
        )
        # One that had begun before goes on, on the same GPU.
        library, tensor = prepare(session)
        session.call(library, "long", [tensor])
        found = session.read(tensor.buffer)
        assert int.from_bytes(bytes(found), "little") != 0
