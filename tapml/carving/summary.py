"""What a suite holds, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tapml.carving.selection import Filters
from tapml_targets.dtype import dtype

if TYPE_CHECKING:
    from tapml.carving.suite import Suite


@dataclass(frozen=True)
class SuiteSummary:
    """Counts of a suite.

    Attributes
    ----------
    tests
        Number of tests.
    tests_per_operator
        Tests by operator and entry.
    prompts, runs
        Numbers of prompts and of entry runs.
    tensor_bytes
        Bytes of all inputs and outputs of all tests, each time they appear.
    stored_bytes
        Bytes of chunks on disk, weights included.
    """

    tests: int
    tests_per_operator: Mapping[tuple[str, str], int]
    prompts: int
    runs: int
    tensor_bytes: int
    stored_bytes: int

    @property
    def deduplication(self) -> float:
        """Bytes of the tests' tensors over bytes stored."""
        return self.tensor_bytes / max(1, self.stored_bytes)


def summarize(suite: Suite, stored_bytes: int) -> SuiteSummary:
    """Count the tests of a suite."""
    counts: Counter[tuple[str, str]] = Counter()
    runs = 0
    tensor_bytes = 0
    bytes_of: dict[int, int] = {}
    for run in suite.runs(Filters()):
        runs += 1
        layout = run.layout
        counts.update((call.operator, layout.entry) for call in layout.calls)
        if id(layout) not in bytes_of:
            sizes = [dtype(v.dtype).nbytes(prod(v.shape)) for v in layout.values]
            bytes_of[id(layout)] = sum(
                sizes[index] for call in layout.calls for index in call.arguments
            )
        tensor_bytes += bytes_of[id(layout)]
    return SuiteSummary(
        tests=counts.total(),
        tests_per_operator=dict(counts),
        prompts=len(suite.prompts),
        runs=runs,
        tensor_bytes=tensor_bytes,
        stored_bytes=stored_bytes,
    )
