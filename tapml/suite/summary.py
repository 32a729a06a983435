"""Statistics of a suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StoredBytes:
    """Sizes of the packs.

    Attributes
    ----------
    chunks
        Number of chunks.
    total
        Bytes of all chunks.
    weights, orders
        Bytes of weights and of permutations; the budget counts neither.
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
    tests_per_operator
        Tests by operator and entry.
    tests_per_step
        Tests by run of their prompt; 0 is the prefill.
    tests_per_prompt
        Tests by index of the prompt.
    prompts, runs
        Number of prompts and of entry runs.
    tensor_bytes
        Bytes of the inputs and outputs of all tests, including duplicates.
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
        """Bytes of the tests' tensors over stored bytes."""
        return self.tensor_bytes / max(1, self.stored.total)
