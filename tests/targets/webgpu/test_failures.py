"""What goes wrong on a WebGPU device, and what one is told, on every adapter."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import pytest

import tapml_targets
from tapml_rpc.local import open_local
from tapml_rpc.remote import RemoteTensor
from tapml_targets.driver import (
    BoundLaunch,
    BufferUse,
    DeviceDescription,
    Driver,
    KernelArgument,
    ScalarUse,
)
from tapml_targets.errors import (
    CompileError,
    DeviceLostError,
    InputError,
    LimitExceededError,
    RemoteError,
    SetupError,
)
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.limits import Limits
from tapml_targets.webgpu.driver import open_device
from tests.rpc.libraries import call_and_report
from tests.targets.libraries import library
from tests.targets.webgpu.wgsl import ADD, copy, load

MOST_DECLARED = 1000
"""Bindings that a module's text can hold; NVIDIA's driver allows half a million."""


def test_compiler_messages_are_shown_in_full(driver: Driver) -> None:
    with pytest.raises(CompileError) as caught:
        load(driver, copy(extra=" + true"), "copy")
    text = str(caught.value)
    assert driver.description.name in text and "'copy'" in text
    # The line of the module's own text, the place in it, and why.
    assert "6 │   o[id.x] = a[id.x] + true;" in text
    assert "Operation Add can't work with" in text


def test_line_numbers_are_the_modules_despite_a_prologue(driver: Driver) -> None:
    if "float16" not in driver.description.limits.features:
        pytest.skip("it has no half precision")
    source = copy(extra=" +* 1u").replace("array<u32>", "array<f16>")
    with pytest.raises(CompileError, match="wgsl:6:"):
        load(driver, source, "copy", features=("float16",))


@pytest.mark.parametrize(
    ("symbol", "module", "match"),
    [
        ("other", CodeModule("wgsl", copy().encode()), "entry point 'copy', not 'other'"),
        ("copy", CodeModule("wgsl", copy().encode(), ("fast-math",)), "no build options"),
    ],
)
def test_a_module_of_another_kind_is_refused(
    driver: Driver, symbol: str, module: CodeModule, match: str
) -> None:
    with pytest.raises(CompileError, match=match):
        driver.load(module, [Kernel(symbol, symbol, 0)])


@pytest.mark.parametrize(
    ("what", "limit"),
    [("threads per block", "max_threads_per_block"), ("threads along x", "max_block")],
)
def test_a_workgroup_above_the_devices_is_named(driver: Driver, what: str, limit: str) -> None:
    """The paper's case: 256 threads where the standard promises fewer."""
    stated = getattr(driver.description.limits, limit)
    most = stated if isinstance(stated, int) else stated[0]
    size = f"{most // 2}, 4" if limit == "max_threads_per_block" else f"{2 * most}"
    need = 2 * most
    with pytest.raises(LimitExceededError) as caught:
        load(driver, copy(size=size), "copy")
    found = str(caught.value)
    assert "'copy'" in found and f"needs {need} threads" in found and f"has {most}" in found


