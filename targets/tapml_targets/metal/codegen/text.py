"""What TVM prints for Metal, as a whole module with the arguments that the platform's driver packs.

TVM prints every kernel with the same prologue, so that two of them are no module, and pads numbers
of 32 bits to 64 for its own runtime.
"""

from __future__ import annotations

import re
from typing import Final

from tapml_targets.codegen.lanes import within_subgroups

PROLOGUE: Final = "#include <metal_stdlib>\nusing namespace metal;\n"

# TVM's own, before each kernel.
_REPEATED: Final = re.compile(
    r"^(?:#include <metal_stdlib>|using namespace metal;|// Function: .*"
    r"|union __TVMArgUnion \{\n(?:.*\n)*?\};)\n",
    re.MULTILINE,
)
_PADDED: Final = re.compile(r"^(  (?:unsigned )?\w+ (\w+))\[2\];$", re.MULTILINE)
_NUMBERS: Final = re.compile(r"^struct \w+_args_t \{\n(?:.*\n)*?\};\n", re.MULTILINE)
# Lanes that have nothing to add pass on what they hold, which C++ leaves undefined.
_UNSET: Final = re.compile(r"^( +thread \w+ red_buf\w*\[1\]);$", re.MULTILINE)
_BLANK: Final = re.compile(r"\n{3,}")


def as_module(printed: str) -> str:
    """The kernels of `printed` below one prologue, their numbers as the structure declares them."""
    text = _REPEATED.sub("", printed)
    padded: set[str] = set()

    def plain(member: re.Match[str]) -> str:
        padded.add(member[2])
        return f"{member[1]};"

    text = _NUMBERS.sub(lambda numbers: _PADDED.sub(plain, numbers[0]), text)
    for name in padded:
        text = re.sub(rf"\barg\.{name}\[0\]", f"arg.{name}", text)
    text = _UNSET.sub(r"\1 = {0};", text)
    text = within_subgroups(text, "simd_shuffle", "31")
    return _BLANK.sub("\n\n", f"{PROLOGUE}\n{text.strip()}\n")
