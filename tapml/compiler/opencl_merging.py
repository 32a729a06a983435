"""Kernels of OpenCL C put side by side into one: a group's number says whose body it runs.

Each body becomes a function that takes the kernel's arguments, its local arrays and the group's
number within its own share of the grid. Bodies of one kernel are one function: the group's number
chooses its arguments. So a body's text stays what the driver was given before, and a ``return`` in
it ends it alone.

Where one body has a barrier, each call ends with one. PoCL 7 takes branches that come together
without for one region, though they begin apart: it aborts ("Could not find a dominating alternative
variable."), or computes something else. All threads of a group take one branch, so the barrier
holds nobody up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tapml.compiler.opencl_text import GROUP, KernelText

SYMBOL: Final = "tapml_merged"

_COMMENT: Final = re.compile(r"//[^\n]*")
_BARRIER: Final = re.compile(r"\b(\w*barrier|wait_group_events)\s*\(")


@dataclass(frozen=True)
class Part:
    """One launch's share of a merged kernel.

    Attributes
    ----------
    name
        Of its operator.
    text
        Its kernel; parts of one text stand next to each other.
    arguments
        Per parameter of the kernel the index of the merged kernel's parameter.
    end
        Where its share of the groups ends: a number, or the index of the merged kernel's parameter
        that holds it as ``"7"``; None for the last part.
    """

    name: str
    text: KernelText
    arguments: tuple[int, ...]
    end: int | str | None


def prologue_of(texts: Sequence[KernelText]) -> tuple[str, ...] | None:
    """The lines that all of these kernels can follow; None where they contradict each other."""
    different = list(dict.fromkeys(text.prologue for text in texts))
    if len(different) == 1:
        return different[0]
    # Extensions may be on for who does not need them; what changes the meaning of text may not.
    if len(different) == 2 and () in different and all(text.enabling_only for text in texts):
        return next(each for each in different if each)
    return None


def local_bytes(texts: Sequence[KernelText]) -> int:
    """Bytes of local memory of a kernel that holds each of these once."""
    # Aligned as the widest vector, whatever order the driver lays them out in.
    return sum(-(-array.nbytes // 128) * 128 for text in texts for array in text.local_arrays)


def merged_text(
    parts: Sequence[Part], declared: Sequence[str], axis: int, prologue: Sequence[str]
) -> str:
    """The module of a merged kernel, which is called :data:`SYMBOL`.

    Parameters
    ----------
    parts
        In the order of their shares of the groups.
    declared
        The merged kernel's parameters but for their names.
    axis
        Along which the groups are shared out.
    prologue
        What :func:`prologue_of` the parts says.
    """
    classes: list[list[Part]] = []
    for part in parts:
        if classes and classes[-1][0].text == part.text:
            classes[-1].append(part)
        else:
            classes.append([part])
    meets = len(classes) > 1 and any(_has_barrier(each[0].text, axis) for each in classes)
    barrier = "\n    barrier(CLK_LOCAL_MEM_FENCE);" if meets else ""
    functions, arrays, calls = [], [], []
    start: int | str | None = 0
    for number, members in enumerate(classes):
        text = members[0].text
        functions.append(_function(number, text, axis))
        arrays += [
            f"  __local {each.type} tapml_local_{number}_{each.name}[{each.count}];\n"
            for each in text.local_arrays
        ]
        guard = "" if members[-1].end is None else f"if ({_below(members[-1].end)}) "
        calls.append(f"{guard}{{\n    {_call(number, members, start)}{barrier}\n  }}")
        start = members[-1].end
    parameters = ", ".join(f"{kind} {_parameter(n)}" for n, kind in enumerate(declared))
    return "".join(
        (
            f"// One launch for {len(parts)}: {', '.join(part.name for part in parts)}\n",
            *(f"{line}\n" for line in prologue),
            *functions,
            f"__kernel void {SYMBOL}({parameters}) {{\n",
            *arrays,
            f"  const size_t {GROUP} = get_group_id({axis});\n",
            f"  {' else '.join(calls)}\n}}\n",
        )
    )


def _has_barrier(text: KernelText, axis: int) -> bool:
    return _BARRIER.search(_COMMENT.sub("", text.body(axis))) is not None


def _function(number: int, text: KernelText, axis: int) -> str:
    parameters = [f"{each.declared} {each.name}" for each in text.parameters]
    parameters += [f"__local {each.type}* {each.name}" for each in text.local_arrays]
    parameters.append(f"const size_t {GROUP}")
    return f"static void {_name(number)}({', '.join(parameters)}) {{\n{text.body(axis)}\n}}\n"


def _call(number: int, members: Sequence[Part], start: int | str | None) -> str:
    columns = zip(*(part.arguments for part in members), strict=True)
    ends = [part.end for part in members[:-1]]
    arguments = [_chosen([_parameter(each) for each in column], ends) for column in columns]
    arguments += [f"tapml_local_{number}_{each.name}" for each in members[0].text.local_arrays]
    starts = [_value(each) for each in (start, *ends)]
    arguments.append(f"{GROUP} - {_chosen(starts, ends)}")
    return f"{_name(number)}({', '.join(arguments)});"


def _chosen(values: Sequence[str], ends: Sequence[int | str | None]) -> str:
    """The one of `values` that belongs to the group."""
    if len(set(values)) == 1:
        return values[0]
    text = values[-1]
    for value, end in zip(reversed(values[:-1]), reversed(ends), strict=True):
        text = f"({_below(end)} ? {value} : {text})"
    return text


def _below(end: int | str | None) -> str:
    return f"{GROUP} < {_value(end)}"


def _value(end: int | str | None) -> str:
    return f"(size_t){end}" if isinstance(end, int) else f"(size_t){_parameter(int(end or 0))}"


def _parameter(number: int) -> str:
    return f"tapml_{number}"


def _name(number: int) -> str:
    return f"tapml_part_{number}"
