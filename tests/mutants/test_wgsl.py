"""WGSL is read into the same tree as OpenCL C, and each mistake is written in its own words."""

from __future__ import annotations

import pytest

from scripts.mutants.expression_parser import UnknownSyntaxError
from scripts.mutants.kinds import KINDS, sites
from scripts.mutants.site import SourceSite
from scripts.mutants.wgsl_parser import parse_wgsl
from tapml_targets.library import (
    Argument,
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
)

# A row's softmax of sorts, in the form that the code generator writes, with one of its functions.
ROW = """\
var<private> tapml_infinity_bits : u32 = 0x7f800000u;
fn tapml_part(x : f32) -> f32 {
  let half = 0.5f * x;
  return half;
}
@group(0) @binding(0) var<storage, read> x_ptr : array<f32>;
@group(0) @binding(1) var<storage, read> w_ptr : array<f32>;
@group(0) @binding(2) var<storage, read_write> out_ptr : array<f32>;
@group(0) @binding(3) var<storage, read_write> flags_ptr : array<atomic<u32>>;

struct PODArgs {
  S: i32,
  packGridDimX: u32
}
@group(0) @binding(4) var<uniform> podArgs : PODArgs;

var<workgroup> red : array<f32, 8>;
var<workgroup> top : array<f32, 1>;
@compute @workgroup_size(8, 1, 1)
fn row_kernel(
  @builtin(workgroup_id) blockIdx : vec3<u32>,
  @builtin(num_workgroups) gridDim : vec3<u32>,
  @builtin(local_invocation_id) threadIdx : vec3<u32>
) {
  if (blockIdx.z * gridDim.x + blockIdx.x > podArgs.packGridDimX) { return; }
  let v__1 : i32 = i32(blockIdx.z * gridDim.x + blockIdx.x);
  let unread : i32 = ((v__1 * 8i) + i32(threadIdx.x));
  var sum : array<f32, 1>;
  red[i32(threadIdx.x)] = x_ptr[((v__1 * 8i) + i32(threadIdx.x))];
  workgroupBarrier();
  if (i32(threadIdx.x) < 4i) {
    red[i32(threadIdx.x)] = max(red[i32(threadIdx.x)], red[(i32(threadIdx.x) + 4i)]);
  }
  workgroupBarrier();
  if (i32(threadIdx.x) == 0i) {
    top[0i] = red[0i];
  }
  sum[0i] = 0.00000000e+00f;
  for (var k : i32 = 0i; k < 8i; k++) {
    sum[0i] = (sum[0i] + exp((x_ptr[((v__1 * 8i) + k)] - top[0i])));
  }
  if (((v__1 * 8i) + i32(threadIdx.x)) < podArgs.S) {
    out_ptr[((v__1 * 8i) + i32(threadIdx.x))] = fma(sum[0i], 2.50000000e-01f, \
(x_ptr[i32(threadIdx.x)] * (1.00000000e+00f / (1.00000000e+00f + \
exp((0.00000000e+00f - x_ptr[i32(threadIdx.x)]))))));
} else {
    out_ptr[(i32(threadIdx.x)>>2u)] = tapml_part(-w_ptr[bitcast<i32>(threadIdx.x)]);
}
}
"""
_THREAD = "i32(threadIdx.x)"
_PLACE = f"(v__1 * 8i) + {_THREAD}"


def library(source: str) -> Library:
    """A Library of the one kernel."""
    tensors = ("x", "w", "out", "flags")
    buffers = tuple(BufferArgument(name) for name in tensors)
    arguments: tuple[Argument, ...] = (*buffers, ScalarArgument("S", "int32"))
    launch = Launch("row", arguments, (("floordiv", ("add", "S", 7), 8), 1, 1), (8, 1, 1))
    parameters = tuple(
        Parameter(name, ("S",), "float32", "output" if name in ("out", "flags") else "input")
        for name in tensors
    )
    return Library(
        "webgpu",
        (CodeModule("wgsl", source.encode()),),
        {"row": Kernel("row", "row_kernel", 0, 8)},
        {"row": OperatorProgram("row", parameters, (launch,))},
    )


_SITES = sites(library(ROW))


