"""What every platform promises: compiling the demo model, a prepared launch, the demo simulated.

Compiling is from operators to the text of kernels, in a new process whose first import of TVM
counts. A prepared launch is a recorded call beside the same dispatches by the platform's bare
bindings, OpenCL's and Vulkan's; WebGPU's are in the part `webgpu`. A simulated migration is all of
`tapml offload` with an empty cache.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.bare_vulkan import bare_dispatches
from scripts.bench_runtime import take_turns
from scripts.bench_webgpu import LAUNCHES, many_launches
from scripts.demo_compiling import DemoCompiling
from tapml.package.in_process import open_in_process
from tapml_rpc.client import RemoteTensor
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import TapmlError
from tapml_targets.platforms import platform_names
from tapml_targets.ranking import rank_devices
from tapml_targets.vulkan.glslang import compile_glsl

COLD_SECONDS: Final = 10.0
CACHED_SECONDS: Final = 0.5
SIMULATED_SECONDS: Final = 300.0
MICROSECONDS: Final = 100.0
SECONDS: Final = 3.0
COUNT: Final = 64
KERNEL: Final = "add"
_HOST: Final = "cpu"


def measure() -> list[dict[str, Any]]:
    """Measure all rows, of the platforms that have a device here."""
    rows = []
    for row in _rows():
        # It takes minutes.
        print(f"{row['name']}: {row['measured']} {row['unit']}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def _rows() -> Iterator[dict[str, Any]]:
    devices = dict(_devices())
    first = {platform: found[0] for platform, found in devices.items()}
    with tempfile.TemporaryDirectory() as folder:
        demo = DemoCompiling(Path(folder))
        for platform, device in first.items():
            cold, cached = demo.seconds(f"{platform}:{device.index}")
            what = f"the demo's operators for {platform}"
            yield _row(f"{what}, empty cache", cold, "s", COLD_SECONDS)
            yield _row(f"{what}, from the cache", cached, "s", CACHED_SECONDS)
    for platform, bare in BARE.items():
        for device in devices.get(platform, []):
            yield from _launches(device, bare)
    for platform, device in first.items():
        if device.device_type == "simulated":
            seconds = _migration(platform)
            yield _row(f"tapml offload --target {platform}, simulated", seconds, "s",
                       SIMULATED_SECONDS)  # fmt: skip


def _devices() -> Iterator[tuple[str, list[DeviceDescription]]]:
    for platform in platform_names():
        if platform == _HOST:
            continue
        try:
            ranked = rank_devices(platform)
        except TapmlError:
            continue
        found = [
            each.description
            for each in ranked
            if not each.problem and each.description.device_type != "checker"
        ]
        if found:
            yield platform, found


def _row(name: str, value: float, unit: str, bar: float) -> dict[str, Any]:
    return {
        "part": "platforms",
        "name": name,
        "measured": round(value, 3),
        "unit": unit,
        "at_most": round(bar, 1),
        "met": value <= bar,
    }


def _bare_vulkan(device: DeviceDescription, code: str) -> Callable[[int], None]:
    # Numbers in the order of the kernel's push constants: n, amount, the grid.
    pushed = struct.pack("<ifI", COUNT, 1.0, 1)
    return bare_dispatches(device.name, compile_glsl(code, KERNEL), pushed)


def _bare_opencl(device: DeviceDescription, code: str) -> Callable[[int], None]:
    """Launches by pyopencl alone, waited for at the end."""
    import pyopencl as cl

    from tapml_targets.opencl.description import every_device

    context = cl.Context([every_device()[device.index]])
    queue = cl.CommandQueue(context)
    kernel = cl.Kernel(cl.Program(context, code).build(), KERNEL)
    buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * COUNT) for _ in range(2)]
    for place, value in enumerate((*buffers, np.int32(COUNT), np.float32(1))):
        kernel.set_arg(place, value)

    def run(count: int, _held: object = buffers) -> None:
        # A kernel does not hold its buffers.
        for _ in range(count):
            cl.enqueue_nd_range_kernel(queue, kernel, (COUNT,), (COUNT,))
        queue.finish()

    return run


BARE: Final[dict[str, Callable[[DeviceDescription, str], Callable[[int], None]]]] = {
    "opencl": _bare_opencl,
    "vulkan": _bare_vulkan,
}
"""What runs dispatches of a kernel on a device, given its text, by a platform's bindings alone."""


def _launches(
    device: DeviceDescription, bare_on: Callable[[DeviceDescription, str], Callable[[int], None]]
) -> Iterator[dict[str, Any]]:
    """A recorded program, waited for, beside the same commands by the bare bindings."""
    made = many_launches(device.platform)
    code = made.modules[made.kernels[KERNEL].module].code.decode()
    with open_in_process(device) as session:
        # Behind the driver, which settles what the loader sees.
        bare = bare_on(device, code)
        library = session.upload(made)
        source, target = (session.allocate(4 * COUNT) for _ in range(2))
        tensors = [RemoteTensor(each, 0, (COUNT,), "float32") for each in (source, target)]
        for entry, count in (("many", LAUNCHES), ("add_one", 1)):
            with session.program(entry) as recorded:
                recorded.call(library, entry, tensors)

            def ours(program: Any = recorded) -> None:
                with session.batch() as batch:
                    batch.execute(program)
                session.fence()

            turns: dict[str, Callable[[], None]] = {"ours": ours, "bare": partial(bare, count)}
            seconds = take_turns(turns, SECONDS)
            mine, theirs = (1e6 * seconds[each] / count for each in ("ours", "bare"))
            what = "one launch" if count == 1 else f"a launch, {count} in a row"
            row = _row(f"{what}, {device.vendor_platform}", mine, "us", theirs + MICROSECONDS)
            yield row | {"bare": round(theirs, 1)}


def _migration(platform: str) -> float:
    """Seconds of moving the demo model with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run(
            [
                sys.executable, "-m", "tapml.cli.main", "offload", "--target", platform, "--quiet",
                "--session", str(Path(folder) / "session"),
            ],
            env=os.environ | {"TAPML_CACHE_DIR": str(Path(folder) / "cache")},
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return time.perf_counter() - started
