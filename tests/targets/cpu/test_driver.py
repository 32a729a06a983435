"""What is the processor's own: who may load machine code, and the memory that it computes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tapml_targets.conformance_kernels import ADD, load
from tapml_targets.cpu.driver import CPUDriver, list_devices, open_device
from tapml_targets.cpu.host_memory import HostBuffer, dlpack_view
from tapml_targets.driver import BufferUse, Driver, ScalarUse, TensorUse
from tapml_targets.errors import InputError, RemoteError, SetupError
from tapml_targets.evaluator import LoadedLibrary
from tests.targets.libraries import Tensors, library

LIBRARY = library("cpu")
USE = """
import json, os, sys
os.environ["TAPML_ALLOW_SHARED_LIBRARIES"] = "1"
from pathlib import Path
from tapml_targets.cpu.driver import list_devices, open_device
from tapml_targets.library import CodeModule, Kernel
driver = open_device(list_devices()[0])
module = CodeModule("elf-shared-object", Path(sys.argv[1]).read_bytes(), kind="machine")
driver.load(module, [Kernel("add", "add", 0)])
print(json.dumps(sorted({"torch", "tvm", "tvm_ffi"} & sys.modules.keys())))
"""


@pytest.fixture
def processor(driver: Driver) -> CPUDriver:
    """The open processor."""
    assert isinstance(driver, CPUDriver)
    return driver


def numbers(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(count, dtype=np.float32)


def test_a_window_at_an_aligned_offset_is_a_tensor(processor: CPUDriver) -> None:
    tensors = Tensors(processor)
    with LoadedLibrary(processor, LIBRARY) as loaded:
        given = tensors.put(numbers(16), 64, 64)
        output = tensors.put(np.zeros(16, np.float32), 128, 64)
        loaded.call("add_one", [given, output])
        np.testing.assert_array_equal(tensors.get(output), numbers(16) + 1)
        crooked = TensorUse(given.buffer, 4, (16,), "float32")
        with pytest.raises(InputError, match="multiple of 64 bytes, this one starts at 4"):
            loaded.call("add_one", [crooked, output])


def test_shared_objects_are_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAPML_ALLOW_SHARED_LIBRARIES", raising=False)
    with pytest.raises(SetupError, match="TAPML_ALLOW_SHARED_LIBRARIES=1"):
        LoadedLibrary(open_device(list_devices()[0]), LIBRARY)
    monkeypatch.setenv("TAPML_ALLOW_SHARED_LIBRARIES", "1")
    LoadedLibrary(open_device(list_devices()[0]), LIBRARY).close()


def test_neither_tvm_nor_torch_is_loaded_for_it(tmp_path: Path) -> None:
    path = tmp_path / "module.so"
    path.write_bytes(LIBRARY.modules[0].code)
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", USE, path],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ["tvm_ffi"]


def test_a_loaded_module_leaves_no_file(
    processor: CPUDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    LoadedLibrary(processor, LIBRARY).close()
    assert list(tmp_path.iterdir()) == []


def test_an_error_inside_the_function_is_reported(processor: CPUDriver) -> None:
    function = load(processor, ADD)
    buffer = processor.allocate(64)
    with pytest.raises(RemoteError, match="'add'"):
        processor.launch(function, (TensorUse(buffer, 0, (4,), "float32"),), (1, 1, 1), (1, 1, 1))
    wrong = TensorUse(buffer, 0, (4,), "int64")
    given = (wrong, wrong, ScalarUse(4, "int32"), ScalarUse(1, "float32"))
    with pytest.raises(RemoteError, match="o is no tensor of float32"):
        processor.launch(function, given, (1, 1, 1), (1, 1, 1))


def test_grids_and_pointers_are_refused(processor: CPUDriver) -> None:
    function = load(processor, ADD)
    buffer = processor.allocate(64)
    tensor = TensorUse(buffer, 0, (4,), "float32")
    with pytest.raises(InputError, match="not over a grid"):
        processor.launch(function, (tensor, tensor), (2, 1, 1), (1, 1, 1))
    with pytest.raises(InputError, match="whole tensors"):
        processor.launch(function, (BufferUse(buffer, 0, 64), tensor), (1, 1, 1), (1, 1, 1))


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
