"""The ratio of every kernel, right and wrong, on every device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np

from scripts.calibration.damage import Array, Damage
from scripts.calibration.kernels import Device, Run, make_operator
from scripts.calibration.trials import Trial, trials
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.oracles.few_term_probes import few_term_probes_of
from tapml.oracles.probes import ProbeCase, probes_of, to_raw
from tapml.oracles.sensitivity import expect
from tapml.oracles.twin_runs import Case, Perturbations
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation, float_errors
from tapml.verdicts.judge import choose_limits, flushed_below
from tapml.verdicts.policy import Policy
from tapml_targets.errors import CompileError
from tapml_targets.float_formats import as_float64, ulp

RIGHT: Final = "right"
ALLOWED: Final = "as far off as OpenCL allows"
APPROXIMATE: Final = "further off than OpenCL allows"


@dataclass(frozen=True)
class Row:
    """One kernel on one set of inputs.

    Attributes
    ----------
    dtype, operator_class
        The row of limits that judges it.
    operator, kernel, where
        Which trial, :data:`RIGHT` or how it is wrong, and what it ran on.
    terms
        Length of its sums.
    ratio, passing, degraded
        Its error in units of (sensitivity + ulp), and the limits, grown with the terms.
    probes, probe_share
        How many probes its operator has, and the largest error on one, as a share of its limit.
    """

    dtype: str
    operator_class: str
    operator: str
    kernel: str
    where: str
    terms: int
    ratio: float
    passing: float
    degraded: float
    probes: int = 0
    probe_share: float = 0.0

    @property
    def share(self) -> float:
        """The ratio as a share of its limit."""
        return self.ratio / self.passing


def measure(dtype: str, devices: Sequence[Device], seeds: int) -> Iterator[Row]:
    """All rows of a dtype."""
    able = [device for device in devices if device.computes(dtype)]
    for trial in trials(dtype):
        made = make_operator(trial, dtype)
        if made is None:
            continue
        subject = _Subject(trial, dtype, *made)
        with ExitStack() as stack:
            runs: dict[str, Run] = {"LLVM": subject.on_host}
            for device in [] if trial.host_only else able:
                try:
                    runs[device.name] = stack.enter_context(device.loaded(subject.operator))
                except CompileError as error:
                    print(f"left out on {device.name}: {trial.name} in {dtype}: {error}")
            for seed in range(seeds):
                yield from subject.rows(np.random.default_rng(seed), runs)


class _Subject:
    """A trial's operator, compiled for the host in its own dtype and in float64."""

    def __init__(
        self, trial: Trial, dtype: str, operator: Operator, order: tuple[int, ...]
    ) -> None:
        self.operator = operator
        self._trial = trial
        self._dtype = dtype
        self._order = order
        self._reference = compile_reference([operator])[operator.name]
        self._twin = compile_twins([operator])[operator.name]
        shape = [int(n) for n in operator.written[0].shape if isinstance(n, int)]
        self._like = to_raw(np.zeros(shape), operator.written[0].dtype)
        self._policy = Policy()

    def on_host(self, inputs: Sequence[Array], like: Array) -> Array:
        """The output of LLVM's code."""
        output = np.zeros_like(like)
        self._reference(*map(np.ascontiguousarray, self._arranged(inputs)), output)
        return output

    def rows(self, generator: np.random.Generator, runs: Mapping[str, Run]) -> Iterator[Row]:
        """Right kernels, then wrong ones, on numbers from `generator`."""
        trial, policy = self._trial, self._policy
        with np.errstate(over="ignore"):
            inputs = [
                to_raw(trial.draw(generator, shape, index), self._dtype)
                for index, shape in enumerate(trial.shapes)
            ]
        right = self.on_host(inputs, self._like)
        case = Case(self.operator, self._arranged(inputs), [right], {}, [None] * len(inputs))
        expectation = expect(case, self._twin, Perturbations(policy.seed), policy.repeats)
        output = expectation.outputs[0]
        chosen = choose_limits(policy, self.operator.name, output, expectation.terms)

        def row(kernel: str, where: str, got: Array, probe_share: float = 0.0) -> Row:
            limits = chosen.limits
            return Row(
                dtype=chosen.dtype,
                operator_class=chosen.operator_class,
                operator=trial.name,
                kernel=kernel,
                where=where,
                terms=expectation.terms,
                ratio=_ratio(expectation, got, flushes=output.dtype in policy.flushes_subnormals),
                passing=limits.passing,
                degraded=limits.degraded,
                probes=len(probes),
                probe_share=probe_share,
            )

        probes = self._probes(inputs, right)
        allowed = self._allowed(expectation)
        for where, run in runs.items():
            given = inputs if where == "LLVM" else self._arranged(inputs)
            off = max(
                (self._probe_share(probe, run, where != "LLVM") for probe in probes), default=0.0
            )
            got = run(given, self._like)
            bound = _ratio(expectation, allowed) if allowed is not None else math.inf
            kernel = RIGHT if _ratio(expectation, got) <= bound else APPROXIMATE
            yield row(kernel, where, got, off)
        if allowed is not None:
            yield row(ALLOWED, "any", allowed)
        for name, damage in trial.wrong.items():
            off = max((self._damaged(probe, damage) for probe in probes), default=0.0)
            got = self.on_host(damage(inputs), self._like)
            # The damage may not matter, for example to a term that is not the largest.
            if off or not np.array_equal(got, right):
                yield row(name, "LLVM", got, off)

    def _allowed(self, expectation: Expectation) -> Array | None:
        """float64's output plus the error that OpenCL allows; None for other trials.

        Results of a wider dtype are off by units of that dtype, which do not matter here.
        """
        output = expectation.outputs[0]
        units = self._trial.units if self._dtype == "float32" else self._trial.half_units
        if not units or output.operator_class == "rounded":
            return None
        with np.errstate(over="ignore"):
            off = output.values + units * ulp(output.values, output.dtype)
            return to_raw(off, output.dtype)

    def _probes(self, inputs: Sequence[Array], right: Array) -> tuple[ProbeCase, ...]:
        test = ProbeCase(
            self._trial.name,
            self.operator.name,
            {},
            tuple(self._arranged(inputs)),
            (right,),
            Expectation((), 1, 0),
        )
        exact = probes_of(self.operator, test, self._twin, self._reference)
        return exact + few_term_probes_of(self.operator, test, self._twin, self._reference)

    def _probe_share(self, probe: ProbeCase, run: Run, arranged: bool) -> float:
        arrays = probe.arrays if arranged else self._trial_order(probe.arrays)
        return self._share(probe, run(arrays, self._like))

    def _damaged(self, probe: ProbeCase, damage: Damage) -> float:
        given = damage(self._trial_order(probe.arrays))
        return self._share(probe, self.on_host(given, self._like))

    def _share(self, probe: ProbeCase, got: Array) -> float:
        output = probe.expectation.outputs[0]
        limits = choose_limits(self._policy, self.operator.name, output, 1).limits
        return _ratio(probe.expectation, got) / limits.passing

    def _arranged(self, inputs: Sequence[Array]) -> list[Array]:
        """Inputs of the trial in the operator's order."""
        return [inputs[index] for index in self._order]

    def _trial_order(self, arrays: Sequence[Array]) -> list[Array]:
        """Inputs of the operator in the trial's order."""
        return [arrays[self._order.index(index)] for index in range(len(self._order))]


def _ratio(expectation: Expectation, raw: Array, *, flushes: bool = False) -> float:
    """Largest error in units of sensitivity + ulp, without errors from flushing subnormals."""
    output = expectation.outputs[0]
    got = as_float64(raw, output.dtype)
    ratios = float_errors(output, got)
    if flushes:
        ratios[np.abs(got - output.values) < flushed_below(output)] = 0.0
    return float(ratios.max())
