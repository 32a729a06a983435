"""Operators as CUDA C: the text that TVM prints, under a prologue that NVRTC compiles by itself."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tvm import te, tirx

from tapml.kernels.signature_reader import read_entries
from tapml_targets.cuda import programs
from tapml_targets.cuda.codegen import generate
from tapml_targets.cuda.language import LANGUAGE
from tapml_targets.cuda.programs import compile_cubin
from tapml_targets.errors import CompileError, SetupError
from tapml_targets.library import CodeModule, Library
from tapml_targets.limit_profiles import load_profile, profile_names
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tests.compiler.operators import matmul_transposed, operator, softmax, source

needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="cuda-core and NVRTC are not installed"
)


def by_nvrtc(module: CodeModule, architecture: str) -> bytes:
    """The machine code; the test is skipped by name where a part of NVRTC is missing."""
    try:
        return compile_cubin(module, architecture)
    except SetupError as error:
        pytest.skip(str(error))


def compiled(make: object = softmax, limits: Limits = Limits(), **options: str) -> Library:
    assert callable(make)
    return generate(source(make()), Target("cuda", tuple(sorted(options.items())), limits))


def half() -> object:
    """A function of float16 that C has for float alone."""
    given = te.placeholder((tirx.Var("n", "int64"), 8), "float16", name="given")
    made = te.compute(given.shape, lambda i, j: tirx.max(tirx.tan(given[i, j]), given[i, j]), "o")
    return operator("tangent", te.create_prim_func([given, made]))


def text(library: Library) -> str:
    (module,) = library.modules
    assert module.dialect == "cuda-c" and module.kind == "source"
    return module.code.decode()


def test_a_text_includes_nothing_of_the_library_of_cpp() -> None:
    found = text(compiled())
    assert "cuda/std" not in found
    assert read_entries(LANGUAGE, found) == ["softmax_kernel"]


def test_a_kernel_whose_lanes_exchange_values_needs_warps_of_32() -> None:
    (shuffles,) = compiled(softmax).kernels.values()
    (product,) = compiled(matmul_transposed).kernels.values()
    assert (shuffles.subgroup_width, product.subgroup_width) == (32, 0)


def narrow_product() -> object:
    """100 rows, of which a block of threads takes 8."""
    vector = te.placeholder((1, 72), "float32", name="vector")
    matrix = te.placeholder((100, 72), "float32", name="matrix")
    axis = te.reduce_axis((0, 72), name="axis")
    made = te.compute((1, 100), lambda i, j: te.sum(vector[i, axis] * matrix[j, axis], axis), "o")
    return operator("product", te.create_prim_func([vector, matrix, made]))


def test_the_last_block_of_a_reduction_over_threads_stores_no_row_behind_the_last() -> None:
    found = text(compiled(narrow_product))
    (guard,) = re.findall(r"if \((.*)\) \{\s+o_ptr\[", found)
    assert "< 25" in guard


def test_half_precision_is_a_feature_and_brings_its_header() -> None:
    library = compiled(half)
    assert "#include <cuda_fp16.h>" in text(library)
    assert [kernel.features for kernel in library.kernels.values()] == [("float16",)]


@pytest.mark.parametrize(
    ("options", "built_as"),
    [
        ({}, ()),
        ({"fast_math": "1"}, ("fast-math",)),
        ({"fast_math": "1", "math": "precise"}, ("no-contraction",)),
        ({"optimiser": "off"}, ("no-optimiser",)),
    ],
)
def test_fast_mathematics_are_off_unless_asked_for(
    options: dict[str, str], built_as: tuple[str, ...]
) -> None:
    target = Target("cuda", tuple(sorted(options.items())), Limits())
    library = generate(source(softmax()), target)
    assert [module.options for module in library.modules] == [built_as]


def test_tensor_cores_are_refused_where_a_launch_cannot_ask_for_shared_memory() -> None:
    with pytest.raises(CompileError, match="leave out tensor_cores=on"):
        compiled(tensor_cores="on")


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        ("13.0", {"include_path": True}),
        ("12.8", {"include_path": True}),
        ("13.3", {"use_bundled_headers": True}),
        ("14.0", {"use_bundled_headers": True}),
        ("", {"use_bundled_headers": True}),
    ],
)
def test_headers_that_nvrtc_does_not_bring_are_those_that_are_installed(
    version: str, taken: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other headers are other code: it is not taken from the cache."""
    header = tmp_path / "crt" / "mma.h"
    header.parent.mkdir()
    header.write_text("one")
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    given: list[dict[str, object]] = []

    def options(**each: object) -> object:
        given.append({name: each[name] for name in each.keys() - {"name", "arch"}})
        return each

    compiler = SimpleNamespace(compile=lambda _: SimpleNamespace(code=b"code"))
    core = SimpleNamespace(Program=lambda *_: compiler, ProgramOptions=options)
    finder = SimpleNamespace(find_nvidia_header_directory=lambda _: str(tmp_path))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder)
    monkeypatch.setattr(programs, "_core", lambda: core)
    monkeypatch.setattr(programs, "_compiler_version", lambda: version)
    half, plain = (
        CodeModule("cuda-c", f"{include}// kept".encode())
        for include in ("#include <cuda_fp16.h>\n", "")
    )

    def compile_again() -> None:
        programs._header_folder.cache_clear()
        programs._headers_in.cache_clear()
        for module in (half, plain, half):
            assert compile_cubin(module, "sm_90") == b"code"

    compile_again()
    expected = {"include_path": [str(tmp_path)]} if "include_path" in taken else taken
    assert given == [expected, {}]
    header.write_text("another")
    compile_again()
    assert given[2:] == ([expected] if "include_path" in taken else [])
    programs._header_folder.cache_clear()
    programs._headers_in.cache_clear()


