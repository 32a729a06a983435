"""Keeps the lane that a shuffle reads within its subgroup.

TVM numbers lanes through the block where several rows share a subgroup: a row's sum is read from
lane ``row * threads`` of a group of 32. CUDA takes that modulo the width, which TVM passes to it.
TVM's rules for Metal and WebGPU leave the width out, and there a lane beyond the subgroup is
undefined.
"""

from __future__ import annotations


def within_subgroups(text: str, function: str, mask: str) -> str:
    """`text` with the lane of each call of `function(value, lane)` cut by `mask`.

    A lane that is a constant is left as it is.
    """
    parts: list[str] = []
    start = 0
    while (found := text.find(f"{function}(", start)) >= 0:
        opened = found + len(function) + 1
        comma, end = _lane(text, opened)
        lane = text[comma + 1 : end].strip()
        parts.append(text[start : comma + 1])
        parts.append(f" {lane}" if lane.isdigit() else f" ({lane}) & {mask}")
        start = end
    return "".join([*parts, text[start:]])


def _lane(text: str, opened: int) -> tuple[int, int]:
    """Where the comma before the second argument is, and the parenthesis behind it."""
    depth, comma = 0, -1
    for place in range(opened, len(text)):
        match text[place]:
            case "(" | "[":
                depth += 1
            case ")" if depth == 0:
                return comma, place
            case ")" | "]":
                depth -= 1
            case "," if depth == 0 and comma < 0:
                comma = place
            case _:
                pass
    raise ValueError("a call without an end")
