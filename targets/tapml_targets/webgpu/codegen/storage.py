"""Tensors whose elements WGSL cannot store: bool, 8- and 16-bit integers, 64-bit integers.

WGSL's storage has 32-bit words (and 16-bit floats). TVM prints such a tensor as if each element
had a word of its own (:mod:`.narrow_types`); here it is bound as an array of the words that its
elements really share, and every access becomes a call of a small function in the module's text:

- bool, int8, uint8, int16 and uint16 (which bfloat16 is made of) are cut out of their word. A word
  is shared by the threads that write its elements, so it is written with two atomic operations that
  leave the others as they are.
- int64 is two words: one is read, as :mod:`.proof` says, and both are written, the upper one with
  the sign. Every value that is written was proven to fit 32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tapml_targets.codegen.narrow_types import BITS, WORDS, word_layout
from tapml_targets.codegen.value_proof import LOW
from tapml_targets.errors import CompileError

_KINDS: Final = {"int32": "i32", "uint32": "u32"}
_ASSIGNED: Final = re.compile(r"\s*=(?!=)\s*")


def store_in_words(
    text: str,
    elements: Mapping[str, str],
    modes: Mapping[str, str],
    moves: Mapping[str, tuple[str, str]],
) -> str:
    """A kernel's text with its tensors bound as words.

    Parameters
    ----------
    text
        One kernel as TVM prints it.
    elements
        What the elements of its tensors are in memory, by the name of the binding.
    modes
        What :func:`~tapml_targets.codegen.proof.prove_narrow` says of its 64-bit tensors.
    moves
        The functions of :func:`~tapml_targets.codegen.copies.spell_moves`.

    Raises
    ------
    CompileError
        If the text is not written as this tapml knows it.
    """
    elements, modes = ({_printed(n): e for n, e in each.items()} for each in (elements, modes))
    moves = {name: (_printed(to), _printed(of)) for name, (to, of) in moves.items()}
    functions: list[str] = []
    for name, element in elements.items():
        pattern = re.compile(rf"var<storage, (read(?:_write)?)> {re.escape(name)} : array<\w+>;")
        found = pattern.search(text)
        if found is None:
            raise CompileError(f"TVM's WGSL binds {name!r} in a way that this tapml does not know")
        # TVM does not see what a move writes.
        moved = any(target == name for target, _ in moves.values())
        written = found[1] == "read_write" or moved
        atomic = written and element in BITS
        word = "atomic<u32>" if atomic else "u32"
        access = "read_write" if written else "read"
        binding = f"var<storage, {access}> {name} : array<{word}>;"
        text = f"{text[: found.start()]}{binding}{text[found.end() :]}"
        text = _called(text, name)
        if f"read_{name}(" in text:
            functions.append(read_function(name, element, modes.get(name, LOW), atomic=atomic))
        if f"write_{name}(" in text:
            functions.append(write_function(name, element))
    copies = (_move_function(each, *pointers) for each, pointers in moves.items())
    return "\n".join([*functions, *copies, text])


def _printed(name: str) -> str:
    """TVM names what a reduction keeps beside its value `NAME.v0`, and prints what WGSL takes."""
    return re.sub(r"\W", "_", name)


def _called(text: str, name: str) -> str:
    """The text with calls in the place of accesses; the last first: it may lie inside another."""
    for access in reversed(list(re.finditer(rf"\b{re.escape(name)}\[", text))):
        end = _closing(text, access.end() - 1)
        index = text[access.end() : end]
        assigned = _ASSIGNED.match(text, end + 1)
        if assigned is None:
            call, rest = f"read_{name}({index})", text[end + 1 :]
        else:
            stop = text.index(";", assigned.end())
            call = f"write_{name}({index}, {text[assigned.end() : stop]})"
            rest = text[stop:]
        text = f"{text[: access.start()]}{call}{rest}"
    return text


def _closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "[") - (text[at] == "]")
        if depth == 0:
            return at
    raise CompileError("TVM's WGSL has a bracket that is not closed")


def read_function(pointer: str, element: str, mode: str = LOW, *, atomic: bool = False) -> str:
    """The function ``read_<pointer>`` of WGSL, which reads one element out of an array of words."""
    if element == "int64":
        return _read_wide(pointer, mode)
    bits, per_word, shift = word_layout(element)
    word = f"{pointer}[u32(i) >> {shift}u]"
    word = f"atomicLoad(&{word})" if atomic else word
    kind = _KINDS[WORDS[element]]
    word = f"bitcast<i32>({word})" if kind == "i32" else word
    cut = f"extractBits({word}, (u32(i) & {per_word - 1}u) * {bits}u, {bits}u)"
    if element == "bool":
        cut = f"select(0i, 1i, {cut} != 0i)"
    return f"fn read_{pointer}(i : i32) -> {kind} {{ return {cut}; }}"


def _read_wide(pointer: str, mode: str) -> str:
    low = f"bitcast<i32>({pointer}[2u * u32(i)])"
    if mode == LOW:
        return f"fn read_{pointer}(i : i32) -> i32 {{ return {low}; }}"
    return (
        f"fn read_{pointer}(i : i32) -> i32 {{\n"
        f"  let low = {low};\n"
        f"  let high = bitcast<i32>({pointer}[2u * u32(i) + 1u]);\n"
        "  let most = select(2147483647i, -2147483647i - 1i, high < 0i);\n"
        "  return select(most, low, high == (low >> 31u));\n"
        "}"
    )


def write_function(pointer: str, element: str) -> str:
    """The function ``write_<pointer>`` of WGSL; all but int64 take atomic operations."""
    if element == "int64":
        return (
            f"fn write_{pointer}(i : i32, value : i32) {{\n"
            f"  {pointer}[2u * u32(i)] = bitcast<u32>(value);\n"
            f"  {pointer}[2u * u32(i) + 1u] = bitcast<u32>(value >> 31u);\n"
            "}"
        )
    bits, per_word, shift = word_layout(element)
    mask = (1 << bits) - 1
    return (
        f"fn write_{pointer}(i : i32, value : {_KINDS[WORDS[element]]}) {{\n"
        f"  let offset = (u32(i) & {per_word - 1}u) * {bits}u;\n"
        f"  atomicAnd(&{pointer}[u32(i) >> {shift}u], ~({mask}u << offset));\n"
        f"  atomicOr(&{pointer}[u32(i) >> {shift}u], (u32(value) & {mask}u) << offset);\n"
        "}"
    )


def _move_function(name: str, target: str, source: str) -> str:
    return (
        f"fn {name}(i : i32, j : i32) -> i32 {{\n"
        f"  {target}[2u * u32(i)] = {source}[2u * u32(j)];\n"
        f"  {target}[2u * u32(i) + 1u] = {source}[2u * u32(j) + 1u];\n"
        "  return 0i;\n"
        "}"
    )
