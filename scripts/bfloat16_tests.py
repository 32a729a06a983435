"""A float32 suite's operators and tests in bfloat16, for devices that compute in it.

No model is carved in bfloat16, which only the CPU runs here. So every float32 of an operator's
function becomes bfloat16, its carved inputs are rounded, and the reference computes the expected
outputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from scripts.carved_model import compile_all
from scripts.mutants.subject import Subject
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.reference_module import ReferenceModule
from tapml.compiler.twin import compile_twins
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import Probing
from tapml.oracles.twin_runs import run_operator
from tapml.plan.graph_plan import Operator
from tapml.suite.carved_test import CarvedTest
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Parameter
from tapml_targets.target import Target
from tests.oracles.cases import MemoryCase

_LARGEST: Final = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)


@contextmanager
def open_bfloat16(folder: Path, device: DeviceDescription) -> Iterator[Subject]:
    """Open a float32 suite in bfloat16, its operators compiled for a device.

    Raises
    ------
    CompileError
        If an operator does not compile.
    """
    policy = Policy()
    target = Target(device.platform, limits=device.limits)
    with Suite.open(folder) as suite, Compiler() as compiler:
        operators = {name: narrowed(operator) for name, operator in suite.operators.items()}
        reference = compile_reference(operators.values())
        tests: dict[str, list[MemoryCase]] = {}
        for test in suite.tests():
            rounded = _rounded(operators[test.operator], test, reference)
            tests.setdefault(test.operator, []).append(rounded)
        libraries = compile_all(compiler, [operators[name] for name in tests], target)
        with Oracle(operators, compile_twins, policy) as oracle:
            probing = Probing(oracle, lambda: reference)
            yield Subject(operators, libraries, tests, probing, policy)


def narrowed(operator: Operator) -> Operator:
    """The operator with bfloat16 in place of every float32."""
    document = json.loads(operator.function)
    for node in document["nodes"]:
        data = node.get("data")
        if node["type"] == "ir.PrimType":
            data["dtype"] = data["dtype"].replace("float32", "bfloat16")
        elif node["type"] == "ir.FloatImm" and isinstance(data["value"], float):
            data["value"] = float(np.clip(data["value"], -_LARGEST, _LARGEST))
    function = json.dumps(document)
    return replace(
        operator,
        hash=hashlib.sha256(function.encode()).hexdigest(),
        parameters=tuple(map(_narrowed, operator.parameters)),
        function=function,
        body=None,
        variants={},
        torch_forms=(),
    )


def _narrowed(parameter: Parameter) -> Parameter:
    return structs.replace(parameter, dtype=parameter.dtype.replace("float32", "bfloat16"))


def _rounded(operator: Operator, test: CarvedTest, reference: ReferenceModule) -> MemoryCase:
    """A test with its inputs rounded, and the results of the reference."""
    inputs = [_as_bfloat16(values) for values in test.read_inputs()]
    outputs: list[NDArray[Any]] = [
        np.zeros_like(_as_bfloat16(values)) for values in test.read_outputs()
    ]
    results = run_operator(operator, reference[operator.name], inputs, outputs, test.symbols)
    lifetimes = tuple(tensor.lifetime for tensor in test.inputs)
    return MemoryCase(
        test.id, operator.name, tuple(inputs), tuple(results), lifetimes, dict(test.symbols)
    )


def _as_bfloat16(values: NDArray[Any]) -> NDArray[Any]:
    """float32 as the raw bits of bfloat16; other arrays unchanged."""
    if values.dtype != np.float32:
        return values
    return values.clip(-_LARGEST, _LARGEST).astype(ml_dtypes.bfloat16).view(np.uint16)
