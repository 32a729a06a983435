"""The OpenCL devices there are, and one as tapml describes it."""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.limits import Limits
from tapml_targets.opencl.discovery import import_pyopencl

# Before any module of pyopencl: it looks for drivers once, when it is imported.
cl = import_pyopencl()

# Simulators: they check what a kernel does and take a thousand times as long.
CHECKERS: Final = frozenset(("Oclgrind",))
_FEATURES: Final = {
    "cl_khr_fp16": "float16",
    "cl_khr_fp64": "float64",
    "cl_khr_subgroups": "subgroups",
}


def every_device() -> list[Any]:
    """Every driver's devices, checkers last: installing one leaves the others' indices alone."""
    found: list[Any] = []
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        # The loader's way to say that it found no driver.
        return found
    for platform in sorted(platforms, key=lambda each: each.name.strip() in CHECKERS):
        try:
            found.extend(platform.get_devices())
        except cl.Error:
            continue
    return found


def describe(device: Any, index: int) -> DeviceDescription:
    """Everything the driver says about `device` that tapml uses."""
    platform = device.platform
    extensions = set(device.extensions.split())
    sizes = [*device.max_work_item_sizes, 1, 1, 1][:3]
    return DeviceDescription(
        platform="opencl",
        index=index,
        name=device.name.strip(),
        vendor_platform=platform.name.strip(),
        device_type=_device_type(device),
        driver_version=f"{device.driver_version.strip()}; {platform.version.strip()}",
        limits=Limits(
            max_threads_per_block=device.max_work_group_size,
            max_block=(sizes[0], sizes[1], sizes[2]),
            max_shared_memory_bytes=device.local_mem_size,
            max_buffer_bytes=device.max_mem_alloc_size,
            memory_bytes=device.global_mem_size,
            # The bound is on the bytes of all arguments, and a pointer takes eight.
            max_arguments=device.max_parameter_size // 8,
            features=frozenset(
                feature for extension, feature in _FEATURES.items() if extension in extensions
            ),
        ),
        details={
            "vendor": device.vendor.strip(),
            "opencl_version": device.version.strip(),
            "compute_units": str(device.max_compute_units),
            "clock_mhz": str(device.max_clock_frequency),
            "buffer_offset_alignment": str(offset_alignment(device)),
            "extensions": " ".join(sorted(extensions)),
        },
    )


def offset_alignment(device: Any) -> int:
    """Bytes that a sub-buffer's start must be a multiple of."""
    # The query counts bits.
    return max(1, int(device.mem_base_addr_align) // 8)


def _device_type(device: Any) -> str:
    if device.platform.name.strip() in CHECKERS:
        return "checker"
    for bit, name in (
        (cl.device_type.GPU, "gpu"),
        (cl.device_type.ACCELERATOR, "accelerator"),
    ):
        if device.type & bit:
            return name
    return "cpu"
