"""GLSL, as the modules of this platform are written (see :mod:`tapml_targets.vulkan`)."""

from __future__ import annotations

from typing import Final

from tapml_targets.kernel_language import BindingSyntax, KernelLanguage, Skeleton

_SKELETON: Final = """\
#version 450
${needs}layout(local_size_x = $threads) in;
$buffers
layout(push_constant) uniform Numbers { $numbers } numbers;

void $entry() {
  int element = int(gl_GlobalInvocationID.x);
  if (element >= numbers.elements) {
    return;
  }
  // One invocation per element of $output; its place in it:
$places
  // Write $output[element] here.
}

void main() { $entry(); }
"""
_BUFFER: Final = "buffer Tensor$place { $element $name[]; };$note"

LANGUAGE: Final = KernelLanguage(
    dialect="glsl",
    extension="comp",
    types={
        "int8_t": "int8", "uint8_t": "uint8", "int16_t": "int16", "uint16_t": "uint16",
        "int": "int32", "uint": "uint32", "int64_t": "int64", "uint64_t": "uint64",
        "float16_t": "float16", "float": "float32", "double": "float64",
    },
    entry=r"\bvoid main \( (?:void )?\) \{ (?P<name>\w+) \( \) ; \}",
    arguments=BindingSyntax(
        memory=r"\blayout \( [^()]*?\bbinding = (?P<place>\d+)[^()]*\) "
        r"(?P<text>(?:\w+ )*?buffer \w+ \{ (?P<type>\w+) (?P<name>\w+) \[ \] ; \})",
        constant=r"\breadonly\b",
        numbers=r"\blayout \( push_constant \) uniform \w+ \{ (?P<members>[^{}]*)\}",
        member=r"(?P<type>\w+) (?P<name>\w+) ;",
        mark=r"\b(?:binding =|push_constant \))",
        filled=frozenset({"tapml_grid_x"}),
    ),
    skeleton=Skeleton(
        text=_SKELETON,
        read=f"layout(std430, set = 0, binding = $place) readonly {_BUFFER}",
        written=f"layout(std430, set = 0, binding = $place) {_BUFFER}",
        number="int $name;",
        elements={
            "float16": "float16_t", "float32": "float", "int32": "int", "uint32": "uint",
        },
        # Elements of other types lie in words of 32 bits.
        other=("uint", "uint"),
        integer="int32",
        between_buffers="\n",
        between_numbers=" ",
        needs={"float16": "#extension GL_EXT_shader_16bit_storage : require\n"},
    ),
    # glslang's "ERROR: 0:12: 'x' : undeclared identifier", without the line that ends its list.
    messages=(
        r"(?P<kind>ERROR|WARNING): \d+:(?P<line>\d+): (?!'' : compilation terminated)(?P<text>.*)",
    ),
    barrier=r"\bbarrier\b",
    exchange=r"\bsubgroup(?!Barrier|Memory)[A-Z]\w+",
)  # fmt: skip
