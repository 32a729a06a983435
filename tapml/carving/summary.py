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
class StoredBytes:
    """What lies in the packs.

    Attributes
    ----------
    chunks
        Number of chunks.
    total
        Bytes of all chunks.
    weights, orders
        Bytes of them that hold weights, and tables of how operators rearrange their inputs; a
        budget counts neither.
    """

    chunks: int
    total: int
    weights: int
    orders: int


@dataclass(frozen=True)
class SuiteSummary:
    """Counts of a suite.

    Attributes
    ----------
    tests
        Number of tests.
    tests_per_operator
        Tests by operator and entry.
    tests_per_step
        Tests by run of their prompt; 0 is the prefill.
    tests_per_prompt
        Tests by prompt, counted from 0.
    prompts, runs
        Numbers of prompts and of entry runs.
    tensor_bytes
        Bytes of all inputs and outputs of all tests, each time they appear.
    stored
        Bytes on disk.
    """

    tests: int
    tests_per_operator: Mapping[tuple[str, str], int]
    tests_per_step: Mapping[int, int]
    tests_per_prompt: Mapping[int, int]
    prompts: int
    runs: int
    tensor_bytes: int
    stored: StoredBytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of chunks on disk, weights included."""
        return self.stored.total

    @property
    def deduplication(self) -> float:
        """Bytes of the tests' tensors over bytes stored."""
        return self.tensor_bytes / max(1, self.stored.total)


def summarize(suite: Suite, stored: StoredBytes) -> SuiteSummary:
    """Count the tests of a suite."""
    counts: Counter[tuple[str, str]] = Counter()
    steps: Counter[int] = Counter()
    prompts: Counter[int] = Counter()
    runs = 0
    tensor_bytes = 0
    bytes_of: dict[int, int] = {}
    for run in suite.runs(Filters()):
        runs += 1
        layout = run.layout
        counts.update((call.operator, layout.entry) for call in layout.calls)
        steps[run.step] += len(layout.calls)
        prompts[run.prompt] += len(layout.calls)
        if id(layout) not in bytes_of:
            sizes = [dtype(v.dtype).nbytes(prod(v.shape)) for v in layout.values]
            bytes_of[id(layout)] = sum(
                sizes[index] for call in layout.calls for index in call.arguments
            )
        tensor_bytes += bytes_of[id(layout)]
    return SuiteSummary(
        tests=counts.total(),
        tests_per_operator=dict(counts),
        tests_per_step=dict(sorted(steps.items())),
        tests_per_prompt=dict(sorted(prompts.items())),
        prompts=len(suite.prompts),
        runs=runs,
        tensor_bytes=tensor_bytes,
        stored=stored,
    )
