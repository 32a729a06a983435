"""Manifest, sources and operator become a Library, or the mistake is named where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.kernels.assembly import assemble
from tapml.kernels.manifest import MAX_SOURCE_BYTES, read_manifest
from tapml.kernels.written import read_kernel
from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.errors import CompileError, LimitExceededError
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    ScalarArgument,
)
from tapml_targets.library_format import pack, unpack
from tests.kernels.operators import MANIFEST, SCALE, SOURCE, TARGET, put_kernel

ROWS = [
    TensorShape((1, 13, 128), "float32"),
    TensorShape((128,), "float32"),
    TensorShape((1, 13, 128), "float32"),
]


def assembled(tmp_path: Path, manifest: str = MANIFEST, source: str = SOURCE) -> Library:
    """The Library of a kernel of SCALE."""
    return assemble(read_manifest(put_kernel(tmp_path, manifest, source)), SCALE).library


def refusal(tmp_path: Path, manifest: str = MANIFEST, source: str = SOURCE) -> str:
    """What is said against it, without the folder."""
    path = put_kernel(tmp_path, manifest, source)
    with pytest.raises(CompileError) as caught:
        read_kernel(path, SCALE, TARGET)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_the_library_is_the_one_the_manifest_describes(tmp_path: Path) -> None:
    launch = Launch(
        "scale_kernel",
        (
            BufferArgument("input_0"),
            BufferArgument("input_1"),
            BufferArgument("output_0"),
            ScalarArgument("S", "int64"),
        ),
        grid=(("floordiv", ("add", ("mul", 128, "S"), 63), 64), 1, 1),
        block=(64, 1, 1),
    )
    assert assembled(tmp_path) == Library(
        target="opencl",
        modules=(CodeModule("opencl-c", SOURCE.encode()),),
        kernels={"scale_kernel": Kernel("scale_kernel", "scale_kernel", 0, 64)},
        operators={"scale": OperatorProgram("scale", SCALE.parameters, (launch,))},
    )


def test_it_travels_as_any_other(tmp_path: Path) -> None:
    library = assembled(tmp_path)
    assert unpack(pack(library)) == library


def test_several_launches_share_workspaces_in_order(tmp_path: Path) -> None:
    manifest = MANIFEST.replace("[[launches]]", '[workspaces]\npartial = "4 * S"\n\n[[launches]]')
    manifest = manifest.replace('"output_0"', '"partial"') + (
        '\n[[launches]]\nfor = "i"\nfrom = 1\ncount = "ceil_log2(S)"\n'
        '\n[[launches.launches]]\nentry = "finish"\noptions = ["fast-math"]\nwhen = "i < S"\n'
        'arguments = ["partial", { buffer = "output_0", byte_offset = "4 * i" }, '
        '{ scalar = "1 << i", dtype = "int32" }]\ngrid = ["S", 2]\nblock = [8, 4]\n'
    )
    source = SOURCE.replace("restrict output_0", "restrict partial") + (
        "__kernel void finish(__global float* partial, __global float* output_0, int step) {}\n"
    )
    library = assembled(tmp_path, manifest, source)
    first, loop = library.operators["scale"].statements
    assert isinstance(first, Launch)
    assert isinstance(loop, Loop)
    assert [module.options for module in library.modules] == [(), ("fast-math",)]
    plan = plan_call(library, "scale", ROWS, {})
    assert [workspace.nbytes for workspace in plan.workspaces] == [52]
    assert [launch.kernel for launch in plan.launches] == ["scale_kernel"] + ["finish"] * 4
    assert [launch.grid for launch in plan.launches[1:]] == [(13, 2, 1)] * 4
    assert library.kernels["finish"].threads_per_block == 32


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '  "input_1",\n',
            "",
            "kernel.toml:8: launches[0].arguments: expected 4 arguments, as scale_kernel takes at "
            "scale.cl:2, got 3\n"
            "   1  input_0     ->  __global const float* restrict input_0\n"
            "   2  output_0    ->  __global const float* restrict input_1\n",
        ),
        (
            '"input_0",\n  "input_1"',
            '"input_1",\n  "input_0"',
            "kernel.toml:9: launches[0].arguments[0]: wrong order: the kernel calls this input_0, "
            "it is given input_1",
        ),
        (
            '"input_1"',
            '"inptu_1"',
            "kernel.toml:10: launches[0].arguments[1]: scale has no parameter or workspace "
            "'inptu_1'; did you mean 'input_1'?",
        ),
        (
            '{ scalar = "S", dtype = "int64" }',
            '"S"',
            "kernel.toml:12: launches[0].arguments[3]: scale has no parameter or workspace 'S'",
        ),
        (
            '"int64"',
            '"int32"',
            "kernel.toml:12: launches[0].arguments[3]: expected dtype = 'int64' for "
            "'const long S', got 'int32'",
        ),
        (
            '"int64"',
            '"intt64"',
            "kernel.toml:12: launches[0].arguments[3].dtype: unknown dtype 'intt64'",
        ),
        (
            '"S"',
            '"T"',
            "kernel.toml:12: launches[0].arguments[3].scalar: column 1: 'T' is not a symbol",
        ),
        (
            '"scale_kernel"',
            '"scale_kernle"',
            "kernel.toml:7: launches[0].entry: scale.cl has no kernel 'scale_kernle'; did you mean "
            "'scale_kernel'?",
        ),
        (
            '"scale.cl"',
            '"scle.cl"',
            "kernel.toml:4: source: there is no file 'scle.cl'; in the folder are scale.cl",
        ),
        ('"scale.cl"', '"kernel.toml"', "kernel.toml:4: source: expected a file of opencl-c"),
        ('"scale.cl"', '"../x.cl"', "kernel.toml:4: source: expected a file in "),
        ('"scale.cl"', '"/etc/passwd"', "kernel.toml:4: source: expected a file in "),
        ('"opencl"', '"cpu"', "kernel.toml:3: target: expected 'opencl', got 'cpu'"),
        (
            '"opencl"\n',
            '"opencl"\nhash = "abc"\n',
            "kernel.toml:4: hash: this kernel was written for another operator: expected "
            "5ca1e5ca1e5ca1e5 (the scale of this session), got 'abc'",
        ),
        (
            '"opencl"\n',
            '"opencl"\noptions = ["fast-maths"]\n',
            "kernel.toml:4: options: there is no build option 'fast-maths'; did you mean "
            "'fast-math'?",
        ),
        ("[64]", "[0]", "kernel.toml:15: launches[0].block[0]: expected an extent from 1, got 0"),
        ("[64]", '["1 // 0"]', "kernel.toml:15: launches[0].block[0]: division by zero"),
        (
            "[[launches]]",
            '[workspaces]\ninput_0 = 4\n[[launches]]',
            "kernel.toml:7: workspaces.input_0: expected a name of its own (a parameter has that",
        ),
        (
            '"opencl"\n',
            '"opencl"\nparameters = ["input input_0 float32[1, n, 128]", '
            '"output input_1 float32[128]", "output output_0 float32[1, n, 128]"]\n',
            "kernel.toml:4: parameters[1]: the role differs; expected 'input input_1 float32[128]' "
            "for scale",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_where_it_is(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert refusal(tmp_path, MANIFEST.replace(old, new)).startswith(said)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("__local float* output_0", "shared memory, '__local float* output_0', which no launch"),
        ("__global const float* output_0", "output_0 is written by the operator, the kernel takes"),
        ("float output_0", "expected a number for 'float output_0', got the buffer output_0"),
        ("image2d_t output_0", "the kernel takes 'image2d_t output_0', which no operator has"),
    ],
)
def test_the_kernel_must_take_what_it_is_given(tmp_path: Path, argument: str, said: str) -> None:
    source = SOURCE.replace("__global float* restrict output_0", argument)
    message = refusal(tmp_path, source=source)
    assert said in message
    assert message.startswith("kernel.toml:11: launches[0].arguments[2]: ")


def test_an_output_that_nothing_writes_is_named(tmp_path: Path) -> None:
    manifest = MANIFEST.replace('  "output_0",\n', "")
    source = SOURCE.replace("__global float* restrict output_0, ", "")
    assert "no launch is given output_0" in refusal(tmp_path, manifest, source)


def test_a_source_that_is_too_large_is_refused(tmp_path: Path) -> None:
    source = SOURCE + "/" * MAX_SOURCE_BYTES
    assert f"expected at most {MAX_SOURCE_BYTES} bytes" in refusal(tmp_path, source=source)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.cl").write_text(SOURCE)
    path = put_kernel(tmp_path)
    (path.parent / "scale.cl").unlink()
    (path.parent / "scale.cl").symlink_to(tmp_path / "other.cl")
    with pytest.raises(CompileError, match="lies outside"):
        read_kernel(path, SCALE, TARGET)


def test_more_threads_than_the_device_has_are_refused(tmp_path: Path) -> None:
    path = put_kernel(tmp_path, MANIFEST.replace("[64]", "[16, 32]"))
    with pytest.raises(LimitExceededError, match="max_threads_per_block 512, the device has 256"):
        read_kernel(path, SCALE, TARGET)


def test_a_kernel_made_by_macros_is_left_to_the_compiler(tmp_path: Path) -> None:
    source = "#define KERNEL(name) __kernel void name\nKERNEL(scale_kernel)(__global float* a) {}\n"
    assert assembled(tmp_path, source=source).kernels["scale_kernel"].symbol == "scale_kernel"


@given(
    start=st.integers(0, len(MANIFEST)),
    length=st.integers(0, 12),
    text=st.text("abS01[]{}\"'=.,# \n\x00é-", max_size=12),
)
def test_a_manifest_edited_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, text: str
) -> None:
    edited = MANIFEST[:start] + text + MANIFEST[start + length :]
    path = put_kernel(tmp_path_factory.getbasetemp() / "edited", edited)
    try:
        library = read_kernel(path, SCALE, TARGET).library
    except CompileError as error:
        assert str(path.parent) in str(error)
    else:
        assert unpack(pack(library)) == library


@given(
    start=st.integers(0, len(SOURCE)),
    length=st.integers(0, 40),
    text=st.text('()*/,;{} \n_x"#é', max_size=12),
)
def test_a_source_edited_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, text: str
) -> None:
    edited = SOURCE[:start] + text + SOURCE[start + length :]
    path = put_kernel(tmp_path_factory.getbasetemp() / "edited", source=edited)
    try:
        library = read_kernel(path, SCALE, TARGET).library
    except CompileError as error:
        assert "kernel.toml" in str(error)
    else:
        assert library.modules[0].code == edited.encode()
