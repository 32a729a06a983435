"""A device opened with a profile's limits: the implementation itself refuses what exceeds them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import TapmlError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.limit_profiles import load_profile
from tapml_targets.webgpu.driver import open_device
from tapml_targets.webgpu.narrowing import required_limits

KERNEL = """\
var<workgroup> shared_words : array<u32, {words}>;
@group(0) @binding(0) var<storage, read_write> o : array<u32>;
@compute @workgroup_size({threads}, 1, 1)
fn wide(@builtin(local_invocation_index) i : u32) {{
  shared_words[i % {words}u] = i;
  workgroupBarrier();
  o[i] = shared_words[0];
}}
"""


def wide(threads: int, words: int) -> CodeModule:
    return CodeModule("wgsl", KERNEL.format(threads=threads, words=words).encode())


def test_a_phones_limits_are_the_devices(device: DeviceDescription) -> None:
    profile = load_profile("webgpu", "webgpu-default")
    limits = profile.within(device.limits)
    opened = open_device(replace(device, limits=limits))
    try:
        assert opened.description.limits == limits
        inner = opened._device.limits
        assert inner["max-compute-invocations-per-workgroup"] == limits.max_threads_per_block
        assert inner["max-compute-workgroup-storage-size"] == limits.max_shared_memory_bytes
        assert inner["max-storage-buffer-binding-size"] == limits.max_binding_bytes
        kernel = [Kernel("wide", "wide", 0)]
        opened.load(wide(64, 64), kernel)
        with pytest.raises(TapmlError, match=r"(?i)workgroup"):
            opened.load(wide(64, limits.max_shared_memory_bytes // 4 + 1), kernel)
    finally:
        opened.close()


def test_bounds_that_are_not_narrower_stay_the_adapters(device: DeviceDescription) -> None:
    stated = device.limits
    adapter = {
        "max-compute-invocations-per-workgroup": 1024, "max-compute-workgroup-storage-size": 32768,
        "max-buffer-size": 2**31 + 5, "max-storage-buffer-binding-size": 2**31,
        "max-storage-buffers-per-shader-stage": 8, "max-compute-workgroup-size-x": 1024,
        "max-compute-workgroup-size-y": 1024, "max-compute-workgroup-size-z": 64,
        "min-storage-buffer-offset-alignment": 16,
    }  # fmt: skip
    assert required_limits(adapter, stated, stated)["max-buffer-size"] == 2**31 + 5
    narrow = required_limits(adapter, replace(stated, max_storage_buffers=4), stated)
    assert narrow["max-storage-buffers-per-shader-stage"] == 4
