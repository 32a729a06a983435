"""What every kind of model answers: its cases, their steps, and how results are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tapml.execute.arrays import Array
from tapml.verdicts.modelwise import WholeVerdict, gravest
from tapml.workloads.trace import (
    Case,
    CaseResult,
    CaseTrace,
    ReferenceTrace,
    Runner,
)

CaseT = TypeVar("CaseT", bound=Case)


class Workload(ABC, Generic[CaseT]):
    """A kind of model with its sizes.

    Attributes
    ----------
    model
        The model, loaded or stored; it makes the inputs of its entries.
    subject
        What is compared, for people: ``logits``.
    generates
        Whether it continues a text.
    writes
        Whether it writes a text of its own in one call.
    """

    subject: str
    generates: bool = False
    writes: bool = False

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def cases(
        self, loaded: Any, texts: Sequence[str], tokens: Sequence[str], count: int
    ) -> tuple[CaseT, ...]:
        """The cases that were given as text and token ids; else `count` of the model's own.

        Raises
        ------
        InputError
            If one does not fit the model.
        """

    @abstractmethod
    def as_case(self, given: Any) -> CaseT:
        """A case from itself or its plain form."""

    @abstractmethod
    def check(self, cases: Sequence[CaseT], steps: int, *, every_entry: bool = False) -> None:
        """Raise :class:`InputError` if a case does not fit, or if an entry would never run."""

    @abstractmethod
    def run(self, runner: Runner, case: CaseT, steps: int) -> Iterator[int]:
        """Run a case on its own; yields the number of each step that is over, from 0."""

    @abstractmethod
    def expected(self, case: CaseT, steps: int) -> Iterator[tuple[str, range, Mapping[str, Array]]]:
        """Each entry that :meth:`run` runs, at which steps, and inputs of such a run."""

    @abstractmethod
    def lengths(self, cases: Sequence[CaseT]) -> Iterator[tuple[str, dict[str, Array]]]:
        """Inputs for each entry and length of a check."""

    @abstractmethod
    def trace(self, runner: Runner, case: CaseT, steps: int, rooted_deviation: float) -> CaseTrace:
        """The reference's run of a case; `rooted_deviation` is how far it is from PyTorch."""

    @abstractmethod
    def compare(self, runner: Runner, trace: CaseTrace) -> WholeVerdict:
        """Run a traced case with the reference's choices and compare what comes out."""

    @abstractmethod
    def result(
        self, runner: Runner, trace: CaseTrace, text_of: Callable[[Sequence[int]], str]
    ) -> CaseResult:
        """Run a traced case on its own; `text_of` writes tokens as text."""

    @abstractmethod
    def agreement(self, results: Sequence[CaseResult]) -> str:
        """How many results are equal to the reference's, in half a line; may be empty."""

    @abstractmethod
    def texts(self, case: CaseT) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The texts of a case, each with its tokens."""

    @abstractmethod
    def argument(self, *, takes_text: bool) -> str:
        """An example of what ``tapml run`` takes."""

    @abstractmethod
    def pack_case(self, case: CaseT) -> dict[str, Any]:
        """Plain data of a case."""

    @abstractmethod
    def unpack_case(self, data: Mapping[str, Any]) -> CaseT:
        """Read back what :meth:`pack_case` gave; raises :class:`InputError` if it is not that."""

    @abstractmethod
    def check_trace(self, trace: CaseTrace) -> None:
        """Raise :class:`InputError` if a stored trace does not fit the model."""

    def check_model(self, runner: Runner, trace: ReferenceTrace) -> WholeVerdict:
        """MODELWISEVALIDATION: the runner against the reference over all cases."""
        return gravest([self.compare(runner, each) for each in trace.cases])

    def trace_all(
        self, runner: Runner, cases: Sequence[CaseT], steps: int, rooted_deviation: float
    ) -> ReferenceTrace:
        """The reference's runs of at least one case."""
        return ReferenceTrace(
            tuple(self.trace(runner, case, steps, rooted_deviation) for case in cases)
        )
