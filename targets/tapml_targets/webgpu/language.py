"""WGSL, as the modules of this platform are written (see :mod:`tapml_targets.webgpu`)."""

from __future__ import annotations

from typing import Final

from tapml_targets.kernel_language import BindingSyntax, KernelLanguage, Skeleton
from tapml_targets.webgpu.module_text import PACKED_GRID, SCALARS

_SKELETON: Final = """\
$buffers
struct Numbers {
$numbers
}
@group(0) @binding($count) var<uniform> numbers : Numbers;

@compute @workgroup_size($threads)
fn $entry(@builtin(global_invocation_id) at : vec3<u32>) {
  let element = i32(at.x);
  if (element >= numbers.elements) {
    return;
  }
  // One invocation per element of $output; its place in it:
$places
  // Write $output[element] here.
}
"""

LANGUAGE: Final = KernelLanguage(
    dialect="wgsl",
    extension="wgsl",
    types={**SCALARS, "f16": "float16"},
    entry=r"@ (?:compute|workgroup_size)\b[^;{}]*? fn (?P<name>\w+) \(",
    arguments=BindingSyntax(
        memory=r"@ binding \( (?P<place>\d+)u? \) (?P<text>var < storage[^>]*> (?P<name>\w+) : "
        r"(?:array < (?:atomic < )?(?P<type>\w+))?[^;]*)",
        constant=r"^var < storage (?:, read )?>",
        numbers=r"@ binding \( \w+ \) var < uniform > \w+ : (?P<struct>\w+)",
        member=r"(?P<name>\w+) : (?P<type>\w+)",
        mark=r"@ binding\b",
        filled=frozenset({PACKED_GRID}),
    ),
    skeleton=Skeleton(
        text=_SKELETON,
        read="@group(0) @binding($place) var<storage, read> $name : array<$element>;$note",
        written="@group(0) @binding($place) var<storage, read_write> $name : array<$element>;$note",
        number="  $name: i32,",
        elements={"float32": "f32", "float16": "f16", "int32": "i32", "uint32": "u32"},
        # Elements that WGSL's storage lacks are packed in 32-bit words.
        other=("u32", "atomic<u32>"),
        integer="int32",
        between_buffers="\n",
        between_numbers="\n",
    ),
    nested_comments=True,
    # naga's "Shader 'k' parsing error: text", and the place in the line behind it.
    messages=(r".*\b(?P<kind>error): (?P<text>.*)\n[ \t]*┌─ \S*:(?P<line>\d+):(?P<column>\d+)",),
    directive="",
    barrier=r"\bworkgroupBarrier\b",
    exchange=r"\bsubgroup[A-Z]\w+",
)
