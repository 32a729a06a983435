"""Validation of a suite's operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tapml.compiler.reference_module import ReferenceModule
from tapml.matrix.compiling import Libraries
from tapml.matrix.implementation import Column
from tapml.matrix.report import Row
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.expectation_store import store_of
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator, Origin
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml_targets.installed import result_versions

_EVERYTHING: Final = Filters()


class SuiteSubject:
    """A suite's operators with their carved tests and probes, without the model.

    Parameters
    ----------
    suite
        The open suite.
    filters
        Selects its tests.
    title
        Name in the report; by default the suite's folder.
    """

    ranges: Final = None

    def __init__(self, suite: Suite, filters: Filters = _EVERYTHING, *, title: str = "") -> None:
        self.suite, self.filters = suite, filters
        self.title = title or str(suite.path)

    @property
    def reference(self) -> str:
        """Name of the device that the suite was recorded on."""
        return self.suite.reference

    @cached_property
    def operators(self) -> Sequence[Operator]:
        """The operators with tests, in graph order."""
        tested = self.suite.tested_operators(self.filters)
        return [each for name, each in self.suite.operators.items() if name in tested]

    @property
    def store(self) -> Path | None:
        """The suite's file for expectations."""
        return store_of(self.suite.path)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Versions of the installed packages."""
        return {"versions": result_versions()}

    def reference_module(self) -> ReferenceModule:
        """The suite's operators, compiled for this machine."""
        from tapml.compiler.reference import compile_reference

        return compile_reference(self.suite.operators.values())

    def origins(self, operator: str) -> tuple[Origin, ...]:
        """Empty: a suite does not store origins."""
        return ()

    def tests(self, operator: Operator, probing: Probing) -> Iterable[CarvedCase]:
        """The operator's carved tests, then its probes."""
        return probing.tests(operator, self.suite.tests_of(operator.name, self.filters))

    def end_to_end(
        self, columns: Sequence[Column], libraries: Mapping[str, Libraries]
    ) -> Row | None:
        """None: a suite has no model to run."""
        return None
