"""Seeded perturbations of a test's inputs by up to one unit in the last place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.plan.graph_plan import Operator
from tapml.verdicts.operator_class import OutputTraits
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.float_formats import Float64s, as_float64, float_format, movable_ulp
from tapml_targets.library import Parameter

_MOVED_BYTES: Final = 512 << 20
# A prime, so that no stride of a tensor meets the same numbers again.
_NOISE_LENGTH: Final = 1_000_003


class Perturbations:
    """Seeded perturbations of inputs; those of weights are cached, because many tests read them.

    Parameters
    ----------
    seed
        A perturbation depends only on the seed, the parameter's position and the repeat.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._kept: OrderedDict[tuple[object, ...], Float64s] = OrderedDict()
        self._seen: set[tuple[object, ...]] = set()
        self._kept_bytes = 0

    def values(self, raw: NDArray[Any], dtype: str, key: str | None) -> Float64s:
        """`raw` as float64. `key` names a tensor that other tests share (its content hash)."""
        return self._keep((key, dtype, raw.shape), key, lambda: as_float64(raw, dtype))

    def units(self, values: Float64s, dtype: str, key: str | None) -> Float64s:
        """The largest perturbation of each of `values`: its ulp in `dtype`, or zero."""
        return self._keep(
            (key, dtype, values.shape, "units"), key, lambda: movable_ulp(values, dtype)
        )

    def perturbed(
        self,
        values: Float64s,
        units: Float64s,
        dtype: str,
        position: int,
        repeat: int,
        key: str | None,
    ) -> Float64s:
        """`values` perturbed by half to one of their `units`, up or down, in perturbation `repeat`.

        `units` are in `dtype`.
        """
        return self._keep(
            (key, values.shape, dtype, position, repeat),
            key,
            lambda: self._move(values, units, position, repeat),
        )

    def _move(self, values: Float64s, units: Float64s, position: int, repeat: int) -> Float64s:
        start = (position * 104_729 + repeat * 350_377 + 1) % _NOISE_LENGTH
        numbers = _noise(self._seed)
        flat = np.ravel(units)
        perturbed: Float64s = np.empty(values.size)
        done = 0
        while done < values.size:
            noise = numbers[start : start + values.size - done]
            end = done + noise.size
            np.multiply(noise, flat[done:end], out=perturbed[done:end])
            done, start = end, 0
        perturbed = perturbed.reshape(values.shape)
        perturbed += values
        return perturbed

    def _keep(
        self, name: tuple[object, ...], key: str | None, make: Callable[[], Float64s]
    ) -> Float64s:
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        made = make()
        # Activations occur once and weights repeatedly: cache from the second occurrence on.
        if key is None or name not in self._seen:
            self._seen.add(name)
            return made
        self._kept[name] = made
        self._kept_bytes += made.nbytes
        while self._kept_bytes > _MOVED_BYTES and self._kept:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return made


@lru_cache(maxsize=2)
def _noise(seed: int) -> Float64s:
    """Numbers of size 0.5 to 1 and random sign; each perturbation starts at a random offset.

    Sizes differ so that two terms of one binade never cancel exactly. Drawing them takes longer
    than many tests, and a reduction makes an oracle for every candidate.
    """
    noise = np.random.Generator(np.random.SFC64(seed)).random(_NOISE_LENGTH)
    noise -= 0.5
    noise += np.copysign(0.5, noise)
    noise.flags.writeable = False
    return noise


Twin = Callable[..., None]
"""``twin(*arrays, symbols=...)``: arrays in parameter order, float64 in place of every float."""


@dataclass(frozen=True)
class Case:
    """Raw inputs and reference outputs of one carved test.

    `keys` are content keys of inputs that other tests share, else None.
    """

    operator: Operator
    inputs: Sequence[NDArray[Any]]
    outputs: Sequence[NDArray[Any]]
    symbols: Mapping[str, int]
    keys: Sequence[str | None]


def plain_inputs(case: Case, perturbations: Perturbations) -> list[NDArray[Any]]:
    """The inputs in the twin's dtypes."""
    return [
        perturbations.values(raw, parameter.dtype, key) if is_float(parameter) else raw
        for parameter, raw, key in zip(case.operator.read, case.inputs, case.keys, strict=True)
    ]


def exact_and_perturbed(
    case: Case,
    twin: Twin,
    perturbations: Perturbations,
    repeats: int,
    moving: Sequence[str | None],
) -> tuple[list[NDArray[Any]], Iterator[list[NDArray[Any]]]]:
    """The twin's outputs on the exact inputs, and on perturbed ones, one perturbation at a time."""
    exact = run_twin(case, twin, plain_inputs(case, perturbations))
    return exact, perturbed_outputs(case, twin, perturbations, range(repeats), moving, exact)


