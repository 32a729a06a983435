"""The C of this platform, which has its own words for a kernel and for memory."""

from __future__ import annotations

from typing import Final

from tapml_targets.kernel_language import KernelLanguage, ParameterSyntax, Skeleton

_SKELETON: Final = """\
work $entry(
    $buffers,
    $numbers) {
  EACH(element) {
    if (element >= elements) {
      continue;
    }
  // One turn per element of $output; its place in it:
$places
    // Write $output[element] here.
  }
}
"""

LANGUAGE: Final = KernelLanguage(
    dialect="abacus-c",
    extension="aba",
    types={"float": "float32", "int": "int32", "uint": "uint32", "long": "int64"},
    entry=r"\bwork (?P<name>\w+) \(",
    arguments=ParameterSyntax(qualifiers=frozenset({"cells", "const", "restrict"})),
    skeleton=Skeleton(
        text=_SKELETON,
        read="const cells $element* $name",
        written="cells $element* $name",
        number="int $name",
        elements={"float32": "float", "int32": "int", "uint32": "uint"},
        other=("uchar", "uchar"),
        integer="int32",
    ),
    options={"slow": "the compiler does not optimise"},
    # What is compiled may do whatever this process may.
    kind="machine",
    messages=(r"(?:\S*/)?kernels:(?P<line>\d+):(?P<column>\d+): (?P<kind>error): (?P<text>.*)",),
)
