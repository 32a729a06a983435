"""WGSL written by hand, for tests of what is WebGPU's own."""

from __future__ import annotations

from tapml_targets import conformance_kernels
from tapml_targets.driver import Driver
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.webgpu.conformance import text
from tapml_targets.webgpu.programs import LoadedKernel

ADD = f"// o = a + amount, over n elements.\n{text(conformance_kernels.ADD)}"
# No scalars and no folding; EXTRA is more to add, SIZE the workgroup, BEFORE what is declared.
COPY = """\
@group(0) @binding(0) var<storage, read_write> o : array<u32>;
@group(0) @binding(1) var<storage, read> a : array<u32>;
BEFORE
@compute @workgroup_size(SIZE)
fn copy(@builtin(global_invocation_id) id : vec3<u32>) {
  o[id.x] = a[id.x]EXTRA;
}
"""


def copy(*, before: str = "", extra: str = "", size: str = "64, 1, 1") -> str:
    """:data:`COPY` with its parts filled in."""
    return COPY.replace("BEFORE", before).replace("EXTRA", extra).replace("SIZE", size)


def load(driver: Driver, source: str, symbol: str, **needs: object) -> LoadedKernel:
    """Build the one kernel of `source`; `needs` are fields of :class:`Kernel`."""
    kernel = Kernel(symbol, symbol, 0, **needs)  # type: ignore[arg-type]
    loaded: LoadedKernel = driver.load(CodeModule("wgsl", source.encode()), [kernel])[symbol]
    return loaded
