"""A kernel that never ends, which no page can stop: named in time, and the browser ended.

By the tracker that started it, or by a person, whom the page asks.
"""

from __future__ import annotations

import pytest

from tapml.devices.listing import list_devices
from tapml.devices.reach import open_device
from tapml_rpc.remote import RemoteTensor
from tapml_rpc.session import Session
from tapml_targets.errors import KernelTimeoutError
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
)
from tests.report.browser import need_browser
from tests.rpc.tracker.trackers import TrackerProcess, wait_for
from tests.web.pages import NAME, DevicePage

# The compiler must not see that the loop does not end.
SPIN = b"""\
@group(0) @binding(0) var<storage, read_write> o : array<u32>;
@compute @workgroup_size(1)
fn spin() { loop { o[0] = o[0] * 2u; if (o[0] == 7u) { break; } } }
"""


def spin_library() -> Library:
    parameter = Parameter("o", ("n",), "uint32", "inout")
    return Library(
        "webgpu",
        (CodeModule("wgsl", SPIN),),
        {"spin": Kernel("spin", "spin", 0, 1)},
        {"spin": OperatorProgram("spin", (parameter,), (Launch("spin", (BufferArgument("o"),)),))},
    )


def spin(session: Session) -> None:
    """Start what never ends; it is named by its deadline."""
    library = session.upload(spin_library())
    buffer = session.allocate(4)
    session.fill(buffer, b"\0")
    session.call(library, "spin", [RemoteTensor(buffer, 0, (1,), "uint32")])
    with pytest.raises(KernelTimeoutError, match="ran longer than 1 s in the browser"):
        session.fence()


def test_a_tracker_ends_the_browser_it_started_and_the_next_one_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_browser()
    options = ("--browser", "chromium", "--browser-patience", "1")
    with TrackerProcess("tcp://127.0.0.1:0", *options, in_order=True) as tracker:
        monkeypatch.setenv("TAPML_TRACKER", tracker.address)
        wait_for(lambda: list_devices(tracker.address))
        with open_device("tracker:chromium", kernel_deadline=1.0) as session:
            spin(session)
        wait_for(lambda: list_devices(tracker.address) == [])
        wait_for(lambda: list_devices(tracker.address))
        with open_device("tracker:chromium") as session:
            buffer = session.allocate(8)
            session.write(buffer, b"12345678")
            assert bytes(session.read(buffer)) == b"12345678"
    assert b"a kernel holds its GPU; it is restarted" in tracker.errors


def test_an_endless_kernel_is_named_by_its_deadline_and_the_person_asked(
    shown: DevicePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one here: the page's kernel runs on until its browser is closed."""
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    with open_device(f"tracker:{NAME}", kernel_deadline=1.0) as session:
        spin(session)
    shown.wait("#log", "KernelTimeoutError")
    shown.wait("#detail", "close the browser")
