"""Every operator of the shipped model, in decode and in prefill, is right on each platform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.compiler.preflight import check
from tapml.compiler.reference import compile_reference
from tapml.compiler.reference_module import ReferenceModule
from tapml.compiler.twin import compile_twins
from tapml.importing.importer import import_model
from tapml.models.huggingface import load_model
from tapml.plan.graph_plan import Entry, GraphPlan, Operator
from tapml_targets.driver import Driver
from tapml_targets.expression import evaluate
from tapml_targets.library import Library, Parameter
from tapml_targets.target import Target
from tests.compiler.operators import run

pytestmark = pytest.mark.run_first

Array = np.ndarray[Any, Any]
SYMBOLS = {"S": 7}
# Sums of up to 344 products of unit normals, in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model() -> tuple[GraphPlan, dict[str, Array]]:
    imported = import_model(load_model("pydoc-llama"))
    return imported.plan, dict(imported.weights)


@pytest.fixture(scope="module")
def reference(model: tuple[GraphPlan, dict[str, Array]]) -> ReferenceModule:
    return compile_reference(model[0])


@pytest.fixture(scope="module", params=["driver", "adapter"], ids=["opencl", "webgpu"])
def device(request: pytest.FixtureRequest) -> Driver:
    opened: Driver = request.getfixturevalue(request.param)
    return opened


@pytest.fixture(scope="module")
def libraries(model: tuple[GraphPlan, dict[str, Array]], device: Driver) -> dict[str, Library]:
    target = Target(device.description.platform, limits=device.description.limits)
    with Compiler() as compiler:
        compiled = list(compiler.compile_all(model[0].operators.values(), target))
    assert not [outcome for _, outcome in compiled if not isinstance(outcome, Library)]
    return {of.name: outcome for of, outcome in compiled if isinstance(outcome, Library)}


def test_every_operator_agrees_with_float64(
    model: tuple[GraphPlan, dict[str, Array]],
    libraries: dict[str, Library],
    reference: ReferenceModule,
    device: Driver,
) -> None:
    plan, _ = model
    twins = compile_twins(plan.operators.values())
    assert len(plan.operators) > 20
    for operator in plan.operators.values():
        given = [_tensor(operator, p) for p in operator.parameters]
        expected = [a.astype("f8") if a.dtype.kind == "f" else a.copy() for a in given]
        trusted = [a.copy() for a in given]
        twins[operator.name](*expected)
        reference[operator.name](*trusted)
        measured = run(device, libraries[operator.name], operator.name, given)
        for who, results in (("device", measured), ("reference", trusted)):
            for parameter, result, exact in zip(
                operator.parameters, results, expected, strict=True
            ):
                scale = max(1.0, float(np.abs(exact.astype("f8")).max()))
                np.testing.assert_allclose(
                    result.astype("f8"),
                    exact.astype("f8"),
                    rtol=0,
                    atol=TOLERANCE * scale,
                    err_msg=f"{operator.name} {parameter.name} on the {who}",
                )


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_whole_entry_is_one_call_that_agrees_with_the_reference(
    model: tuple[GraphPlan, dict[str, Array]],
    libraries: dict[str, Library],
    reference: ReferenceModule,
    device: Driver,
    name: str,
) -> None:
    plan, weights = model
    entry = plan.entries[name]
    linked = link_entries(plan, libraries)
    assert check(linked, device.description.limits, SYMBOLS) == ()
    memory = _run_on_reference(entry, weights, reference)
    arrays, expected = [], []
    for parameter in linked.entries[name].parameters:
        kind, _, of = parameter.name.partition(":")
        final = {"next": {b.state: b.after for b in entry.state}}.get(kind, {}).get(of, of)
        if kind in ("output", "next"):
            expected.append(memory[final])
            arrays.append(np.full_like(memory[final], np.nan))
        else:
            arrays.append(weights[of] if kind == "weight" else memory[of])
            expected.append(arrays[-1])
    results = run(device, linked, name, arrays)
    for parameter, result, exact in zip(
        linked.entries[name].parameters, results, expected, strict=True
    ):
        np.testing.assert_allclose(result, exact, atol=2e-4, err_msg=parameter.name)


class _Memory(dict[str, Array]):
    """An entry's values, as windows on one array per storage."""

    def __init__(self, entry: Entry, weights: dict[str, Array]) -> None:
        super().__init__()
        storages = {
            key: weights[storage.name].reshape(-1).view("u1")
            if storage.lifetime == "weight"
            else np.zeros(evaluate(storage.nbytes, SYMBOLS), "u1")
            for key, storage in entry.storages.items()
        }
        for name, value in entry.values.items():
            shape = [evaluate(extent, SYMBOLS) for extent in value.shape]
            dtype = np.dtype(value.dtype)
            start = evaluate(value.byte_offset, SYMBOLS)
            window = storages[value.storage][start : start + int(np.prod(shape)) * dtype.itemsize]
            self[name] = window.view(dtype).reshape(shape)


def _run_on_reference(
    entry: Entry, weights: dict[str, Array], reference: ReferenceModule
) -> _Memory:
    memory = _Memory(entry, weights)
    for name, values in _inputs(entry):
        memory[name][...] = values
    for call in entry.calls:
        reference[call.operator](*(memory[name] for name in call.arguments))
    return memory


def _inputs(entry: Entry) -> Iterator[tuple[str, Array]]:
    rng = np.random.default_rng(0)
    shapes = {
        name: [evaluate(extent, SYMBOLS) for extent in entry.values[name].shape]
        for name in (*entry.inputs, *(binding.before for binding in entry.state))
    }
    rows, cached = shapes["attention_mask"][-2:]
    columns = np.arange(cached)
    yield "token_ids", rng.integers(0, 100, shapes["token_ids"])
    yield "position_ids", np.arange(rows)[None]
    yield "cache_rows", np.where(columns < rows, columns, -1)
    yield "attention_mask", np.where(columns <= np.arange(rows)[:, None], 0, -1e9)[None, None]
    for binding in entry.state:
        yield binding.before, rng.standard_normal(shapes[binding.before])


def _tensor(operator: Operator, parameter: Parameter) -> Array:
    rng = np.random.default_rng([int(operator.hash, 16), operator.parameters.index(parameter)])
    shape = [evaluate(extent, SYMBOLS) for extent in parameter.shape]
    if parameter.role == "output":
        return np.full(shape, 77, parameter.dtype)
    if parameter.dtype == "bool":
        return rng.random(shape) < 0.5
    if parameter.dtype.startswith("int"):
        return rng.integers(0, 7, shape).astype(parameter.dtype)
    # Positive, for what a norm takes the root of.
    return (rng.random(shape) + 0.1).astype(parameter.dtype)
