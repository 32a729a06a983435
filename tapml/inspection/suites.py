"""Descriptions of suites and their tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tapml.execute.arrays import Array
from tapml.inspection.page import Cell, Page, Table
from tapml.suite.carved_test import CarvedTest, TensorRecord
from tapml.suite.suite import Suite
from tapml_targets.dtype import dtype
from tapml_targets.float_formats import as_float64

SAMPLING_ORDER: Final = (
    "the first call site of every operator in every entry, then the rest in execution order; "
    "excluding weights and orders"
)
# Statistics of a tensor are computed in pieces, so that float64 copies stay small.
_PIECE_ELEMENTS: Final = 1 << 20


def describe_suite(suite: Suite) -> Page:
    """A suite's tests by operator, step and prompt, its size, and tests outside its budget."""
    summary, facts = suite.summary(), suite.facts
    stored = summary.stored
    tensors = stored.total - stored.weights - stored.orders
    described: dict[str, Cell] = {
        "model": str(facts.get("model", "")),
        "carved": str(facts.get("created", "")),
        "reference": suite.reference,
        "complete": suite.complete,
        "tests": summary.tests,
        "operators": len({operator for operator, _ in summary.tests_per_operator}),
        "prompts": summary.prompts,
        "runs": summary.runs,
        "tensor bytes of the tests": summary.tensor_bytes,
        "stored bytes": stored.total,
        "of them weights": stored.weights,
        "of them orders": stored.orders,
        "of them activations and state": tensors,
        "deduplication": round(summary.deduplication, 3),
        "chunks": stored.chunks,
        "weights hash": suite.weights_hash,
        "plan hash": suite.plan_hash,
        "filters": _filters(facts.get("filters")),
        **_budget(facts),
    }
    return Page(
        "suite", str(suite.path), described, tuple(_tables(suite, summary.tests_per_operator))
    )


def describe_test(test: CarvedTest, path: str) -> Page:
    """A test's tensors and statistics of their values; checks the tensors' hashes."""
    facts: dict[str, Cell] = {
        "test": test.id,
        "operator": test.operator,
        "operator hash": test.operator_hash,
        "call site": test.site,
        "entry": test.entry,
        "layer": test.layer,
        "prompt": test.prompt,
        "step": test.step,
        "symbols": ", ".join(
            f"{name} = {value}" for name, value in {**test.shape_symbols, **test.symbols}.items()
        ),
        "key": test.key,
    }
    tensors = (*test.inputs, *test.outputs)
    rows = tuple(_where(tensor) for tensor in tensors)
    numbers = tuple(_numbers(tensor) for tensor in tensors)
    return Page(
        "test",
        path,
        facts,
        (
            Table("tensors", ("role", "parameter", "value", "shape", "dtype", "lifetime"), rows),
            Table(
                "numbers", ("parameter", "bytes", "min", "max", "mean", "NaN", "Inf", "content"),
                numbers,
            ),
        ),
    )  # fmt: skip


def _tables(suite: Suite, tests: Mapping[tuple[str, str], int]) -> Iterator[Table]:
    left_out = _left_out(suite.facts)
    entries = sorted({entry for _, entry in (*tests, *left_out)}, key=_entry_order)
    operators = dict.fromkeys(operator for operator, _ in (*tests, *left_out))
    columns = ("operator", *entries, *(("left out",) if left_out else ()))
    rows = tuple(
        (
            operator,
            *(tests.get((operator, entry), 0) for entry in entries),
            *((sum(left_out.get((operator, e), 0) for e in entries),) if left_out else ()),
        )
        for operator in operators
    )
    yield Table("tests per operator", columns, rows)
    summary = suite.summary()
    yield Table("tests per step", ("step", "tests"), tuple(summary.tests_per_step.items()))
    prompts = tuple(
        (number, summary.tests_per_prompt.get(number, 0), len(prompt.token_ids), prompt.text)
        for number, prompt in enumerate(suite.prompts)
    )
    yield Table("prompts", ("prompt", "tests", "tokens", "text"), prompts)


def _entry_order(entry: str) -> tuple[bool, str]:
    return entry != "prefill", entry


def _filters(filters: object) -> str:
    if not isinstance(filters, dict):
        return "unknown"
    given = [f"{name} {', '.join(map(str, values))}" for name, values in filters.items() if values]
    return "; ".join(given) or "none: everything"


def _budget(facts: Mapping[str, Any]) -> dict[str, Cell]:
    if facts.get("budget_bytes") is None:
        return {"budget": "none"}
    return {
        "budget": int(facts["budget_bytes"]),
        "sampling order": SAMPLING_ORDER,
        "tests left out": sum(_left_out(facts).values()),
        "decode steps left out, at most": int(facts.get("steps_left_out", 0)),
        "operators without a test": ", ".join(map(str, facts.get("operators_left_out", ()))),
    }


def _left_out(facts: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Numbers of tests that a budget left out, by operator and entry."""
    rows = facts.get("tests_left_out") or ()
    return {(str(operator), str(entry)): int(count) for entry, operator, count in rows}


def _where(tensor: TensorRecord) -> tuple[Cell, ...]:
    return (
        tensor.role,
        tensor.parameter,
        tensor.value,
        " × ".join(map(str, tensor.shape)) or "scalar",
        tensor.dtype,
        tensor.lifetime,
    )


def _numbers(tensor: TensorRecord) -> tuple[Cell, ...]:
    numbers = _Numbers()
    flat = tensor.read(verify=True).reshape(-1)
    for start in range(0, flat.size, _PIECE_ELEMENTS):
        numbers.add(_values(flat[start : start + _PIECE_ELEMENTS], tensor.dtype))
    return (
        tensor.parameter,
        tensor.nbytes,
        numbers.least,
        numbers.most,
        numbers.mean,
        numbers.nans,
        numbers.infinities,
        tensor.key[:16],
    )


def _values(raw: Array, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if dtype(name).is_float:
        return as_float64(raw, name)
    return raw.astype(np.float64)


@dataclass
class _Numbers:
    """Minimum, maximum and mean of the finite values, and counts of the others."""

    least: float | None = None
    most: float | None = None
    nans: int = 0
    infinities: int = 0
    _sum: float = 0.0
    _count: int = 0

    @property
    def mean(self) -> float | None:
        """The mean of the finite values; None without any, or if their sum overflows."""
        return self._sum / self._count if self._count and np.isfinite(self._sum) else None

    def add(self, values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Add more values."""
        self.nans += int(np.isnan(values).sum())
        self.infinities += int(np.isinf(values).sum())
        finite = values[np.isfinite(values)]
        if not finite.size:
            return
        least, most = float(finite.min()), float(finite.max())
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        with np.errstate(over="ignore"):
            self._sum += float(finite.sum())
        self._count += finite.size
