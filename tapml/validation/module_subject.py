"""Validation of a module with inputs: each call site, and the module as one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy.typing as npt

from tapml.compiler.reference_module import ReferenceModule
from tapml.compiler.symbol_ranges import SymbolRanges, symbol_ranges
from tapml.execute.executor import Executor
from tapml.importing.module import Module
from tapml.matrix.comparing import Comparison, ImplementationResult
from tapml.matrix.compiling import Libraries, refusal
from tapml.matrix.implementation import Column
from tapml.matrix.report import END_TO_END, Cell, Row
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator, Origin
from tapml.plan.rooting_report import check, compare
from tapml.validation.end_to_end import ModuleCall
from tapml.validation.observed import observe
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Verdict, cause_of, failed, not_run
from tapml_targets.errors import CompileError, DeviceLostError, MismatchError, TapmlError

Array = npt.NDArray[Any]


class ModuleSubject:
    """A module that runs once on the reference; each of its call sites becomes a test.

    Parameters
    ----------
    module
        The module.
    arrays
        Its inputs, in the order of ``module.inputs``.
    executor
        Runs its plan on the reference.
    policy
        The limits.
    reference
        Name of the reference device.
    expected
        What the module itself gives for `arrays`, if it can be run: its import has failed where
        the reference gives something else.

    Attributes
    ----------
    outputs
        The outputs of the complete module on each device, by label.

    Raises
    ------
    InputError
        If an input does not fit; the message names it.
    """

    store: Final = None
    facts: Mapping[str, Any] = {}

    def __init__(
        self,
        module: Module,
        arrays: Sequence[Array],
        executor: Executor,
        policy: Policy,
        *,
        reference: str = "cpu",
        expected: Sequence[Array] | None = None,
    ) -> None:
        self.title, self.reference = module.entry, reference
        self.operators: Sequence[Operator] = list(module.plan.operators.values())
        self.ranges: SymbolRanges | None = symbol_ranges(
            module.plan, {module.entry: module.bind(arrays)}
        )
        self.outputs: dict[str, tuple[Array, ...]] = {}
        self._module, self._executor, self._policy = module, executor, policy
        named = dict(zip(module.graph.inputs, arrays, strict=True))
        self._tests, outputs = observe(executor, module.entry, named)
        self._whole = ModuleCall(module, arrays, outputs, policy)
        self._fault = "" if expected is None else self._import_fault(outputs, expected)

    def reference_module(self) -> ReferenceModule:
        """The module's operators, compiled for this machine."""
        from tapml.compiler.reference import compile_reference

        return compile_reference(self._module.plan)

    def origins(self, operator: str) -> tuple[Origin, ...]:
        """The lines and layers of the model that an operator comes from."""
        return self._module.plan.origins_of(operator)

    def tests(self, operator: Operator, probing: Probing) -> Iterable[CarvedCase]:
        """The operator's call sites, without probes."""
        return [test for test in self._tests if test.operator == operator.name]

    def end_to_end(self, columns: Sequence[Column], libraries: Mapping[str, Libraries]) -> Row:
        """Run the module as one call on each device."""
        ran: dict[str, ImplementationResult] = {}
        for column in columns:
            verdict, actual = self._call(column, libraries)
            self.outputs[column.label] = tuple(actual)
            ran[column.label] = ImplementationResult(column.implementation(), verdict, actual)
        differences, bits = [], {}
        for platform in libraries:
            own = [ran[c.label] for c in columns if c.platform == platform]
            as_one = replace(self._whole.operator, name=END_TO_END)
            comparison = Comparison(as_one, (END_TO_END,), platform, self._policy)
            expectation = lambda: self._whole.expectation  # noqa: E731
            comparison.add(END_TO_END, own, expectation, expectation)
            if comparison.difference is not None:
                differences.append(comparison.difference)
            if len(comparison.bits.labels) > 1:
                bits[platform] = comparison.bits
        cells = {label: Cell.of(each.verdict, 1) for label, each in ran.items()}
        return Row(END_TO_END, (), cells, tuple(differences), bits)

    def _import_fault(self, outputs: Mapping[str, Array], expected: Sequence[Array]) -> str:
        """How the imported module differs from the module itself; empty if it does not.

        Indices are left out: of equal values each side may choose another.
        """
        graph = self._module.graph
        kinds = self._whole.operator.output_kinds
        compared = [
            compare("output", graph.name, name, None, outputs[name], own, graph.values[name].dtype)
            for name, own, kind in zip(graph.outputs, expected, kinds, strict=True)
            if kind != "index"
        ]
        try:
            check(compared)
        except MismatchError as error:
            return str(error)
        return ""

    def _call(
        self, column: Column, libraries: Mapping[str, Libraries]
    ) -> tuple[Verdict, Sequence[Array]]:
        if column.session is None:
            return not_run(Cause.NO_DEVICE, column.problem), ()
        compiled: Libraries = {}
        for name, library in libraries[column.platform].items():
            problem = refusal(library, column, self.ranges)
            compiled[name] = CompileError(problem) if problem else library
        try:
            verdict, actual = self._whole.run(compiled, column.session)
            return failed(Cause.DISPUTED, self._fault) if self._fault else verdict, actual
        except DeviceLostError as error:
            column.lose(f"the device was lost in the {END_TO_END} run: {error}", error.exit_code)
            return failed(cause_of(error), f"the device was lost: {error}"), ()
        except (TapmlError, OSError) as error:
            return failed(cause_of(error), f"the device refused the call: {error}"), ()
