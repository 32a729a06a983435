"""Tensors whose elements are narrower or wider than a word, bound as arrays of 32-bit words.

Where a device can store 8, 16 or 64 bits a tensor is bound as what it is. Elsewhere every access is
the call of one of these functions:

- bool and integers of 8 and 16 bits are cut out of their word. Several threads write to one word,
  so it is written with two atomic operations that leave the other elements as they are.
- int64 is two words: one is read, as :mod:`tapml_targets.codegen.proof` says, and both are written,
  the upper one with the sign. Every value that is written was proven to fit 32 bits.
"""

from __future__ import annotations

from tapml_targets.codegen.narrow_types import word_layout
from tapml_targets.codegen.value_proof import LOW


def read_function(pointer: str, element: str, mode: str = LOW) -> str:
    """The function ``read_<pointer>``, which reads one element out of an array of words."""
    name = f"read_{pointer}(int i)"
    if element == "int64":
        low = f"int({pointer}[2 * i])"
        if mode == LOW:
            return f"int {name} {{ return {low}; }}"
        return (
            f"int {name} {{\n"
            f"  int low = {low};\n"
            f"  int high = int({pointer}[2 * i + 1]);\n"
            "  int most = high < 0 ? -2147483647 - 1 : 2147483647;\n"
            "  return high == (low >> 31) ? low : most;\n"
            "}"
        )
    bits, per_word, shift = word_layout(element)
    word = f"{pointer}[i >> {shift}]"
    place = f"(i & {per_word - 1}) * {bits}, {bits}"
    if element == "bool":
        return f"int {name} {{ return int(min(bitfieldExtract({word}, {place}), 1u)); }}"
    kind = "uint" if element.startswith("u") else "int"
    return f"{kind} {name} {{ return bitfieldExtract({kind}({word}), {place}); }}"


def write_function(pointer: str, element: str) -> str:
    """The function ``write_<pointer>``, which writes one element into an array of words."""
    if element == "int64":
        return (
            f"void write_{pointer}(int i, int value) {{\n"
            f"  {pointer}[2 * i] = uint(value);\n"
            f"  {pointer}[2 * i + 1] = uint(value >> 31);\n"
            "}"
        )
    bits, per_word, shift = word_layout(element)
    mask = (1 << bits) - 1
    kind = "uint" if element.startswith("u") else "int"
    return (
        f"void write_{pointer}(int i, {kind} value) {{\n"
        f"  int place = (i & {per_word - 1}) * {bits};\n"
        f"  atomicAnd({pointer}[i >> {shift}], ~({mask}u << place));\n"
        f"  atomicOr({pointer}[i >> {shift}], (uint(value) & {mask}u) << place);\n"
        "}"
    )


def move_function(name: str, target: str, source: str) -> str:
    """The function that copies both words of a 64-bit element, from index `j` to index `i`."""
    return (
        f"int {name}(int i, int j) {{\n"
        f"  {target}[2 * i] = {source}[2 * j];\n"
        f"  {target}[2 * i + 1] = {source}[2 * j + 1];\n"
        "  return 0;\n"
        "}"
    )
