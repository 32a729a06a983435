"""Any small torch module becomes a plan that computes what the module does."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from tapml.importing.imported import ImportedModel
from tapml.importing.importer import import_module
from tapml.importing.weights import to_numpy
from tapml.plan.format import pack, unpack
from tapml_targets.errors import InputError
from tests.importing.modules import Apply, examples, root_module

MODULES = examples()


@functools.cache
def imported_as_it_is(name: str) -> ImportedModel:
    """An example, imported once for all tests that look at its plan."""
    module, inputs = MODULES[name]
    return import_module(module.eval(), inputs)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_rooted_and_its_plan_survives_storage(name: str) -> None:
    imported = imported_as_it_is(name)
    report = root_module(imported, [to_numpy(each)[0] for each in MODULES[name][1]])
    assert all(each.ratio <= 1 for each in report.compared)
    assert any(each.kind == "output" for each in report.compared)
    for call in imported.plan.entries["main"].calls:
        # What is returned as it came is copied by no line of the model.
        assert call.origins or call.operator == "copy", call.site
    assert unpack(pack(imported.plan)) == imported.plan


def test_what_selects_is_an_index() -> None:
    kinds: dict[str, tuple[str, ...]] = {}
    for name in ("sort", "topk", "argmax", "predicate"):
        plan = imported_as_it_is(name).plan
        kinds |= {key: operator.output_kinds for key, operator in plan.operators.items()}
    assert kinds["argsort"] == ("index",)
    assert kinds["topk"] == ("value", "index")
    assert kinds["argmax"] == ("index",)
    assert kinds["greater"] == ("predicate",)


def test_an_extent_has_the_callers_name_and_a_product_is_passed_beside_the_tensors() -> None:
    module, inputs = MODULES["perceptron"]
    rows = torch.export.Dim("rows", min=2, max=50)
    imported = import_module(module.eval(), inputs, dynamic=({1: rows},))
    plan = imported.plan
    entry = plan.entries["main"]
    assert entry.symbols == ("rows",)
    assert entry.values[entry.inputs[0]].shape == (2, "rows", 8)
    assert [(b.lower, b.upper) for b in entry.bounds] == [(2, 50)]
    # A product of extents is passed beside the tensors.
    operator = next(o for o in plan.operators.values() if o.symbols)
    assert operator.parameters[0].shape == (("mul", "rows", 2), 8)
    longer = torch.randn(2, 11, 8).numpy()
    assert root_module(imported, [longer]).not_comparable == ()


def test_a_module_that_torch_cannot_export_is_refused_in_a_line() -> None:
    module = Apply(lambda t: t + 1 if float(t.sum()) > 0 else t)
    with pytest.raises(InputError, match=r"asks for a number that only a run knows"):
        import_module(module, (torch.ones(2),))


def test_inputs_have_to_be_tensors() -> None:
    with pytest.raises(InputError, match="input 0 of 'main' is int"):
        import_module(nn.Identity(), (3,))  # type: ignore[arg-type]


def test_the_source_of_a_bare_torch_module_is_its_line_in_torch() -> None:
    for call in imported_as_it_is("perceptron").plan.entries["main"].calls:
        assert [origin.source for origin in call.origins]
        assert all(o.source.startswith("torch/nn/modules/") for o in call.origins)
        assert call.origins[0].module_path in {"0", "1", "2"}


def test_an_operator_never_has_the_name_of_its_entry() -> None:
    module = torch.nn.Softmax(dim=-1).eval()
    plan = import_module(module, (torch.rand(2, 3),), name="softmax").plan
    assert set(plan.entries) == {"softmax"}
    assert set(plan.operators) == {"softmax_2"}