@pytest.mark.parametrize(
    "declared", ["array<f32, FLOATS>", "array<array<vec4<f32>, 128>, ROWSu>", "array<f32, COUNT>"]
)
def test_workgroup_memory_that_the_compiler_lets_pass_is_found(
    driver: Driver, declared: str
) -> None:
    most = driver.description.limits.max_shared_memory_bytes
    needs = 8 * (most // 2048) * 2048
    declared = declared.replace("FLOATS", f"{needs // 4}").replace("ROWS", f"{needs // 2048}")
    before = f"const COUNT = {needs // 4}u;\nvar<workgroup> kept : {declared};"
    told = f"{needs} bytes of workgroup memory.* has {most}"
    with pytest.raises(LimitExceededError, match=told):
        load(driver, copy(before=before), "copy")


def test_workgroup_memory_that_a_library_states_counts_as_well(driver: Driver) -> None:
    most = driver.description.limits.max_shared_memory_bytes
    with pytest.raises(LimitExceededError, match=f"needs {most + 1} bytes of workgroup memory"):
        load(driver, copy(), "copy", shared_memory_bytes=most + 1)


def test_more_buffers_than_a_kernel_may_have_are_named(driver: Driver) -> None:
    most = driver.description.limits.max_storage_buffers
    if most > MOST_DECLARED:
        pytest.skip(f"{driver.description.name} binds {most} buffers: no module declares more")
    many = "".join(
        f"@group(0) @binding({i}) var<storage, read_write> b{i} : array<f32>;\n"
        for i in range(most + 1)
    )
    source = f"{many}@compute @workgroup_size(1)\nfn many() {{ b0[0] = 1.0; }}"
    with pytest.raises(LimitExceededError, match=f"needs {most + 1} storage buffers.* has {most}"):
        load(driver, source, "many")


def test_a_window_above_the_largest_binding_is_named(driver: Driver) -> None:
    """The paper's case: weights of more than 128 MB in one binding."""
    limits: Limits = driver.description.limits
    nbytes = limits.max_binding_bytes + 4
    if nbytes > limits.max_buffer_bytes:
        pytest.skip("it binds as much as it allocates")
    large, small = driver.allocate(nbytes), driver.allocate(256)
    kernel = load(driver, copy(), "copy")
    uses = [BufferUse(small, 0, 256), BufferUse(large, 0, nbytes)]
    with pytest.raises(LimitExceededError) as caught:
        driver.launch(kernel, uses, (1, 1, 1), (64, 1, 1))
    driver.free(large)
    assert f"'copy': buffer 1 is bound with {nbytes} bytes" in str(caught.value)
    assert f"at most {limits.max_binding_bytes}" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("b", "takes 2 buffers first, then 2 scalars; got a buffer$"),
        ("bbb", "got a buffer, a buffer, a buffer$"),
        ("bbi", r"scalars \(int32, float32\); got a buffer, a buffer, int32$"),
        ("bbfi", "got a buffer, a buffer, float32, int32$"),
        ("ibbf", "takes 2 buffers first"),
    ],
)
def test_arguments_that_are_not_the_kernels_are_named(
    driver: Driver, arguments: str, match: str
) -> None:
    """What browsers call an invalid BindGroup and no more."""
    kernel, buffers = load(driver, ADD, "add"), [driver.allocate(256) for _ in range(3)]
    given: list[KernelArgument] = []
    for kind in arguments:
        scalar = {"i": "int32", "f": "float32"}.get(kind)
        given.append(ScalarUse(1, scalar) if scalar else BufferUse(buffers[len(given)], 0, 256))
    with pytest.raises(InputError, match=match):
        driver.launch(kernel, given, (1, 1, 1), (64, 1, 1))


def test_a_launch_with_another_workgroup_is_named(driver: Driver) -> None:
    uses = [BufferUse(driver.allocate(256), 0, 256) for _ in range(2)]
    kernel = load(driver, copy(), "copy")
    with pytest.raises(InputError, match=r"workgroups of \(64, 1, 1\).* asks for \(32, 1, 1\)"):
        driver.launch(kernel, uses, (1, 1, 1), (32, 1, 1))


def test_a_grid_that_cannot_be_folded_is_named(driver: Driver) -> None:
    uses = [BufferUse(driver.allocate(256), 0, 256) for _ in range(2)]
    most = driver.description.limits.max_grid[1]
    kernel = load(driver, copy(), "copy")
    with pytest.raises(LimitExceededError, match=f"over .{most + 1}, 1, 1. workgroups.*{most}"):
        driver.launch(kernel, uses, (most + 1, 1, 1), (64, 1, 1))


def test_freed_memory_is_not_used_again(driver: Driver) -> None:
    """wgpu ends the process where it is."""
    kept, freed = driver.allocate(256), driver.allocate(256)
    kernel = load(driver, copy(), "copy")
    uses = (BufferUse(kept, 0, 256), BufferUse(freed, 0, 256))
    sequence = driver.bind([BoundLaunch(kernel, uses, (1, 1, 1), (64, 1, 1))])
    driver.launch_all(sequence)
    driver.free(freed)
    with pytest.raises(InputError, match="'copy': a buffer it was bound to has been freed"):
        driver.launch_all(sequence)
    for use in (
        lambda: driver.launch(kernel, uses, (1, 1, 1), (64, 1, 1)),
        lambda: driver.read(freed, 0, 4),
        lambda: driver.write(freed, 0, memoryview(b"1234")),
        lambda: driver.fill(freed, 0, 4, b"1"),
        lambda: driver.copy(freed, 0, kept, 0, 4),
    ):
        with pytest.raises(InputError, match="the buffer has been freed"):
            use()
    driver.finish()


