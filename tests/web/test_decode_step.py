"""A decode step on a browser's GPU: one message there, one back, whatever the plan does in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tapml.devices.reach import open_device
from tapml.execute.plan_runner import PlanRunner
from tapml.plan.graph_plan import (
    Entry,
    GraphPlan,
    StateBinding,
    Storage,
    TensorSpecification,
    Value,
)
from tapml_rpc.session import Session
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    EntryCall,
    EntryProgram,
    EntryValue,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
)
from tests.web.pages import NAME, DevicePage

COUNT = 300
STEPS = 5
SUM = b"""\
@group(0) @binding(0) var<storage, read_write> o : array<f32>;
@group(0) @binding(1) var<storage, read> a : array<f32>;
@group(0) @binding(2) var<storage, read> b : array<f32>;
@compute @workgroup_size(64)
fn sum(@builtin(global_invocation_id) id : vec3<u32>) {
  if (id.x < 300u) { o[id.x] = a[id.x] + b[id.x]; }
}
"""


def decode_library() -> Library:
    """``decode``: the next state is state + x, and y is that + w."""
    shape = (COUNT,)
    given = ("weight:w", "input:x", "state:s")
    made = ("next:s", "output:y")
    entry = EntryProgram(
        "decode",
        (
            *(Parameter(name, shape, "float32", "input") for name in given),
            *(Parameter(name, shape, "float32", "output") for name in made),
        ),
        (),
        tuple(EntryValue(name, name, 0, shape, "float32") for name in (*given, *made)),
        (
            EntryCall("sum", ("state:s", "input:x", "next:s")),
            EntryCall("sum", ("next:s", "weight:w", "output:y")),
        ),
    )
    launch = Launch("sum", tuple(map(BufferArgument, "oab")), (5, 1, 1), (64, 1, 1))
    parameters = (
        Parameter("a", shape, "float32", "input"),
        Parameter("b", shape, "float32", "input"),
        Parameter("o", shape, "float32", "output"),
    )
    return Library(
        "webgpu",
        (CodeModule("wgsl", SUM),),
        {"sum": Kernel("sum", "sum", 0, 64)},
        {"sum": OperatorProgram("sum", parameters, (launch,))},
        {"decode": entry},
    )


def decode_plan() -> GraphPlan:
    names = ("x", "s", "t", "y")
    tensor = TensorSpecification("s", (COUNT,), "float32")
    entry = Entry(
        "decode",
        (),
        ("x",),
        ("y",),
        (StateBinding("s", "s", "t"),),
        {name: Value(name, name, 0, (COUNT,), "float32") for name in names},
        {name: Storage(name, 4 * COUNT, "activation") for name in names},
        (),
    )
    weight = TensorSpecification("w", (COUNT,), "float32")
    return GraphPlan("steps", {}, {"decode": entry}, {"w": weight}, {"s": tensor})


class Counted:
    """A session's data connection that keeps what goes over it."""

    def __init__(self, session: Session) -> None:
        link: Any = session._link
        self._data = link._data
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        link._data = self

    def send(self, packed: bytes, *rest: Any) -> None:
        self.sent.append(bytes(packed))
        self._data.send(packed, *rest)

    def receive(self, wait_milliseconds: int) -> Any:
        message = self._data.receive(wait_milliseconds)
        if message is not None:
            self.received.append(bytes(message[0]))
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)


@pytest.fixture
def runner(shown: DevicePage, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanRunner]:
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    weights = {"w": np.full(COUNT, 0.5, np.float32)}
    with (
        open_device(f"tracker:{NAME}") as session,
        PlanRunner(decode_plan(), weights, decode_library(), session) as runner,
    ):
        yield runner


def test_a_step_is_one_message_each_way(runner: PlanRunner) -> None:
    x = np.arange(COUNT, dtype=np.float32)
    state = np.zeros(COUNT, np.float32)
    counted = None
    for step in range(2 + STEPS):
        if step == 2:
            # Both arrangements of the state have been recorded by then.
            counted = Counted(runner._session)
        outputs = runner.run("decode", {"x": x + step})
        state = state + x + step
        np.testing.assert_array_equal(outputs["y"], state + np.float32(0.5))
    assert counted is not None
    assert len(counted.sent) == len(counted.received) == STEPS
    assert all(b"execute" in message for message in counted.sent)


def test_a_timed_step_tells_the_kernels_own_time(runner: PlanRunner) -> None:
    device = runner._session.device
    assert device.details["kernel_clock"] in ("gpu", "wall")
    x = np.ones(COUNT, np.float32)
    _, nanoseconds = runner.run_timed("decode", {"x": x})
    assert nanoseconds > 0
    outputs = runner.run("decode", {"x": x})
    np.testing.assert_array_equal(outputs["y"], 2.5 * x)


def test_the_page_says_whose_clock_it_is(runner: PlanRunner, shown: DevicePage) -> None:
    clock = runner._session.device.details["kernel_clock"]
    said = {"gpu": "by the GPU's clock", "wall": "by wall clock"}[clock]
    assert said in shown.text("#facts")
