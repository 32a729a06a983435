"""How error grows through a model: the target's own run beside the reference's, at every call site.

A test gives an operator the reference's inputs, so its verdict knows nothing of what is before it.
Here the target goes on with its own values: a deviation at a call site is that of everything up to
it. It decides nothing; the end-to-end verdict does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapml.execute.device_reference import executor_on
from tapml.execute.executor import Executor
from tapml.plan.graph_plan import CallStep, GraphPlan
from tapml.runs.events import Note
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.float_formats import as_float64
from tapml_targets.library import Library

if TYPE_CHECKING:
    from tapml.execute.arrays import Array
    from tapml.offload.context import MigrationContext
    from tapml.workloads.trace import CaseTrace
    from tapml.workloads.workload import Workload

Deviations = dict[str, dict[str, float]]
"""By entry, then by call site in the order of the run."""

# All values of one entry are kept at a time, from the reference.
MAX_KEPT_BYTES: Final = 1 << 30
_KEPT_ITEM_BYTES: Final = 8
# What is no number, or cannot be compared, in a journal that holds numbers.
WORST: Final = 1e30


def error_growth(
    plan: GraphPlan,
    workload: Workload[Any],
    trace: CaseTrace,
    reference: Executor,
    target: Executor,
) -> Deviations:
    """Deviations of a target's own run of a case from the reference's, teacher-forced.

    Parameters
    ----------
    reference, target
        Two executors of the plan. Their states are overwritten.

    Returns
    -------
    dict
        Of each entry's last run: the largest difference in what a call site wrote, of the largest
        magnitude that the reference wrote there. Sites beyond 1 GiB of values are left out.
    """
    want, got = _Recording(plan, reference), _Recording(plan, target)
    workload.compare(want, trace)
    workload.compare(got, trace)
    return {
        entry: {
            site: max(
                (_deviation(*pair) for pair in zip(values, own[site], strict=True)), default=0
            )
            for site, values in sites.items()
            if site in own
        }
        for entry, sites in want.written.items()
        for own in (got.written.get(entry, {}),)
    }


def record_error_growth(context: MigrationContext, libraries: Mapping[str, Library]) -> None:
    """Measure it on the first case, say where it is largest, and write it to the journal."""
    plan = context.imported.plan
    try:
        # A device that just held the finished plan may not hold this as well.
        for name, library in libraries.items():
            if name not in context.executor.placed:
                context.executor.place(name, library)
        reference = executor_on(plan, context.imported.weights, context.executor.reference)
        found = error_growth(
            plan, context.workload, context.trace.cases[0], reference, context.executor
        )
    except DeviceLostError:
        raise
    except TapmlError as error:
        context.watcher(Note(f"how error grows is not known: {error}"))
        return
    context.journal.append("growth", entries=found, text=text_of(found))


def text_of(found: Deviations) -> str:
    """A line about it: first, largest and last deviation of each entry."""
    parts = []
    for entry, sites in found.items():
        if sites:
            largest = max(sites, key=lambda site: sites[site])
            first, last = next(iter(sites.values())), list(sites.values())[-1]
            parts.append(
                f"{entry} begins with {first:.2g} and ends with {last:.2g}, at most "
                f"{sites[largest]:.2g} at {largest}"
            )
    return "; ".join(parts)


class _Recording:
    """A runner that keeps what the call sites of each entry's last run wrote."""

    def __init__(self, plan: GraphPlan, executor: Executor) -> None:
        self._plan, self._executor = plan, executor
        self.written: dict[str, dict[str, list[Array]]] = {}

    def reset(self) -> None:
        """Set the state to zero."""
        self._executor.reset()

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry and keep the values of its sites."""
        kept: dict[str, list[Array]] = {}
        nbytes = 0

        def keep(step: CallStep, _: Sequence[Array], written: Sequence[Array]) -> None:
            nonlocal nbytes
            nbytes += sum(each.size for each in written) * _KEPT_ITEM_BYTES
            if nbytes <= MAX_KEPT_BYTES:
                parameters = self._plan.operators[step.operator].written
                kept[step.site] = [
                    as_float64(each, parameter.dtype)
                    for each, parameter in zip(written, parameters, strict=True)
                ]

        outputs = self._executor.run(entry, inputs, keep)
        self.written[entry] = kept
        return outputs


def _deviation(want: Array, got: Array) -> float:
    """The largest difference of the largest magnitude; masked infinities and NaN may be equal."""
    with np.errstate(all="ignore"):
        # A scalar's difference would be no array.
        error = np.abs(np.atleast_1d(got - want))
        want, got = np.atleast_1d(want), np.atleast_1d(got)
        error[(want == got) | (np.isnan(want) & np.isnan(got))] = 0.0
        largest = float(error.max(initial=0.0))
        scale = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    if largest == 0.0:
        return 0.0
    found = largest / scale if scale else WORST
    return min(found, WORST) if np.isfinite(found) else WORST
