"""The AMD GPUs there are, and one as tapml describes it."""

from __future__ import annotations

from typing import Any

from tapml_targets.driver import DeviceDescription
from tapml_targets.limits import Limits
from tapml_targets.rocm.binding import HipError, ask, import_binding

ARCHITECTURE = "compiled_for"
"""The detail that names the architecture with its features."""


def every_gpu() -> list[DeviceDescription]:
    """Each GPU's description, in HIP's order; none where AMD's driver or ROCm is not there.

    Raises
    ------
    SetupError
        If AMD's bindings are not installed.
    """
    hip = import_binding("hip")
    try:
        count = ask(hip.hipGetDeviceCount)
        version = _version(hip)
        return [_described(hip, index, version) for index in range(count)]
    except (HipError, RuntimeError):
        # No GPU is an error of HIP's; no library one of Python's.
        return []


def _described(hip: Any, index: int, version: str) -> DeviceDescription:
    facts = ask(hip.hipGetDeviceProperties, index)
    architecture = str(facts.gcnArchName)
    name = architecture.partition(":")[0]
    memory = int(facts.totalGlobalMem)
    x, y, z = facts.maxGridSize
    bus = f"{facts.pciDomainID:04x}:{facts.pciBusID:02x}:{facts.pciDeviceID:02x}.0"
    return DeviceDescription(
        platform="rocm",
        index=index,
        name=str(facts.name).strip() or name,
        vendor_platform="AMD HIP",
        device_type="gpu",
        driver_version=version,
        limits=Limits(
            max_threads_per_block=int(facts.maxThreadsPerBlock),
            max_block=tuple(map(int, facts.maxThreadsDim)),  # type: ignore[arg-type]
            max_grid=(int(x), int(y), int(z)),
            max_shared_memory_bytes=int(facts.sharedMemPerBlock),
            max_buffer_bytes=memory,
            memory_bytes=memory,
            features=frozenset({"float16", "float64", "int16", "int64", "int8", "subgroups"}),
            subgroup_widths=(int(facts.warpSize), int(facts.warpSize)),
            architecture=name,
        ),
        details={
            ARCHITECTURE: architecture,
            "compute_units": str(facts.multiProcessorCount),
            "clock_mhz": str(facts.clockRate // 1000),
            "pci_bus": bus,
        },
    )


def _version(hip: Any) -> str:
    """Of HIP and of the driver, as HIP numbers them: major, minor and patch in one number."""
    whole = ask(hip.hipRuntimeGetVersion)
    major, rest = divmod(int(whole), 10_000_000)
    minor, patch = divmod(rest, 100_000)
    return f"HIP {major}.{minor}.{patch}"
