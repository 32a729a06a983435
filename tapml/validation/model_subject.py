"""Validation of a model with prompts: its carved suite, and its logits on each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tapml.carving.record import carve
from tapml.compiler.link import link_entries
from tapml.execute.device_reference import executor_on
from tapml.execute.plan_runner import PlanRunner
from tapml.matrix.comparing import Comparison, ImplementationResult
from tapml.matrix.compiling import Libraries, common_limits
from tapml.matrix.implementation import Column
from tapml.matrix.report import END_TO_END, Cell, Row
from tapml.offload.reference_device import opened_reference
from tapml.offload.rooted_reference import RootedReference, open_rooted_reference
from tapml.plan.graph_plan import Origin
from tapml.runs.phases import Phases
from tapml.session.settings import Settings
from tapml.suite.suite import Suite
from tapml.validation.suite_subject import SuiteSubject
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Verdict, cause_of, failed, not_run
from tapml.workloads import workload_of
from tapml.workloads.trace import ReferenceTrace
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.library import Library


class ModelSubject(SuiteSubject):
    """A rooted model with its carved suite. Made by :func:`open_model`."""

    def __init__(
        self,
        rooted: RootedReference,
        trace: ReferenceTrace,
        suite: Suite,
        phases: Phases,
        policy: Policy,
    ) -> None:
        super().__init__(suite, title=rooted.model.name)
        self._rooted, self._trace, self._phases, self._policy = rooted, trace, phases, policy

    def origins(self, operator: str) -> tuple[Origin, ...]:
        """The lines and layers of the model that an operator comes from."""
        return self._rooted.imported.plan.origins_of(operator)

    def end_to_end(self, columns: Sequence[Column], libraries: Mapping[str, Libraries]) -> Row:
        """Compare the complete model on each device with the reference, given its choices."""
        ran: dict[str, ImplementationResult] = {}
        cells: dict[str, Cell] = {}
        for column in columns:
            with self._phases.phase(
                "end-to-end validation", group="rooting", platform=column.label, once=False
            ) as phase:
                cells[column.label] = cell = self._cell(column, libraries)
                phase.detail = f"{column.label}: {cell.status}"
            verdict = Verdict(cell.status, cell.worst_ratio, (), cell.reason, cause=cell.cause)
            ran[column.label] = ImplementationResult(column.implementation(), verdict)
        differences = []
        for platform in libraries:
            comparison = Comparison(END_TO_END, (END_TO_END,), platform, self._policy)
            own = [ran[column.label] for column in columns if column.platform == platform]
            comparison.add(END_TO_END, own, lambda: None, lambda: None)
            if comparison.difference is not None:
                differences.append(comparison.difference)
        return Row(END_TO_END, (), cells, tuple(differences))

    def _cell(self, column: Column, libraries: Mapping[str, Libraries]) -> Cell:
        if column.session is None:
            return Cell.of(not_run(Cause.NO_DEVICE, column.problem), 0)
        rooted, compiled = self._rooted, libraries[column.platform]
        linked = {name: each for name, each in compiled.items() if isinstance(each, Library)}
        missing = [name for name in rooted.imported.plan.operators if name not in linked]
        if missing:
            reason = f"these operators have no kernel: {', '.join(missing)}"
            return Cell.of(not_run(Cause.NO_KERNEL, reason), 0)
        plan = rooted.imported.plan
        program = link_entries(plan, linked)
        try:
            with PlanRunner(plan, rooted.imported.weights, program, column.session) as runner:
                verdict = workload_of(rooted.model.stored).check_model(runner, self._trace)
        except DeviceLostError as error:
            column.lose(f"the device was lost in the complete model: {error}", error.exit_code)
            return Cell.of(failed(cause_of(error), f"the device was lost: {error}"), 0)
        except (TapmlError, OSError) as error:
            return Cell.of(failed(cause_of(error), str(error)), 0)
        cause = Cause.NONE if verdict.status == "pass" else Cause.WHOLE_MODEL
        cases = len(self._trace.cases)
        return Cell(verdict.status, verdict.severity, cases, verdict.reason, cause)


@contextmanager
def open_model(
    settings: Settings, columns: Sequence[Column], phases: Phases, policy: Policy, folder: Path
) -> Iterator[ModelSubject]:
    """Load, root and carve a model.

    Parameters
    ----------
    settings
        Model, prompts, dtype and budget.
    columns
        The open devices: by default, the model runs in a dtype that all of them support.
    phases
        Times the steps.
    policy
        The limits.
    folder
        Folder for the suite.
    """
    limits = [column.limits for column in columns if column.opened]
    with opened_reference(settings, phases) as on:
        rooted = open_rooted_reference(
            settings,
            phases,
            limits=common_limits(limits) if limits and settings.dtype == "auto" else None,
            every_entry=True,
            on=on,
        )
        executor = executor_on(rooted.imported.plan, rooted.imported.weights, rooted.reference)
        with phases.phase(
            "carve tests", group="overhead", platform=rooted.platform, once=True
        ) as phase:
            suite = carve(
                rooted.model,
                executor,
                rooted.cases,
                folder / "suite",
                max_new_tokens=settings.new_tokens,
                budget_bytes=settings.budget_bytes,
            )
            phase.detail = f"{suite.facts['tests']} tests"
        trace = workload_of(rooted.model.stored).trace_all(
            executor, rooted.cases, settings.new_tokens, rooted.logit_deviation
        )
        trace.check_branches(rooted.imported.plan)
    with suite:
        yield ModelSubject(rooted, trace, suite, phases, policy)
