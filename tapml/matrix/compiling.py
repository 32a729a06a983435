"""One Library for all implementations of a platform: kernels that every one of them can take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tapml.compiler.preflight import check
from tapml.graph.plan import Operator
from tapml.kernels.written import WrittenKernels
from tapml.matrix.implementation import Column
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
    """What every one of several devices can take."""
    return reduce(lambda one, other: LimitProfile("", "", one).within(other), all_limits)


def compile_for_all(
    compiler: Compiler,
    operators: Sequence[Operator],
    columns: Iterable[Column],
    written: Mapping[str, WrittenKernels] | None = None,
) -> dict[str, Libraries]:
    """Compile operators for every platform of `columns`, for what its devices have in common.

    An operator that needs a feature which some of them lack (float16) is compiled for those that
    have it; the others' limits refuse it when they come to it.

    Parameters
    ----------
    written
        Hand-written kernels by platform; they take the compiled ones' place.

    Returns
    -------
    dict
        By platform, then by operator.
    """
    limits: dict[str, list[Limits]] = {}
    for column in columns:
        if column.opened:
            limits.setdefault(column.description.platform, []).append(column.description.limits)
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
    found = dict(by_hand(operators, written))
    left = [operator for operator in operators if operator.name not in found]
    found |= {operator.name: each for operator, each in compiler.compile_all(left, target)}
    features = frozenset().union(*(each.features for each in all_limits))
    refused = [each for each in left if isinstance(found[each.name], CompileError)]
    if refused and features != target.limits.features:
        wide = replace(target, limits=replace(target.limits, features=features))
        found |= {operator.name: each for operator, each in compiler.compile_all(refused, wide)}
    return {operator.name: found[operator.name] for operator in operators}


def by_hand(
    operators: Iterable[Operator], written: WrittenKernels | None
) -> Iterable[tuple[str, Library | CompileError]]:
    """Operators that have a hand-written kernel: its Library, or what is wrong with it."""
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


def refusal(library: Library | CompileError, column: Column) -> str:
    """Why a device cannot take an operator's kernels; empty where it can."""
    if isinstance(library, CompileError):
        return str(library)
    return "; ".join(map(str, check(library, column.description.limits)))


def written_for(folders: Sequence[Path], columns: Sequence[Column]) -> dict[str, WrittenKernels]:
    """Hand-written kernels for each platform of the columns, held against what all have."""
    if not folders:
        return {}
    found = {}
    for platform in platform_names():
        limits = [c.description.limits for c in columns if c.opened and c.platform == platform]
        if limits:
            found[platform] = WrittenKernels(
                folders, Target(platform, limits=common_limits(limits))
            )
    return found