def test_an_allocation_without_memory_is_refused(driver: Driver) -> None:
    limits = driver.description.limits
    if not limits.memory_bytes:
        pytest.skip(f"{driver.description.name} states no memory, and may take what is not used")
    taken = []
    with pytest.raises(SetupError, match=r"free buffers or use a smaller model"):
        for _ in range(limits.memory_bytes // limits.max_buffer_bytes + 1):
            taken.append(driver.allocate(limits.max_buffer_bytes))
    for buffer in taken:
        driver.free(buffer)
    driver.free(driver.allocate(1 << 20))


def test_a_window_outside_a_buffer_is_refused(driver: Driver) -> None:
    buffer = driver.allocate(100)
    kernel = load(driver, copy(), "copy")
    with pytest.raises(InputError, match="'copy', buffer 1: bytes 32 to 132 are outside"):
        driver.launch(
            kernel, [BufferUse(buffer, 0, 4), BufferUse(buffer, 32, 100)], (1, 1, 1), (64, 1, 1)
        )


def test_every_call_reports_a_lost_device_and_it_closes(device: DeviceDescription) -> None:
    driver = open_device(device)
    buffers = [driver.allocate(256) for _ in range(2)]
    kernel = load(driver, copy(), "copy")
    uses = [BufferUse(buffer, 0, 256) for buffer in buffers]
    driver._device.destroy()
    for use in (
        lambda: driver.launch(kernel, uses, (1, 1, 1), (64, 1, 1)),
        lambda: driver.read(buffers[0], 0, 4),
        lambda: driver.write(buffers[0], 0, memoryview(b"1234")),
        lambda: driver.allocate(4),
        lambda: load(driver, ADD, "add"),
        driver.finish,
    ):
        with pytest.raises(DeviceLostError, match=r"the device is lost[\s\S]*open it again"):
            use()
    driver.close()


LOSE_IT = """
from tapml_targets.webgpu import commands

encode = commands.encode

def encode_and_lose(device, given, queries=None):
    made = encode(device, given, queries)
    if any(isinstance(each, commands.Dispatch) for each in given):
        device.destroy()
    return made

commands.encode = encode_and_lose
"""


def test_a_device_lost_in_a_submission_ends_its_session_with_a_report(
    device: DeviceDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgpu ends the process there; what it said last is what the session is told."""
    (tmp_path / "sitecustomize.py").write_text(LOSE_IT)
    root = Path(tapml_targets.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(tmp_path)]))
    with open_local(f"webgpu:{device.index}") as session:
        uploaded = session.upload(library("webgpu"))
        buffers = [session.allocate(64) for _ in range(2)]
        tensors = [RemoteTensor(buffer, 0, (16,), "float32") for buffer in buffers]
        session.write(buffers[0], bytes(64))
        with pytest.raises(DeviceLostError, match=r"SIGABRT[\s\S]*Parent device is lost"):
            call_and_report(session, uploaded, "double_add", tensors)
    with open_local(f"webgpu:{device.index}") as other:
        buffer = other.allocate(4)
        other.write(buffer, b"good")
        assert bytes(other.read(buffer)) == b"good"


def test_an_unclosed_device_does_not_fail_another(
    driver: Driver, device: DeviceDescription
) -> None:
    other = open_device(device)
    other._device.destroy()
    del other
    gc.collect()
    driver.finish()


def test_errors_during_execution_are_raised_by_the_wait(driver: Driver) -> None:
    logging.getLogger("wgpu").error("The WGPU device was lost (unknown):\nthe driver was reset")
    with pytest.raises(DeviceLostError, match="the driver was reset"):
        driver.finish()
    logging.getLogger("wgpu").error("a fault")
    with pytest.raises(RemoteError, match="the work before this point failed: a fault"):
        driver.read(driver.allocate(4), 0, 4)
    driver.finish()
