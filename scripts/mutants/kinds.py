"""The fifteen kinds of mistake, and every place of a Library where one can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from scripts.mutants import arithmetic_kinds as arithmetic
from scripts.mutants import bound_kinds as bounds
from scripts.mutants import memory_kinds as memory
from scripts.mutants.expression_parser import UnknownSyntaxError
from scripts.mutants.parser import parse_module
from scripts.mutants.site import Edit, PlanSite, Site, SourceSite
from scripts.mutants.syntax import KernelText
from scripts.mutants.text_kinds import WAVE, text_edits
from scripts.mutants.wgsl_parser import parse_wgsl
from tapml_targets.library import Library, OperatorProgram
from tapml_targets.platforms import language_of_dialect


@dataclass(frozen=True)
class Kind:
    """One kind of mistake: where it can be made in a kernel's text, and in a launch plan."""

    in_source: Callable[[KernelText], Iterator[Edit]] | None
    in_plan: Callable[[OperatorProgram], Iterator[PlanSite]] | None = None


KINDS: Final[dict[str, Kind]] = {
    "index shift": Kind(memory.index_shift),
    "bound off by one": Kind(bounds.bound_off_by_one),
    "dropped guard": Kind(bounds.dropped_guard),
    "dropped barrier": Kind(memory.dropped_barrier),
    "reduction start": Kind(bounds.reduction_start),
    "operand swap": Kind(arithmetic.operand_swap, arithmetic.swapped_buffers),
    "sign": Kind(arithmetic.sign),
    "constant": Kind(arithmetic.constant),
    "accumulator precision": Kind(arithmetic.accumulator_precision),
    "transposed load": Kind(memory.transposed_load),
    "wrong stride": Kind(memory.wrong_stride),
    "skipped tail": Kind(bounds.skipped_loop_tail, bounds.skipped_blocks),
    "stale output": Kind(memory.stale_output),
    "unsafe exponential": Kind(arithmetic.unsafe_exponential),
    "wrong cast": Kind(arithmetic.wrong_cast),
}

_PARSERS: Final[dict[str, Callable[[str], tuple[KernelText, ...]]]] = {
    "opencl-c": parse_module,
    "wgsl": parse_wgsl,
}


def sites(library: Library) -> dict[str, list[Site]]:
    """Every place where each kind of mistake can be made, in source order; empty kinds left out.

    Raises
    ------
    UnknownSyntaxError
        If a kernel is not of the form that the code generators write.
    """
    kernels: list[tuple[int, str, KernelText]] = []
    by_text: dict[str, list[SourceSite]] = {}
    for number, module in enumerate(library.modules):
        source = module.code.decode()
        language = language_of_dialect(module.dialect)
        if language is None:
            raise UnknownSyntaxError(f"nobody here knows the kernel language {module.dialect!r}")
        symbols = [each.symbol for each in library.kernels.values() if each.module == number]
        in_text = text_edits(source, symbols, language)
        parse = _PARSERS.get(module.dialect)
        if parse is not None:
            kernels += [(number, source, kernel) for kernel in parse(source)]
            in_text = {WAVE: in_text[WAVE]}
        for name, edits in in_text.items():
            by_text.setdefault(name, []).extend(
                SourceSite(name, edit, number, source) for edit in edits
            )
    found: dict[str, list[Site]] = {}
    for name, kind in {**KINDS, WAVE: Kind(None)}.items():
        # Two rules may come to the same text: it counts once.
        places: dict[object, Site] = {}
        for site in by_text.get(name, ()):
            places.setdefault(
                (site.module, site.edit.start, site.edit.end, site.edit.replacement), site
            )
        if kind.in_source is not None:
            for number, source, kernel in kernels:
                for edit in kind.in_source(kernel):
                    places.setdefault(
                        (number, edit.start, edit.end, edit.replacement),
                        SourceSite(name, edit, number, source),
                    )
        if kind.in_plan is not None:
            for program in library.operators.values():
                for change in kind.in_plan(program):
                    places.setdefault(change.program, change)
        if places:
            found[name] = list(places.values())
    return found
