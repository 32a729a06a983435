"""One Library for all implementations of a platform, within the limits of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tapml.compiler.preflight import check
from tapml.compiler.symbol_ranges import SymbolRanges
from tapml.kernels.written import WrittenKernels
from tapml.matrix.implementation import Column
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.limit_profiles import LimitProfile
from tapml_targets.limits import Limits
from tapml_targets.platforms import platform_names
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler

Libraries: TypeAlias = "dict[str, Library | CompileError]"
"""By operator."""


def common_limits(all_limits: Sequence[Limits]) -> Limits:
    """The limits that several devices have in common."""
    return reduce(lambda one, other: LimitProfile("", "", one).within(other), all_limits)


def compile_for_all(
    compiler: Compiler,
    operators: Sequence[Operator],
    columns: Iterable[Column],
    written: Mapping[str, WrittenKernels] | None = None,
) -> dict[str, Libraries]:
    """Compile operators for each platform of `columns`, within its devices' common limits.

    An operator that needs a feature that some devices lack (such as float16) is compiled for those
    that have it; the check of limits later refuses it on the others.

    Parameters
    ----------
    compiler, operators, columns
        The compiler, the operators to compile, and the devices.
    written
        Hand-written kernels by platform; they replace compiled ones.

    Returns
    -------
    dict
        Libraries or errors by platform, then by operator.
    """
    limits: dict[str, list[Limits]] = {}
    for column in columns:
        if column.opened:
            limits.setdefault(column.description.platform, []).append(column.limits)
    return {
        platform: _compile(
            compiler, operators, Target(platform, limits=common_limits(each)), each,
            None if written is None else written.get(platform),
        )
        for platform, each in limits.items()
    }  # fmt: skip


def _compile(
    compiler: Compiler,
    operators: Sequence[Operator],
    target: Target,
    all_limits: Sequence[Limits],
    written: WrittenKernels | None,
) -> Libraries:
    found = dict(handwritten_libraries(operators, written))
    left = [operator for operator in operators if operator.name not in found]
    found |= {operator.name: each for operator, each in compiler.compile_all(left, target)}
    features = frozenset().union(*(each.features for each in all_limits))
    refused = [each for each in left if isinstance(found[each.name], CompileError)]
    if refused and features != target.limits.features:
        wide = replace(target, limits=replace(target.limits, features=features))
        found |= {operator.name: each for operator, each in compiler.compile_all(refused, wide)}
    return {operator.name: found[operator.name] for operator in operators}


def handwritten_libraries(
    operators: Iterable[Operator], written: WrittenKernels | None
) -> Iterable[tuple[str, Library | CompileError]]:
    """The Libraries of hand-written kernels by operator, or the errors in them."""
    if written is None:
        return
    for operator in operators:
        try:
            kernel = written.find(operator)
        except CompileError as error:
            yield operator.name, error
            continue
        if kernel is not None:
            yield operator.name, kernel.library


def refusal(
    library: Library | CompileError, column: Column, ranges: SymbolRanges | None = None
) -> str:
    """Why a device cannot run an operator's kernels; empty if it can."""
    if isinstance(library, CompileError):
        return str(library)
    return "; ".join(map(str, check(library, column.limits, ranges=ranges)))


def written_for(folders: Sequence[Path], columns: Sequence[Column]) -> dict[str, WrittenKernels]:
    """Hand-written kernels for each platform, within its devices' common limits."""
    if not folders:
        return {}
    found = {}
    for platform in platform_names():
        limits = [c.limits for c in columns if c.opened and c.platform == platform]
        if limits:
            found[platform] = WrittenKernels(
                folders, Target(platform, limits=common_limits(limits))
            )
    return found
