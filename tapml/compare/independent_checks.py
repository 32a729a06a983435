"""Which tests are held against torch's own graph, and what has been found so far.

Torch starts slowly and an operation of it costs as much as a small operator, so not every test is.
What torch and the importer make of an operator differs for all of its tests or for none: the first
test of each call shape stands for the others. Where it differs every test is checked, and before a
target is accused its test is checked in any case.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tapml.compare.expectation import Expectation
from tapml.compare.expectation_store import ExpectationStore
from tapml.compare.independent import check_independently
from tapml.graph.plan import Operator
from tapml.graph.torch_subgraph import form_at
from tapml_targets.installed import versions_text

if TYPE_CHECKING:
    from tapml.compare.oracle import CarvedCase


class IndependentChecks:
    """Adds torch's result to the expectations whose turn it is.

    Parameters
    ----------
    store
        Remembers which operators agreed.
    versions
        What else an agreement depends on.
    """

    def __init__(self, store: ExpectationStore, versions: Sequence[object]) -> None:
        self._store = store
        self._versions = [*versions, versions_text("torch")]
        self._agreed: set[str] = set()
        self._form_keys: dict[tuple[str, str], str] = {}

    def add(
        self,
        test: CarvedCase,
        operator: Operator,
        expectation: Expectation,
        outputs: Sequence[NDArray[Any]],
        *,
        must: bool,
    ) -> Expectation:
        """`expectation` with torch's own result, where it is this test's turn.

        Parameters
        ----------
        expectation
            Of the test; returned as it is where it holds a check already.
        outputs
            The reference's raw outputs.
        must
            Whether the test is checked whatever was found on others.
        """
        if expectation.independent is not None:
            return expectation
        # Only carved tests know their entry's symbols; shapes give those of the others.
        symbols = {**getattr(test, "shape_symbols", {}), **test.symbols}
        shapes = [raw.shape for raw in outputs]
        form = self.form_key(operator, test)
        key = digest(["check", *self._versions, form, sorted(symbols.items()), shapes])
        if not must and self._is_agreed(key):
            return expectation
        check = check_independently(
            operator, _site(test), symbols, test.read_inputs(), outputs, expectation
        )
        if check.agrees:
            self._store.write(key, b"")
        if check.agrees or not check.available:
            self._agreed.add(key)
        return replace(expectation, independent=check)

    def form_key(self, operator: Operator, test: CarvedCase) -> str:
        """Identifies what the twin and torch compute at the call site of a test."""
        site = _site(test)
        known = self._form_keys.get((operator.name, site))
        if known is None:
            form = form_at(operator.torch_forms, site)
            subgraph = repr(None if form is None else form.subgraph)
            known = digest([operator.hash, operator.output_kinds, subgraph])
            self._form_keys[operator.name, site] = known
        return known

    def _is_agreed(self, key: str) -> bool:
        if key not in self._agreed and self._store.has(key):
            self._agreed.add(key)
        return key in self._agreed


def digest(content: Sequence[object]) -> str:
    """SHA-256 of plain data, hexadecimal."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _site(test: CarvedCase) -> str:
    """The call site of a test: its id, without the run that a carved test's ends with."""
    site, separator, _ = test.id.rpartition("@")
    return site if separator else test.id
