"""Models of one entry without state: a case is one call, and nothing is chosen on the way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tapml.execute.arrays import Array
from tapml.execute.generate import NEW_TOKENS
from tapml.verdicts.modelwise import (
    AllowedLogitError,
    WholeVerdict,
    allowed_logit_error,
    compare_logits,
)
from tapml.verdicts.vectors import compare_vectors
from tapml.workloads.trace import CaseResult, CaseTrace, Runner
from tapml.workloads.workload import CaseT, Workload
from tapml_targets.errors import InputError


class OneCall(Workload[CaseT]):
    """A workload of one entry; :attr:`tapml.models.stored.Measure` says what is compared.

    A subclass names the entry and says which rows of an output count.
    """

    entry: str

    @abstractmethod
    def inputs(self, case: CaseT) -> dict[str, Array]:
        """Inputs of the entry."""

    @abstractmethod
    def rows(self, case: CaseT, outputs: Sequence[Array]) -> Array:
        """What is compared of the outputs, ``[rows, width]``: no padding."""

    @abstractmethod
    def from_arguments(
        self, texts: Sequence[str], tokens: Sequence[str], array: Any, codec: Any
    ) -> CaseT:
        """A case of what the command line has; `codec` opens the tokenizer.

        `array` is an array or arrays by name, None without a file.

        Raises
        ------
        InputError
            If that is not what the model takes.
        """

    @property
    def subject(self) -> str:  # type: ignore[override]
        """What is compared: ``vectors`` or ``classes``."""
        return str(self._stored.measure)

    @property
    def _stored(self) -> Any:
        return getattr(self.model, "stored", self.model)

    def check(self, cases: Sequence[CaseT], steps: int, *, every_entry: bool = False) -> None:
        """Every case fits the input; `steps` are for other kinds."""
        for case in cases:
            self.inputs(case)

    def run(self, runner: Runner, case: CaseT, steps: int) -> Iterator[int]:
        """The one call."""
        self.outputs(runner, case)
        yield 0

    def outputs(self, runner: Runner, case: CaseT) -> Array:
        """Run a case; a copy of the rows that count."""
        return np.array(self.rows(case, self.call(runner, case)))

    def call(self, runner: Runner, case: CaseT, steps: int = NEW_TOKENS) -> list[Array]:
        """Run a case; a copy of every output. `steps` are for kinds that write."""
        runner.reset()
        return [np.array(each) for each in runner.run(self.entry, self.inputs(case)).values()]

    def by_name(self, outputs: Sequence[Array]) -> dict[str, Array]:
        """The outputs under the names that people know."""
        return {"result": outputs[0]}

    def expected(self, case: CaseT, steps: int) -> Iterator[tuple[str, range, Mapping[str, Array]]]:
        """The one call."""
        yield self.entry, range(1), self.inputs(case)

    def lengths(self, cases: Sequence[CaseT]) -> Iterator[tuple[str, dict[str, Array]]]:
        """Inputs have one shape."""
        yield self.entry, self.inputs(cases[0])

    def trace(self, runner: Runner, case: CaseT, steps: int, rooted_deviation: float) -> CaseTrace:
        """The reference's rows."""
        rows = self.outputs(runner, case)
        return CaseTrace(case, (), rows, self.allowed(rows, rooted_deviation))

    def allowed(self, rows: Array, rooted_deviation: float) -> AllowedLogitError:
        """The largest error that passes, where the reference gives these rows."""
        return allowed_logit_error(self._stored.dtype, rows, rooted_deviation)

    def compare(self, runner: Runner, trace: CaseTrace) -> WholeVerdict:
        """Vectors by their length and direction, classes by the one that wins."""
        return self.verdict(trace, self.outputs(runner, trace.case))

    def result(
        self, runner: Runner, trace: CaseTrace, text_of: Callable[[Sequence[int]], str]
    ) -> CaseResult:
        """One more call, compared again; `tokens` are the classes."""
        rows = self.outputs(runner, trace.case)
        verdict = self.verdict(trace, rows)
        classes = self._stored.measure == "classes"
        return CaseResult(
            prompt=trace.case.text or text_of(trace.case.token_ids),
            text=self.describe(trace.case, rows),
            tokens=tuple(int(each) for each in rows.argmax(axis=1)) if classes else (),
            verdict=verdict.reason,
            equal=verdict.status == "pass",
        )

    def agreement(self, results: Sequence[CaseResult]) -> str:
        """See :meth:`Workload.agreement`."""
        equal = sum(each.equal for each in results)
        return f"{equal} of {len(results)} cases within the allowed error"

    def describe(self, case: CaseT, rows: Array) -> str:
        """The result of a run for people."""
        if self._stored.measure == "vectors":
            return f"{len(rows)} vectors of {rows.shape[1]}"
        labels = getattr(self._stored, "labels", ())
        chosen = [int(each) for each in rows.argmax(axis=1)]
        return " ".join(labels[each] if each < len(labels) else str(each) for each in chosen)

    def check_trace(self, trace: CaseTrace) -> None:
        """Rows of floating-point numbers, and nothing chosen."""
        shape = trace.outputs.shape
        if trace.choices or len(shape) != 2 or trace.outputs.dtype.kind != "f":
            raise InputError(f"a stored run has outputs {shape}: expected rows of numbers")

    def verdict(self, trace: CaseTrace, rows: Array) -> WholeVerdict:
        """Rows of a runner against those of the trace."""
        if self._stored.measure == "classes":
            return compare_logits(trace.outputs, rows, trace.allowed)
        return compare_vectors(trace.outputs, rows, trace.allowed)
