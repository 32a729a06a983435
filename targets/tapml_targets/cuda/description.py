"""The NVIDIA GPUs there are, and one as tapml describes it."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from tapml_targets.cuda.sanitizer import is_watched
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint, package_version
from tapml_targets.limits import Limits


def import_core() -> Any:
    """Import ``cuda.core``.

    Raises
    ------
    SetupError
        If it is not installed.
    """
    try:
        return importlib.import_module("cuda.core")
    except ImportError as error:
        raise SetupError(
            f"NVIDIA GPUs need the package cuda-core ({error}): {install_hint('cuda')}"
        ) from None


def every_gpu() -> list[tuple[Any, DeviceDescription]]:
    """Each GPU and its description; none where NVIDIA's driver is not there.

    Raises
    ------
    SetupError
        If cuda-core is not installed.
    """
    core = import_core()
    try:
        devices = core.Device.get_all_devices()
    except Exception:
        # Without a driver the bindings say so by errors of several kinds.
        return []
    return [(device, describe(device, index)) for index, device in enumerate(devices)]


def describe(device: Any, index: int) -> DeviceDescription:
    """Everything cuda-core says about `device` that tapml uses."""
    facts = device.properties
    architecture = f"sm_{device.arch}"
    memory = _memory_bytes(device)
    return DeviceDescription(
        platform="cuda",
        index=index,
        name=device.name.strip(),
        vendor_platform="NVIDIA CUDA",
        device_type="checker" if is_watched() else "gpu",
        driver_version=_driver_version(),
        limits=Limits(
            max_threads_per_block=facts.max_threads_per_block,
            max_block=(facts.max_block_dim_x, facts.max_block_dim_y, facts.max_block_dim_z),
            max_grid=(facts.max_grid_dim_x, facts.max_grid_dim_y, facts.max_grid_dim_z),
            max_shared_memory_bytes=facts.max_shared_memory_per_block,
            max_buffer_bytes=memory,
            memory_bytes=memory,
            features=frozenset(
                {
                    "dynamic_shared_memory", "float16", "float64", "int16", "int64", "int8",
                    "subgroups",
                }
            ),
            subgroup_widths=(facts.warp_size, facts.warp_size),
            architecture=architecture,
        ),
        details={
            "compute_capability": ".".join(map(str, device.compute_capability)),
            "multiprocessors": str(facts.multiprocessor_count),
            "clock_mhz": str(facts.clock_rate // 1000),
            "pci_bus": str(device.pci_bus_id),
            "compiler": f"NVRTC {package_version('nvidia-cuda-nvrtc') or 'of the system'}",
        },
    )  # fmt: skip


def _memory_bytes(device: Any) -> int:
    """Bytes of the GPU's memory; 0 where the management library does not say."""
    try:
        return int(device.to_system_device().memory_info.total)
    except Exception:
        return 0


def _driver_version() -> str:
    """Versions of CUDA and of the kernel's driver; the latter's library may be missing."""
    system = importlib.import_module("cuda.core.system")
    parts = []
    with suppress(Exception):
        parts.append(f"CUDA {'.'.join(map(str, system.get_user_mode_driver_version()))}")
    with suppress(Exception):
        parts.append(f"driver {'.'.join(map(str, system.get_kernel_mode_driver_version()))}")
    return "; ".join(parts) or "of unknown version"
