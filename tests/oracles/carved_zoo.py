"""The demo model's carved tests, one per operator, made once per test process."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tapml.carving.record import carve
from tapml.compiler.reference import compile_reference
from tapml.execute.executor import Executor
from tapml.importing.importer import import_model
from tapml.models import calibration_prompts, load_model
from tapml.plan.graph_plan import GraphPlan, Operator
from tests.oracles.cases import MemoryCase


class CarvedZoo(NamedTuple):
    """The plan, its operators as the suite holds them, and each one's first and last test."""

    plan: GraphPlan
    stored: Mapping[str, Operator]
    tests: Mapping[str, tuple[MemoryCase, MemoryCase]]


@functools.cache
def carved_zoo() -> CarvedZoo:
    """One prompt and three tokens of the shipped model on the reference."""
    model = load_model("pydoc-llama")
    imported = import_model(model)
    executor = Executor(imported.plan, imported.weights, compile_reference(imported.plan))
    tests: dict[str, tuple[MemoryCase, MemoryCase]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prompts = calibration_prompts(model, 1)
        with carve(model, executor, prompts, Path(folder) / "suite", max_new_tokens=3) as suite:
            stored = suite.operators
            for test in suite.tests():
                case = MemoryCase(
                    test.id,
                    test.operator,
                    tuple(array.copy() for array in test.read_inputs()),
                    tuple(array.copy() for array in test.read_outputs()),
                    tuple(tensor.lifetime for tensor in test.inputs),
                    test.symbols,
                )
                first, _ = tests.get(test.operator, (case, case))
                tests[test.operator] = (first, case)
    return CarvedZoo(imported.plan, stored, tests)
