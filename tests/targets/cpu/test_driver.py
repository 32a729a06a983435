"""Shared objects made by TVM run on the cpu platform with apache-tvm-ffi alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml_targets.cpu.driver import CPUDriver, list_devices, open_device
from tapml_targets.cpu.host_memory import HostBuffer, dlpack_view
from tapml_targets.driver import BufferUse, OpensMemory, ShowsMemory, TensorUse
from tapml_targets.errors import (
    CompileError,
    InputError,
    NoSuchDeviceError,
    RemoteError,
    SetupError,
)
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import (
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    TensorArgument,
)
from tests.targets.libraries import Tensors

BUILD = """
import sys
import tvm
from tvm import te
n = te.var("n")
a = te.placeholder((n,), name="a")
b = te.compute((n,), lambda i: a[i] + 1.0, name="b")
function = te.create_prim_func([a, b]).with_attr("global_symbol", "add_one")
tvm.compile(tvm.IRModule({"add_one": function}), target="llvm").export_library(sys.argv[1])
"""
USE = """
import json, os, sys
os.environ["TAPML_ALLOW_SHARED_LIBRARIES"] = "1"
from pathlib import Path
from tapml_targets.cpu.driver import list_devices, open_device
from tapml_targets.library import CodeModule, Kernel
driver = open_device(list_devices()[0])
module = CodeModule("elf-shared-object", Path(sys.argv[1]).read_bytes())
driver.load(module, [Kernel("add_one", "add_one", 0)])
print(json.dumps(sorted({"torch", "tvm", "tvm_ffi"} & sys.modules.keys())))
"""


@pytest.fixture(scope="session")
def shared_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled operator o[n] = a[n] + 1."""
    pytest.importorskip("tvm", reason="TVM compiles the shared object for this test")
    path = tmp_path_factory.mktemp("shared") / "add_one.so"
    subprocess.run([sys.executable, "-c", BUILD, path], check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def library(shared_object: Path) -> Library:
    parameters = (
        Parameter("a", ("n",), "float32", "input"),
        Parameter("o", ("n",), "float32", "output"),
    )
    launch = Launch("add_one", (TensorArgument("a"), TensorArgument("o")))
    return Library(
        "cpu",
        (CodeModule("elf-shared-object", shared_object.read_bytes()),),
        {"add_one": Kernel("add_one", "add_one", 0)},
        {"add_one": OperatorProgram("add_one", parameters, (launch,))},
    )


@pytest.fixture
def processor() -> Iterator[CPUDriver]:
    opened = open_device(list_devices()[0], allow_shared_libraries=True)
    yield opened
    opened.close()


def numbers(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(count, dtype=np.float32)


def test_a_shared_object_computes_on_host_memory(processor: CPUDriver, library: Library) -> None:
    tensors = Tensors(processor)
    with LoadedLibrary(processor, library) as loaded:
        for count in (5, 1000, 5):
            given, output = tensors.put(numbers(count)), tensors.put(np.zeros(count, np.float32))
            report = loaded.call("add_one", [given, output], timed=True)
            np.testing.assert_array_equal(tensors.get(output), numbers(count) + 1)
            assert report.kernel_nanoseconds is not None
            assert report.kernel_nanoseconds() > 0


def test_a_window_at_an_aligned_offset_is_a_tensor(processor: CPUDriver, library: Library) -> None:
    tensors = Tensors(processor)
    with LoadedLibrary(processor, library) as loaded:
        given = tensors.put(numbers(16), 64, 64)
        output = tensors.put(np.zeros(16, np.float32), 128, 64)
        loaded.call("add_one", [given, output])
        np.testing.assert_array_equal(tensors.get(output), numbers(16) + 1)
        crooked = TensorUse(given.buffer, 4, (16,), "float32")
        with pytest.raises(InputError, match="multiple of 64 bytes, this one starts at 4"):
            loaded.call("add_one", [crooked, output])


def test_shared_objects_are_refused_unless_allowed(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAPML_ALLOW_SHARED_LIBRARIES", raising=False)
    with pytest.raises(SetupError, match="TAPML_ALLOW_SHARED_LIBRARIES=1"):
        LoadedLibrary(open_device(list_devices()[0]), library)
    monkeypatch.setenv("TAPML_ALLOW_SHARED_LIBRARIES", "1")
    LoadedLibrary(open_device(list_devices()[0]), library).close()


def test_neither_tvm_nor_torch_is_loaded_for_it(shared_object: Path) -> None:
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", USE, shared_object],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ["tvm_ffi"]


def test_a_loaded_module_leaves_no_file(
    processor: CPUDriver, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    LoadedLibrary(processor, library).close()
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_shared_object_are_refused(
    processor: CPUDriver, library: Library
) -> None:
    module = library.modules[0]
    for code in (b"", b"no object", module.code[:500]):
        with pytest.raises(CompileError, match="does not load here"):
            LoadedLibrary(processor, replace(library, modules=(replace(module, code=code),)))


def test_a_function_the_object_lacks_is_named(processor: CPUDriver, library: Library) -> None:
    kernels = {"add_one": Kernel("add_one", "not_there", 0)}
    with pytest.raises(CompileError, match="no function 'not_there'"):
        LoadedLibrary(processor, replace(library, kernels=kernels))


def test_another_dialect_is_refused(processor: CPUDriver) -> None:
    with pytest.raises(CompileError, match="takes 'elf-shared-object' modules"):
        processor.load(CodeModule("opencl-c", b""), [])


def test_a_built_module_takes_no_build_options(processor: CPUDriver, library: Library) -> None:
    module = replace(library.modules[0], options=("fast-math",))
    with pytest.raises(CompileError, match="takes no build option 'fast-math'"):
        processor.load(module, [])


def test_an_error_inside_the_function_is_reported(processor: CPUDriver, library: Library) -> None:
    function = processor.load(library.modules[0], [Kernel("add_one", "add_one", 0)])["add_one"]
    buffer = processor.allocate(64)
    with pytest.raises(RemoteError, match="add_one"):
        processor.launch(function, (TensorUse(buffer, 0, (4,), "float32"),), (1, 1, 1), (1, 1, 1))
    wrong = TensorUse(buffer, 0, (4,), "int64")
    with pytest.raises(RemoteError, match=r"float32|int64"):
        processor.launch(function, (wrong, wrong), (1, 1, 1), (1, 1, 1))


def test_grids_and_pointers_are_refused(processor: CPUDriver, library: Library) -> None:
    function = processor.load(library.modules[0], [Kernel("add_one", "add_one", 0)])["add_one"]
    buffer = processor.allocate(64)
    tensor = TensorUse(buffer, 0, (4,), "float32")
    with pytest.raises(InputError, match="not over a grid"):
        processor.launch(function, (tensor, tensor), (2, 1, 1), (1, 1, 1))
    with pytest.raises(InputError, match="whole tensors"):
        processor.launch(function, (BufferUse(buffer, 0, 64), tensor), (1, 1, 1), (1, 1, 1))


def test_memory_is_written_filled_copied_and_read(processor: CPUDriver) -> None:
    buffer, other = processor.allocate(100), processor.allocate(100)
    data = bytes(range(100))
    processor.write(buffer, 0, memoryview(data))
    assert bytes(processor.read(buffer, 10, 20)) == data[10:30]
    target = bytearray(7)
    processor.read_into(buffer, 3, memoryview(target))
    assert target == data[3:10]
    processor.fill(other, 0, 100, b"\0")
    processor.fill(other, 5, 8, b"abc")
    assert bytes(processor.read(other, 0, 14)) == bytes(5) + b"abcabcab" + b"\0"
    processor.copy(buffer, 0, buffer, 5, 90)
    assert bytes(processor.read(buffer, 0, 100)) == data[:5] + data[:90] + data[95:]
    processor.free(buffer)
    with pytest.raises(InputError, match="outside a buffer of 0 bytes"):
        processor.read(buffer, 0, 1)


def test_its_memory_is_shown_where_it_lies_and_nobody_writes_there(processor: CPUDriver) -> None:
    buffer = processor.allocate(10)
    assert isinstance(processor, ShowsMemory)
    shown = processor.show(buffer, 2, 4)
    processor.write(buffer, 0, memoryview(b"0123456789"))
    assert bytes(shown) == b"2345"
    assert shown.readonly
    with pytest.raises(InputError, match="outside a buffer of 10 bytes"):
        processor.show(buffer, 8, 3)


def test_memory_is_filled_where_it_lies(processor: CPUDriver) -> None:
    assert isinstance(processor, OpensMemory) and processor.opens_memory()
    buffer = processor.allocate(10)
    processor.write(buffer, 0, memoryview(b"0123456789"))
    with processor.open_memory(buffer, 2, 4) as memory:
        memory[:] = b"abcd"
    assert bytes(processor.read(buffer, 0, 10)) == b"01abcd6789"
    with pytest.raises(InputError, match="write"), processor.open_memory(buffer, 8, 3):
        pass


def test_windows_outside_a_buffer_are_refused(processor: CPUDriver) -> None:
    buffer = processor.allocate(10)
    for act in (
        lambda: processor.write(buffer, 8, memoryview(b"abc")),
        lambda: processor.read(buffer, -1, 2),
        lambda: processor.fill(buffer, 10, 1, b"a"),
        lambda: processor.copy(buffer, 0, buffer, 6, 5),
    ):
        with pytest.raises(InputError, match="outside a buffer of 10 bytes"):
            act()
    with pytest.raises(InputError, match="cannot allocate"):
        processor.allocate(1 << 60)


def test_buffers_start_where_compiled_code_expects_them(processor: CPUDriver) -> None:
    for nbytes in (0, 1, 63, 64, 1000, 1 << 20):
        assert processor.allocate(nbytes).address % 64 == 0


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16", "int64", "bool"])
def test_every_dtype_becomes_a_tensor_over_the_same_memory(name: str) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    buffer = HostBuffer(256)
    tensor = tvm_ffi.from_dlpack(dlpack_view(buffer, 64, (4, 3), name))
    assert str(tensor.dtype) == name
    assert tuple(tensor.shape) == (4, 3)
    assert tensor.data_ptr() == buffer.address + 64


def test_packed_dtypes_are_refused() -> None:
    with pytest.raises(InputError, match="no int4 tensors"):
        dlpack_view(HostBuffer(64), 0, (4,), "int4")


def test_the_processor_of_another_machine_is_refused() -> None:
    with pytest.raises(NoSuchDeviceError, match="this machine has"):
        open_device(replace(list_devices()[0], name="another"))
