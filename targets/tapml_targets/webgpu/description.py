"""A WebGPU adapter as tapml describes it."""

from __future__ import annotations

import os
from typing import Any, Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.installed import package_version
from tapml_targets.limits import Limits
from tapml_targets.vulkan_loader.manifests import swiftshader_version
from tapml_targets.vulkan_loader.validation import kind_of_device
from tapml_targets.webgpu.discovery import is_swiftshader

# The names that wgpu and the standard give a feature, and tapml's.
FEATURES: Final = {
    "shader-f16": "float16",
    "subgroup": "subgroups",
    "subgroups": "subgroups",
}
_MAX_INDEX: Final = (1 << 31) - 1
TIMESTAMPS: Final = "timestamp-query"
_KINDS: Final = {
    "DiscreteGPU": "gpu",
    "IntegratedGPU": "gpu",
    "VirtualGPU": "gpu",
    "CPU": "cpu",
}


def describe(adapter: Any, index: int) -> DeviceDescription:
    """Everything the adapter says about itself that tapml uses."""
    info, limits = adapter.info, adapter.limits
    features = set(adapter.features)
    kind = _KINDS.get(info["adapter_type"], "gpu")
    per_dimension = limits["max-compute-workgroups-per-dimension"]
    return DeviceDescription(
        platform="webgpu",
        index=index,
        name=info["device"].strip() or "unnamed adapter",
        vendor_platform=f"{info['vendor'].strip() or 'unnamed'} ({info['backend_type']}, wgpu)",
        device_type=kind_of_device(kind),
        driver_version=f"{_driver_version(info)}; wgpu {package_version('wgpu')}, "
        f"wgpu-native {_native_version()}",
        limits=Limits(
            max_threads_per_block=limits["max-compute-invocations-per-workgroup"],
            max_block=(
                limits["max-compute-workgroup-size-x"],
                limits["max-compute-workgroup-size-y"],
                limits["max-compute-workgroup-size-z"],
            ),
            # What is wider than one dimension is folded into another; indices have 31 bits.
            max_grid=(min(per_dimension**2, _MAX_INDEX), per_dimension, per_dimension),
            max_shared_memory_bytes=limits["max-compute-workgroup-storage-size"],
            # Buffers and windows are rounded up, and some limits are one below a power of two.
            max_buffer_bytes=limits["max-buffer-size"] // 16 * 16,
            # WebGPU tells nobody how much a GPU has.
            memory_bytes=_machine_memory() if kind == "cpu" else 0,
            features=frozenset(FEATURES[name] for name in features & FEATURES.keys()),
            # Kernels count elements with 31 bits, whatever an adapter binds.
            max_binding_bytes=min(limits["max-storage-buffer-binding-size"], _MAX_INDEX) // 4 * 4,
            max_storage_buffers=limits["max-storage-buffers-per-shader-stage"],
            offset_alignment=limits["min-storage-buffer-offset-alignment"],
            subgroup_widths=subgroup_widths(info),
        ),
        details={
            "backend": info["backend_type"],
            "vendor_id": f"{info['vendor_id']:#x}",
            "device_id": f"{info['device_id']:#x}",
            "compiler": "naga",
            "kernel_time": "timestamp queries" if TIMESTAMPS in features else "wall clock",
            "features": " ".join(sorted(features)),
        },
    )


def subgroup_widths(info: Any) -> tuple[int, int]:
    """The width of its subgroups, where there is one: 4 to 128 is what wgpu says of all others."""
    # As wgpu-py 0.32 misspells them, and as the standard names them.
    for prefix in ("stackgroup", "subgroup"):
        fewest, most = info.get(f"{prefix}_min_size", 0), info.get(f"{prefix}_max_size", 0)
        if fewest == most > 0:
            return fewest, most
    return 0, 0


def _driver_version(info: Any) -> str:
    stated = info["description"].strip()
    if not stated and is_swiftshader(info):
        stated = swiftshader_version()
    return stated or "no version told"


def _native_version() -> str:
    from wgpu.backends import wgpu_native

    return str(getattr(wgpu_native, "__version__", "unknown"))


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
