"""Where a step comes from, in words."""

from __future__ import annotations

from tapml.diagnosis.step_origins import origins_of_step
from tapml.plan.graph_plan import Origin

LAYERS = [
    Origin(f"model.layers.{layer}", f"llama.py:{line}", "aten.add.Tensor", f"add_{layer}_{line}")
    for layer in range(3)
    for line in (306, 312)
]


def test_a_line_that_several_layers_run_is_named_with_the_first_of_them() -> None:
    assert origins_of_step("add", LAYERS) == (
        "aten.add.Tensor at llama.py:306 (model.layers.0 and 2 more)",
        "aten.add.Tensor at llama.py:312 (model.layers.0 and 2 more)",
    )


def test_one_module_or_none() -> None:
    assert origins_of_step("add", LAYERS[:1]) == (
        "aten.add.Tensor at llama.py:306 (model.layers.0)",
    )
    nowhere = Origin("", "llama.py:9", "aten.add.Tensor", "add")
    assert origins_of_step("add", [nowhere]) == ("aten.add.Tensor at llama.py:9",)
