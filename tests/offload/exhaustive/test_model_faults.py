"""Mistakes of a model's own kind, each compiled into one kernel and traced to that operator.

The operator's function is changed as text and compiled; its Library takes the place of the right
one. The wrapper with the same mistakes is in ``tests/rooting/test_own_forward.py``, quantized
weights in ``test_quantized.py`` beside this, bytes through a word in ``tests/hazards``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tapml.compiler.cache import LibraryCache, library_key
from tapml.compiler.compiler import Compiler, operator_source
from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.plan.graph_plan import GraphPlan, Operator
from tapml_targets.library_format import pack
from tests.conftest import RequireDevice
from tests.models.families import make_family
from tests.offload.commands import run_here
from tests.offload.exhaustive.test_quantized import target_of
from tests.offload.sessions import states

PROMPT = "3 14 15 92 65 35 89 79 32 38 46 26"


@dataclass(frozen=True)
class Fault:
    """A change of one operator of a family's tiny model."""

    family: str
    layers: dict[str, Any]
    operator: str
    right: str
    wrong: str


_ONE = {"num_hidden_layers": 1}
FAULTS = {
    "a cache row off by one": Fault(
        "llama",
        _ONE,
        "fused_greater_equal_reshape_where_2",
        "input_0[v_ax0]",
        "input_0[(v_ax0 + T.int64(1)) % T.int64(64)]",
    ),
    # The new token has index 0 in a decode step.
    "a stale row": Fault(
        "llama", _ONE, "fused_greater_equal_reshape_where_2", "0 <= input_0", "0 < input_0"
    ),
    "a wrong rotary offset": Fault(
        "llama",
        _ONE,
        "fused_cast_multiply_concatenate_2",
        'T.Cast("float32", input_0[v_i0, v_i1, v_i2])',
        'T.Cast("float32", input_0[v_i0, v_i1, v_i2] + 1)',
    ),
    "the first head's slope of ALiBi for all": Fault(
        "bloom",
        {"n_layer": 1},
        "fused_matmul_transposed_multiply_add_add",
        "input_2[v_ax0, v_ax1, v_ax2]",
        "input_2[T.int64(0), v_ax1, v_ax2]",
    ),
    "a window off by one": Fault(
        "mistral",
        _ONE,
        "fused_subtract_greater_reshape_where_reshape_2",
        "input_0[v_ax0, v_ax1] - 9",
        "input_0[v_ax0, v_ax1] - 8",
    ),
    "a state that is reset at every step": Fault(
        "rwkv6",
        _ONE,
        "wkv6_2",
        "= input_5[h, row, j]",
        "= input_5[h, row, j] * T.float32(0.0)",
    ),
}


def faulty(operator: Operator, right: str, wrong: str) -> Operator:
    """The operator with every place of a text in its function replaced."""
    import tvm

    assert right in operator.script, operator.script
    function = tvm.script.from_source(operator.script.replace(right, wrong))
    changed = function.with_attr("global_symbol", operator.name)
    return replace(operator, function=str(tvm.ir.save_json(changed)), variants={})


def plan_of(model: Path) -> GraphPlan:
    return import_model(load_any(model)).plan


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_traced_to_its_operator(
    tmp_path: Path, require_device: RequireDevice, name: str
) -> None:
    fault = FAULTS[name]
    model = make_family(tmp_path / "model", fault.family, **fault.layers)
    operator = plan_of(model).operators[fault.operator]
    device = f"opencl:{min(each.index for each in require_device('opencl'))}"
    target, cache = target_of(device), tmp_path / "cache"
    libraries = cache / "libraries"
    with Compiler(libraries, workers=1) as compiler:
        library = compiler.compile(faulty(operator, fault.right, fault.wrong), target)
    key = library_key(operator_source(operator, target), target)
    LibraryCache(libraries).put(key, pack(library))
    ended = run_here(
        *("offload", "--model", model, "--device", device, "--session", tmp_path / "session"),
        *("--tokens", PROMPT, "--new-tokens", "3", "--keep-going"),
        cache=cache,
    )
    assert ended.exit_code == 1, ended.output
    failed = [each for each, state in states(tmp_path / "session").items() if state == "failed"]
    assert failed == [fault.operator]