@needs_nvrtc
@pytest.mark.parametrize("make", [softmax, matmul_transposed, half])
def test_nvrtc_compiles_what_is_printed(make: object) -> None:
    (module,) = compiled(make).modules
    assert by_nvrtc(module, "sm_90").startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            'Failure finding "libnvrtc.so.13 or libnvrtc.so.12": No such file: libnvrtc.so.13',
            "NVRTC, which compiles kernels, is missing: pip install",
        ),
        (
            "use_bundled_headers requires NVRTC >= 13.3, but found 12.8. Upgrade the CUDA Toolkit "
            "/ driver providing libnvrtc, or set use_bundled_headers=False",
            "found here is 12.8, and the headers of half precision and tensor cores come with 13.3",
        ),
        (
            "6: NVRTC_ERROR_COMPILATION, compilation log:\n\n/cu13/include/mma.h(55): catastrophic "
            'error: cannot open source file "crt/mma.h"\n  #include "crt/mma.h"\n',
            "crt/mma.h, which tensor cores need, is not beside the other headers of CUDA",
        ),
        (
            "7: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, compilation log:\n\n"
            "nvrtc: error: failed to open libnvrtc-builtins.so.13.5.\n",
            "NVRTC is here, but not the libnvrtc-builtins.so.13.5 that belongs to it",
        ),
    ],
)
def test_what_is_missing_of_nvrtc_is_named(
    raised: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise RuntimeError(raised)

    core = SimpleNamespace(Program=refuse, ProgramOptions=lambda **given: given)
    monkeypatch.setattr(programs, "_core", lambda: core)
    module = CodeModule("cuda-c", f"#include <cuda_fp16.h>\n// {raised}".encode())
    with pytest.raises(SetupError) as caught:
        compile_cubin(module, "sm_90")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_nvrtc
def test_a_text_that_does_not_compile_is_told_with_its_line() -> None:
    wrong = CodeModule("cuda-c", b'extern "C" __global__ void k(int* o) {\n  o[0] = absent;\n}\n')
    with pytest.raises(CompileError, match=r"kernels\.cu\(2\): error.*absent"):
        by_nvrtc(wrong, "sm_80")


@pytest.mark.parametrize("name", profile_names("cuda"))
def test_kernels_fit_every_profile(name: str) -> None:
    limits = load_profile("cuda", name).limits
    assert limits.architecture == name
    for make in (softmax, matmul_transposed):
        for kernel in compiled(make, limits).kernels.values():
            assert 0 < kernel.threads_per_block <= limits.max_threads_per_block
            assert kernel.shared_memory_bytes <= limits.max_shared_memory_bytes
            assert np.isin(kernel.subgroup_width, (0, *limits.subgroup_widths))
