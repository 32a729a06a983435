"""A WebGPU device is served as any other: over both bindings, with quotas and deadlines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tapml_rpc.client import RemoteTensor, Session, connect
from tapml_rpc.websocket.opening import open_websocket
from tapml_targets.errors import CompileError, DeviceLostError, InputError
from tests.conftest import RequireDevice
from tests.rpc.libraries import call_and_report
from tests.rpc.peers import ServerProcess
from tests.targets.libraries import edited
from tests.targets.libraries import library as small_library


@pytest.fixture(scope="module")
def server(require_device: RequireDevice) -> Iterator[ServerProcess]:
    """A supervisor of the first adapter, whose sessions hold 96 MB at most."""
    index = min(device.index for device in require_device("webgpu"))
    with ServerProcess(
        "--websocket",
        "ws://127.0.0.1:0",
        "--session-bytes",
        "96M",
        device=f"webgpu:{index}",
    ) as process:
        yield process


@pytest.fixture(scope="module", params=["ZeroMQ", "WebSocket"])
def session(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Session]:
    if request.param == "ZeroMQ":
        opened = connect(server.address)
    else:
        opened = Session(open_websocket(server.line["websocket"], timeout=60))
    with opened:
        yield opened


def test_a_library_runs_on_tensors_of_many_chunks(session: Session) -> None:
    count = (8 << 20) // 4 + 3
    a = np.arange(count, dtype=np.float32)
    library = session.upload(small_library("webgpu"))
    buffers = [session.allocate(a.nbytes) for _ in range(2)]
    session.write(buffers[0], a)
    tensors = [RemoteTensor(buffer, 0, a.shape, "float32") for buffer in buffers]
    report = call_and_report(session, library, "double_add", tensors, timed=True)
    assert np.array_equal(np.frombuffer(session.read(buffers[1]), np.float32), 2 * a + 1)
    assert report.kernel_nanoseconds
    for buffer in buffers:
        session.free(buffer)


def test_what_the_compiler_says_arrives_in_full(session: Session) -> None:
    broken = edited(small_library("webgpu"), "a[i] + amount", "a[i] + true + amount")
    with pytest.raises(CompileError, match=r"Operation Add can't work with"):
        session.upload(broken)
    session.reset()


def test_a_session_holds_what_it_may_and_no_more(session: Session) -> None:
    held = session.allocate(90 << 20)
    with pytest.raises(InputError, match="its bound is 100663296"):
        session.allocate(16 << 20)
        session.fence()
    session.reset()
    session.free(held)
    session.free(session.allocate(16 << 20))


def test_a_kernel_that_never_ends_costs_its_own_session(require_device: RequireDevice) -> None:
    """lavapipe ends every loop by itself; SwiftShader does not."""
    devices = require_device("webgpu")
    device = next((each for each in devices if "llvmpipe" not in each.name), None)
    if device is None:
        pytest.skip("only lavapipe here, which ends every loop")
    # What it waits for is in memory that it writes, so that no compiler can leave the loop out.
    endless = edited(
        small_library("webgpu"),
        "o[i] = a[i] +",
        "while (o[0] != 12345.0) { o[0] = a[0]; } o[i] = a[i] +",
    )
    arguments = ("--kernel-deadline", "3")
    with ServerProcess(*arguments, device=f"webgpu:{device.index}") as process:
        with connect(process.address) as stuck:
            library = stuck.upload(endless)
            buffers = [stuck.allocate(256) for _ in range(2)]
            stuck.write(buffers[0], np.zeros(64, np.float32))
            tensors = [RemoteTensor(buffer, 0, (64,), "float32") for buffer in buffers]
            with pytest.raises(DeviceLostError):
                stuck.call(library, "add_one", tensors)
                stuck.read(buffers[1])
        with connect(process.address) as other:
            buffer = other.allocate(4)
            other.write(buffer, b"abcd")
            assert bytes(other.read(buffer)) == b"abcd"
