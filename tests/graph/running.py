"""Runs plans with TVM's own CPU build and nothing else of tapml: independent of the executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from tapml.graph.plan import CallStep, Entry, GraphPlan, Operator
from tapml_targets.dtype import dtype
from tapml_targets.expression import bind_shape, evaluate

Array = npt.NDArray[Any]


def compile_operators(operators: Mapping[str, Operator]) -> dict[str, Callable[..., None]]:
    """Every operator as a CPU function over TVM tensors."""
    functions = {}
    for name, operator in operators.items():
        function = tvm.ir.load_json(operator.function).with_attr("global_symbol", name)
        functions[name] = function
    built = tvm.compile(tvm.IRModule(functions), target="llvm")
    return {name: built[name] for name in functions}


def run_entry(
    entry: Entry,
    functions: Mapping[str, Callable[..., None]],
    tensors: Mapping[str, Array],
) -> dict[str, Array]:
    """All values of an entry by name; `tensors` holds inputs, state and weights by storage."""
    symbols: dict[str, int] = {}
    values: dict[str, Array] = {}
    for name, value in entry.values.items():
        if entry.storages[value.storage].lifetime != "activation" and name == value.storage:
            bind_shape(value.shape, tensors[name].shape, symbols, name)
            values[name] = tensors[name]
    for step in entry.steps:
        if isinstance(step, CallStep):
            for name in step.arguments:
                if name not in values:
                    shape = [evaluate(extent, symbols) for extent in entry.values[name].shape]
                    element = dtype(entry.values[name].dtype).numpy_name
                    values[name] = np.full(shape, 93, dtype=element)
            arguments = [
                tvm.runtime.tensor(np.ascontiguousarray(values[n])) for n in step.arguments
            ]
            numbers = [evaluate(number, symbols) for _, number in step.symbols]
            functions[step.operator](*arguments, *numbers)
            for name, tensor in zip(step.arguments, arguments, strict=True):
                values[name] = tensor.numpy()
        else:
            shape = [evaluate(extent, symbols) for extent in entry.values[step.result].shape]
            values[step.result] = values[step.source].reshape(shape)
    return values


def run_plan(plan: GraphPlan, entry: str, tensors: Mapping[str, Array]) -> list[Array]:
    """Compile a plan and return the outputs of one run of an entry."""
    values = run_entry(plan.entries[entry], compile_operators(plan.operators), tensors)
    return [values[name] for name in plan.entries[entry].outputs]