def perturbed_outputs(
    case: Case,
    twin: Twin,
    perturbations: Perturbations,
    repeats: Iterable[int],
    moving: Sequence[str | None],
    exact: Sequence[NDArray[Any]],
    reach: float = 1.0,
) -> Iterator[list[NDArray[Any]]]:
    """The twin's outputs on inputs perturbed by up to `reach` units, one perturbation at a time.

    `repeats` number the perturbations; those of different reach must differ. Where one takes a
    function out of its domain, as an exponent of 2 that is no whole number any more does for a
    negative base, the elements of `exact` that are finite move by the other inputs alone.
    """
    if not moving:
        return
    plain = plain_inputs(case, perturbations)
    units = [
        None if dtype is None else _scaled(perturbations.units(values, dtype, key), reach)
        for dtype, values, key in zip(moving, plain, case.keys, strict=True)
    ]
    leaving: set[int] = set()
    for repeat in repeats:
        inputs = [
            values
            if dtype is None or unit is None
            else perturbations.perturbed(values, unit, dtype, position, repeat, key)
            for position, (dtype, values, unit, key) in enumerate(
                zip(moving, plain, units, case.keys, strict=True)
            )
        ]
        outputs = run_twin(case, twin, inputs)
        if any(each.any() for each in _left(exact, outputs)):
            # Each perturbation may take another one out: 1 into arcsin leaves only upwards.
            leaving |= _leaving(case, twin, plain, inputs, exact, leaving)
            staying = [
                plain[position] if position in leaving else values
                for position, values in enumerate(inputs)
            ]
            others = run_twin(case, twin, staying)
            outputs = [
                np.where(left, other, output)
                for left, other, output in zip(_left(exact, outputs), others, outputs, strict=True)
            ]
        yield outputs


def _left(
    exact: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]
) -> Iterator[NDArray[np.bool_]]:
    """Of each output, the elements that were finite."""
    for want, output in zip(exact, outputs, strict=True):
        with np.errstate(all="ignore"):
            is_whole = output.dtype != np.float64 or np.isfinite(output.sum())
        yield np.array(False) if is_whole else ~np.isfinite(output) & np.isfinite(want)


def _leaving(
    case: Case,
    twin: Twin,
    plain: Sequence[NDArray[Any]],
    perturbed: Sequence[NDArray[Any]],
    exact: Sequence[NDArray[Any]],
    known: Set[int],
) -> set[int]:
    """The inputs that take an output out of its domain alone, beside those that are known."""
    found = set()
    for position, values in enumerate(perturbed):
        if position in known or values is plain[position]:
            continue
        inputs = [*plain[:position], values, *plain[position + 1 :]]
        if any(each.any() for each in _left(exact, run_twin(case, twin, inputs))):
            found.add(position)
    return found


def _scaled(units: Float64s, reach: float) -> Float64s:
    return units if reach == 1.0 else reach * units


def is_exact(output: OutputTraits) -> bool:
    """Whether an output is the same in any arithmetic: copied, compared or rounded data."""
    is_discrete = output.operator_class == "discrete"
    return output.operator_class == "exact" or (is_discrete and not output.arithmetic)


def perturbed_dtypes(
    operator: Operator, traits: Sequence[OutputTraits], narrowest: str = ""
) -> list[str | None]:
    """The dtype in whose ulp each parameter read is perturbed; empty if it is not.

    An input that is exact in the arithmetic that reads it (a float16 weight of a float32 sum) is
    perturbed by that arithmetic's ulp, because nothing on the way loses more. So is one that is
    rounded to that arithmetic, such as a float32 that is computed with as a float16. `narrowest`
    bounds it where the operator's function does not tell.
    """
    if all(is_exact(output) for output in traits):
        return []
    arithmetic = min((t.arithmetic for t in traits if t.arithmetic), key=_bits, default="")
    moving = [
        min(arithmetic or parameter.dtype, narrowest or "float64", key=_bits)
        if is_float(parameter)
        else None
        for parameter in operator.read
    ]
    return moving if any(moving) else []


def _bits(dtype: str) -> int:
    return float_format(dtype).mantissa_bits


def check_counts(case: Case) -> None:
    """Refuse a case that does not have one array per parameter.

    Raises
    ------
    InputError
        If there are too many or too few.
    """
    operator = case.operator
    for what, parameters, arrays in (
        ("inputs", operator.read, case.inputs),
        ("outputs", operator.written, case.outputs),
    ):
        if len(parameters) != len(arrays):
            raise InputError(
                f"{operator.name}: expected {len(parameters)} {what}, the test has {len(arrays)}"
            )


def is_float(parameter: Parameter) -> bool:
    """Whether a parameter holds floating-point numbers."""
    return lookup(parameter.dtype).is_float


def run_twin(case: Case, twin: Twin, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Outputs of the twin on `inputs`, in the order of ``operator.written``."""
    outputs = [
        np.empty(like.shape, np.float64 if is_float(parameter) else like.dtype)
        for parameter, like in zip(case.operator.written, case.outputs, strict=True)
    ]
    return run_operator(case.operator, twin, inputs, outputs, case.symbols)


def run_operator(
    operator: Operator,
    function: Twin,
    inputs: Sequence[NDArray[Any]],
    outputs: Sequence[NDArray[Any]],
    symbols: Mapping[str, int],
) -> list[NDArray[Any]]:
    """Call an operator's function.

    Parameters
    ----------
    function
        Called like :class:`tapml.compiler.reference_module.ReferenceFunction`.
    inputs
        One array per parameter read; those updated in place are copied first.
    outputs
        One array per parameter written, filled in place where it is not updated.

    Returns
    -------
    list
        The written arrays, in the order of ``operator.written``.
    """
    remaining, places = iter(inputs), iter(outputs)
    arguments: list[NDArray[Any]] = []
    written: list[NDArray[Any]] = []
    for parameter in operator.parameters:
        if parameter.role == "input":
            arguments.append(np.asarray(next(remaining), order="C"))
            continue
        array = next(places)
        if parameter.role == "inout":
            array = np.array(next(remaining), order="C")
        arguments.append(array)
        written.append(array)
    function(*arguments, symbols=symbols)
    return written
