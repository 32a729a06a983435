"""What drivers say about a build names the developer's file, line and text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.failures.build_log import in_the_source, messages_of

SOURCE = "__kernel void f(__global float* a) {\n\tfloat x = ;\n}\n"
SENTENCE = "Some device (Some driver) does not build this program:"
INTEL = f"""{SENTENCE}
clBuildProgram failed: BUILD_PROGRAM_FAILURE

Build on <pyopencl.Device 'AMD EPYC' at 0x7fca842840c8>:

Compilation started
1:2:12: error: expected expression
    2 |   float x = ;
      |             ^
1:1:36: note: to match this '{{'
Compilation failed

(options: -cl-std=CL1.2)
"""
POCL = f"""{SENTENCE}
clBuildProgram failed: BUILD_PROGRAM_FAILURE

error: /root/.cache/pocl/kcache/tempfile_fjoOny.cl:2:12: expected expression
warning: /root/.cache/pocl/kcache/tempfile_fjoOny.cl:1:1: something else
Device cpu failed to build the program
"""
CLANG = f"{SENTENCE}\n/tmp/x/1.cl:2:12: fatal error: expected expression\n"


@pytest.mark.parametrize("log", [INTEL, POCL, CLANG])
def test_file_line_and_text_are_the_developers(log: str) -> None:
    text = in_the_source(log, Path("my/f.cl"), SOURCE, "opencl-c")
    lines = text.splitlines()
    assert lines[0] == SENTENCE
    assert lines[1].startswith("my/f.cl:2:12: ")
    assert lines[1].endswith("error: expected expression")
    assert lines[2:4] == ["     float x = ;", "               ^"]


@pytest.mark.parametrize(
    ("dialect", "log", "place"),
    [
        (
            "glsl",
            "glslang does not compile kernel 'f':\n"
            "ERROR: 0:2: 'nothing' : undeclared identifier \n"
            "ERROR: 0:2: '' : compilation terminated \n"
            "ERROR: 2 compilation errors.  No code generated.\n    2 |   float x = nothing;\n",
            "f:2: error: 'nothing' : undeclared identifier",
        ),
        (
            "wgsl",
            "llvmpipe does not build kernel 'f':\nValidation Error\n\nCaused by:\n"
            "  In wgpuDeviceCreateShaderModule, label = 'f'\n\n"
            "Shader 'f' parsing error: no definition in scope for identifier: `nothing`\n"
            "   ┌─ wgsl:2:12\n   │\n2 │     let x = nothing;\n   │             ^^^^^^^ unknown\n",
            "f:2:12: error: no definition in scope for identifier: `nothing`",
        ),
    ],
)
def test_the_language_says_how_its_compilers_write(dialect: str, log: str, place: str) -> None:
    lines = in_the_source(log, Path("f"), "first\nsecond\n", dialect).splitlines()
    assert lines[:3] == [log.splitlines()[0], place, "    second"]
    assert len(messages_of(log, dialect)) == 1


def test_every_message_is_kept_and_nothing_else() -> None:
    kinds = [(message.line, message.kind) for message in messages_of(INTEL, "opencl-c")]
    assert kinds == [(2, "error"), (1, "note")]
    assert len(in_the_source(POCL, Path("f.cl"), SOURCE, "opencl-c").splitlines()) == 7


def test_a_log_without_places_is_shown_as_it_is() -> None:
    said = "the module built, but has no kernel 'f'"
    assert in_the_source(said, Path("f.cl"), SOURCE, "opencl-c") == said


def test_messages_are_bounded() -> None:
    log = SENTENCE + "".join(f"\n1:{line}:1: error: no" for line in range(1, 100))
    text = in_the_source(log, Path("f.cl"), SOURCE, "opencl-c")
    assert text.endswith("(87 more messages)")


def test_a_place_outside_of_the_source_is_no_fault() -> None:
    assert "f.cl:9:4: error: no" in in_the_source(
        f"{SENTENCE}\n1:9:4: error: no\n", Path("f.cl"), "", "opencl-c"
    )
