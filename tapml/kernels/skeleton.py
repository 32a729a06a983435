"""Writes the source of a kernel that computes nothing yet, in any language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import Template

from tapml_targets.kernel_language import KernelLanguage, Skeleton
from tapml_targets.library import Parameter

ELEMENTS = "elements"
"""Name of the last number: the first output's number of elements."""


def write_skeleton(
    language: KernelLanguage,
    entry: str,
    parameters: Sequence[Parameter],
    symbols: Sequence[str],
    threads: int,
) -> str:
    """A kernel of one thread per element of the first output; it writes nothing yet.

    Parameters
    ----------
    language
        The language it is written in.
    entry
        Its name.
    parameters
        The operator's.
    symbols
        Passed as numbers, followed by the first output's number of elements.
    threads
        Threads of a block.
    """
    form = language.skeleton
    first = next(parameter for parameter in parameters if parameter.role != "input")
    dtypes = {parameter.dtype for parameter in parameters}
    places = (f"  {language.line_comment}   {line}" for line in _places(first, symbols))
    buffers = (_buffer(form, language, at, each) for at, each in enumerate(parameters))
    numbers = (Template(form.number).substitute(name=name) for name in (*symbols, ELEMENTS))
    return Template(form.text).substitute(
        needs="".join(line for dtype, line in form.needs.items() if dtype in dtypes),
        buffers=form.between_buffers.join(buffers),
        numbers=form.between_numbers.join(numbers),
        places="\n".join(places),
        entry=entry,
        output=first.name,
        count=len(parameters),
        threads=threads,
    )


def _buffer(form: Skeleton, language: KernelLanguage, place: int, parameter: Parameter) -> str:
    read = parameter.role == "input"
    element = form.elements.get(parameter.dtype)
    return Template(form.read if read else form.written).substitute(
        name=parameter.name,
        place=place,
        element=element or form.other[not read],
        note="" if element else f"  {language.line_comment} {parameter.dtype}",
    )


def _places(tensor: Parameter, symbols: Sequence[str]) -> Iterator[str]:
    """How the indices of a tensor's element follow from its number."""
    rest = "element"
    for axis in range(len(tensor.shape) - 1, -1, -1):
        extent = tensor.shape[axis]
        if axis == 0 or not (isinstance(extent, int) or extent in symbols):
            yield f"i{axis} = {rest}"
            return
        yield f"i{axis} = {rest} % {extent}"
        rest = f"{rest} / {extent}" if rest == "element" else f"({rest}) / {extent}"
