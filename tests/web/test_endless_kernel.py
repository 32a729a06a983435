"""A kernel that never ends, which a browser cannot stop: named in time, and what to do is said."""

from __future__ import annotations

import pytest

from tapml_rpc.reach import open_device
from tapml_rpc.remote import RemoteTensor
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


@pytest.mark.slow  # ten seconds go by before a GPU counts as silent
def test_an_endless_kernel_is_named_by_its_deadline_and_the_person_told(
    shown: DevicePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    with open_device(f"tracker:{NAME}", kernel_deadline=3.0) as session:
        library = session.upload(spin_library())
        buffer = session.allocate(4)
        session.fill(buffer, b"\0")
        session.call(library, "spin", [RemoteTensor(buffer, 0, (1,), "uint32")])
        with pytest.raises(KernelTimeoutError, match="ran longer than 3 s in the browser"):
            session.fence()
    shown.wait("#log", "KernelTimeoutError")
    shown.wait("#detail", "close the browser")
