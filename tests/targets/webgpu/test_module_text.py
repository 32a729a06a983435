"""A module's text is read strictly: what is misread would be bound wrongly."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml_targets.errors import CompileError
from tapml_targets.webgpu.module_text import read_module, without_comments
from tests.targets.webgpu.wgsl import ADD, copy

PIECES = st.sampled_from(
    ["/*", "*/", "//", "\n", "@group(0) ", "@binding(", "0)", " var<storage", ", read>", " a",
     ": array<f32>", ";", "@compute", " @workgroup_size(", "1)", " fn f(", "struct A {", "}",
     "var<workgroup>", "<", ">", "enable f16;", "const N = 4;", "array<f32, N>", ":"]
)  # fmt: skip


def test_bindings_scalars_and_workgroup_are_what_the_text_says() -> None:
    text = read_module(ADD.encode())
    assert text.symbol == "add"
    assert text.access == ("read_write", "read")
    assert text.scalars == ("int32", "float32")
    assert text.packs_grid and text.has_uniform
    assert text.block == (64, 1, 1)
    assert text.workgroup_bytes == 0


def test_a_kernel_without_scalars_has_no_uniform_binding() -> None:
    text = read_module(copy(size="8, 4").encode())
    assert (text.scalars, text.has_uniform, text.block) == ((), False, (8, 4, 1))


@pytest.mark.parametrize(
    ("declared", "nbytes"),
    [
        ("array<f32, 64>", 256),
        ("array<array<f16, 8>, 4u>", 64),
        ("array<vec3<f32>, 2>", 32),
        ("vec4h", 8),
        ("atomic<u32>", 4),
        ("array<T, N>", 128),
    ],
)
def test_workgroup_memory_is_counted(declared: str, nbytes: int) -> None:
    before = f"alias T = vec2<f32>; const N : u32 = 16u;\nvar<workgroup> kept : {declared};"
    assert read_module(copy(before=before).encode()).workgroup_bytes == nbytes


def test_read_bindings_are_made_written_and_nothing_else_changes() -> None:
    text = read_module(ADD.encode())
    assert text.written(frozenset()) == ADD
    assert text.written(frozenset({1})) == ADD.replace("<storage, read>", "<storage, read_write>")


def test_comments_hide_what_they_hold() -> None:
    hidden = "/* @group(0) @binding(7) /* nested */ @compute */ // @binding(9)\n"
    assert read_module((hidden + copy()).encode()).access == ("read_write", "read")
    assert without_comments("a//b\nc/*d\n*/e") == "a   \nc   \n  e"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("@group(0) @binding(1)", "@binding(1) @group(0)"), "in another form"),
        (("@binding(1)", "@binding(2)"), r"behind them one uniform binding"),
        (("@binding(1)", "@binding(0)"), r"expected storage bindings 0, 1"),
        (
            ("@group(0) @binding(1)", "@group(1) @binding(1)"),
            "a: expected every binding in group 0",
        ),
        (("n: i32", "n: vec2<i32>"), "struct Arguments: expected members of i32, u32, f32"),
        (("n: i32", "@align(16) n: i32"), "expected members of"),
        (("packGridDimX: u32", "packGridDimX: i32"), "as its last member"),
        (("n: i32, amount: f32, packGridDimX: u32", "packGridDimX: u32, n: i32"), "last member"),
        (("struct Arguments", "struct Others"), "expected a struct Arguments"),
        (("@workgroup_size(64, 1, 1)", "@workgroup_size(64 * 2)"), "numbers above 0"),
        (("@workgroup_size(64, 1, 1)", "@workgroup_size(0)"), "numbers above 0"),
        (("@compute", "@vertex"), "expected one entry point"),
        (("fn add(", "fn first() {}\n@compute @workgroup_size(1)\nfn add("), "one entry point"),
        (("// o", "enable f16;\n// o"), "the module has an enable line"),
        (("// o", "struct S { a: f32 } var<workgroup> s : S;\n// o"), "workgroup variable s"),
    ],
)
def test_unknown_forms_are_refused(change: tuple[str, str], match: str) -> None:
    with pytest.raises(CompileError, match=match):
        read_module(ADD.replace(*change).encode())


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(CompileError, match="UTF-8"):
        read_module(b"\xff\xfe")


def test_a_text_of_any_length_is_read_in_linear_time() -> None:
    for piece in ("/*", "*/", "\n", " ", "@binding(", "@group(0) ", "array<", "var<workgroup> a :"):
        with pytest.raises(CompileError):
            read_module(piece.encode() * 100_000)
    with pytest.raises(CompileError, match="characters at most"):
        read_module(b" " * (5 << 20))


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=30))
def test_any_text_is_read_or_refused(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert len(without_comments(text)) == len(text)
    with suppress(CompileError):
        read_module(text.encode())