def test_the_kernel_has_sites_of_every_kind() -> None:
    assert set(_SITES) == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "rule", "before", "after"),
    [
        ("index shift", "one further", _PLACE, f"({_PLACE}) + 1"),
        ("bound off by one", "bound - 1", "podArgs.S", "(podArgs.S - 1)"),
        ("dropped guard", "always", f"{_THREAD} < 4i", "true"),
        ("dropped barrier", "no barrier", "workgroupBarrier();", ";"),
        ("reduction start", "another value", "0.00000000e+00f", "1.0"),
        ("reduction start", "second term", "0i", "(0i + 1)"),
        ("operand swap", "branches", f"({_PLACE}) < podArgs.S", f"!(({_PLACE}) < podArgs.S)"),
        ("sign", "minus dropped", "-w_ptr[bitcast<i32>(threadIdx.x)]",
         "(w_ptr[bitcast<i32>(threadIdx.x)])"),
        ("constant", "one per cent more", "2.50000000e-01f", "(1.01 * 2.50000000e-01f)"),
        ("transposed load", "row and column", "(v__1 * 8i) + k", "((k) * 8i) + (v__1)"),
        ("wrong stride", "one too many", "8i", "(8i + 1)"),
        ("skipped tail", "last round", "8i", "(8i - 1)"),
        ("stale output", "the first element", None, None),
        ("unsafe exponential", "exp(x) / (1 + exp(x))", None,
         f"(exp(x_ptr[{_THREAD}]) / (1.0 + exp(x_ptr[{_THREAD}])))"),
        ("unsafe exponential", "maximum not subtracted", "red[0i]", "0.0"),
        ("wrong cast", "float through int", f"x_ptr[{_THREAD}]", f"f32(i32(x_ptr[{_THREAD}]))"),
        ("wrong cast", "int through char", _THREAD, "i32((i32(threadIdx.x) << 24u) >> 24u)"),
    ],
)  # fmt: skip
def test_a_rule_makes_this_of_that(
    kind: str, rule: str, before: str | None, after: str | None
) -> None:
    found = [site for site in _SITES[kind] if isinstance(site, SourceSite)]
    changes = [(site.before, site.after) for site in found if site.rule == rule]
    assert any(before in (None, b) and after in (None, a) for b, a in changes), changes


def test_a_product_of_a_sum_that_is_written_out_is_negated_or_left_out() -> None:
    sums = {
        site.rule: site.after
        for kind in ("sign", "reduction start")
        for site in _SITES[kind]
        if isinstance(site, SourceSite) and site.before.startswith("fma(")
        and site.rule in ("product", "without a term")
    }  # fmt: skip
    assert sums["product"].startswith("fma(-(sum[0i]), 2.50000000e-01f, x_ptr[")
    assert sums["without a term"].startswith(f"(x_ptr[{_THREAD}] * ")


def test_a_sum_keeps_as_many_bits_as_a_shorter_format() -> None:
    (half, _) = [s for s in _SITES["accumulator precision"] if "exp(" in str(s.before)]
    assert half.after == f"bitcast<f32>(bitcast<u32>(f32({half.before})) & 0xFFFFE000u)"


def test_a_mutant_differs_in_one_place_and_can_still_be_read() -> None:
    for found in _SITES.values():
        for site in found:
            if isinstance(site, SourceSite):
                assert site.text != ROW
                end = len(ROW) - site.edit.end
                assert site.text[: site.edit.start] == ROW[: site.edit.start]
                assert site.text[-end:] == ROW[-end:]
                if not str(site.after).startswith(";"):
                    assert parse_wgsl(site.text)


def test_the_guard_of_a_folded_grid_and_functions_beside_the_kernel_are_left_alone() -> None:
    (kernel,) = parse_wgsl(ROW)
    first = next(iter(kernel.statements()))
    assert kernel.text(first).startswith("let v__1")
    inside = ROW.index("fn row_kernel")
    for found in _SITES.values():
        assert all(not isinstance(s, SourceSite) or s.edit.start > inside for s in found)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("for (var k : i32 = 0i; k < 8i; k++)", "while (true)"),
        ("sum[0i] = 0.0", "sum[0i] += 0.0"),
        ("vec3<u32>", "vec4<u32>"),
        ("let v__1 : i32 =", "let v__1 ="),
    ],
)
def test_text_of_another_form_is_refused_by_its_line(right: str, wrong: str) -> None:
    assert right in ROW
    with pytest.raises(UnknownSyntaxError, match=r"line \d+: expected"):
        parse_wgsl(ROW.replace(right, wrong, 1))
