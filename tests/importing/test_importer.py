"""What the plan of a language model holds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from tapml.importing.exporting import ExportedEntry
from tapml.importing.importer import import_model
from tapml.models import load_model
from tapml.plan.graph_plan import ViewStep
from tapml.rooting.interpreter import run_entry
from tapml.rooting.rooting import root
from tests.models.folders import make_folder
from tests.small_llama import SmallLlama

TOKENS = [5, 17, 100, 44, 9, 23]


def test_prefill_then_decode_gives_the_logits_of_torch(llama: SmallLlama) -> None:
    model, imported, reference = llama
    prefill, decode = imported.plan.entries["prefill"], imported.plan.entries["decode"]
    with torch.no_grad():
        expected = model.module(torch.tensor([TOKENS])).logits.numpy()

    tensors = {**imported.weights, **model.empty_state(), **model.prepare_prefill(TOKENS[:-1])}
    values = run_entry(prefill, reference, tensors)
    first = values[prefill.outputs[0]]
    state = {binding.state: values[binding.after] for binding in prefill.state}
    step = model.prepare_decode(TOKENS[-1], len(TOKENS) - 1)
    values = run_entry(decode, reference, {**imported.weights, **state, **step})
    last = values[decode.outputs[0]]

    np.testing.assert_allclose(first, expected[:, :-1], atol=2e-5)
    np.testing.assert_allclose(last, expected[:, -1:], atol=2e-5)


def test_prefill_is_one_plan_for_every_length(llama: SmallLlama) -> None:
    entry = llama.imported.plan.entries["prefill"]
    assert entry.symbols == ("S",)
    (bounds,) = entry.bounds
    assert (bounds.symbol, bounds.lower, bounds.upper) == ("S", 2, llama.model.context_length)
    assert entry.values["token_ids"].shape == (1, "S")
    for length in (2, 11):
        inputs = llama.model.prepare_prefill(list(range(length)))
        tensors = {**llama.imported.weights, **llama.model.empty_state(), **inputs}
        values = run_entry(entry, llama.reference, tensors)
        assert values[entry.outputs[0]].shape == (1, length, 131)


def test_entries_share_weights_and_state(llama: SmallLlama) -> None:
    plan = llama.imported.plan
    for entry in plan.entries.values():
        weights = {name for name, s in entry.storages.items() if s.lifetime == "weight"}
        state = {name for name, s in entry.storages.items() if s.lifetime == "state"}
        assert weights == set(plan.weights)
        assert state == set(plan.state) == {b.state for b in entry.state}
    assert set(llama.imported.weights) == set(plan.weights)
    parameters = dict(llama.model.module.named_parameters())
    assert {name for name in plan.weights if not name.startswith("constants.")} == set(parameters)


def test_an_imported_model_holds_no_state(llama: SmallLlama) -> None:
    parameters = set(map(id, llama.model.module.parameters()))
    for exported in llama.imported.exported.values():
        assert isinstance(exported, ExportedEntry)
        assert all(each.is_meta for each in exported.description.example_inputs)
        assert exported.program.example_inputs is None
        held = {*exported.program.state_dict.values(), *exported.parameters.values()}
        assert sum(each.nbytes for each in held if id(each) not in parameters) < 4096


def test_the_layers_of_an_entry_use_the_same_operators(llama: SmallLlama) -> None:
    plan = llama.imported.plan
    for entry in plan.entries.values():
        by_layer = {
            layer: Counter(call.operator for call in entry.calls if call.layer == layer)
            for layer in range(2)
        }
        assert by_layer[0] == by_layer[1]
    assert 20 <= len({call.operator for call in plan.entries["prefill"].calls}) <= 30


def test_operators_that_do_not_depend_on_the_length_serve_both_entries(llama: SmallLlama) -> None:
    used = [
        {call.operator for call in entry.calls} for entry in llama.imported.plan.entries.values()
    ]
    assert used[0] & used[1] >= {"broadcast_to"}
    hashes = [operator.hash for operator in llama.imported.plan.operators.values()]
    assert len(set(hashes)) == len(hashes)


def test_every_call_site_knows_its_module_its_line_and_its_operation(llama: SmallLlama) -> None:
    for entry in llama.imported.plan.entries.values():
        for call in entry.calls:
            assert call.origins, call.site
            for origin in call.origins:
                assert origin.source.startswith("transformers/")
                assert origin.operation.startswith("aten.")
                assert origin.module_path.startswith(("model", "lm_head"))


def test_fused_operators_hold_the_origins_of_all_their_parts(llama: SmallLlama) -> None:
    decode = llama.imported.plan.entries["decode"]
    fused = next(call for call in decode.calls if call.operator.startswith("fused_silu_multiply"))
    assert [origin.operation for origin in fused.origins] == [
        "aten.sigmoid.default",
        "aten.mul.Tensor",
        "aten.mul.Tensor",
    ]
    assert {origin.module_path for origin in fused.origins} >= {"model.layers.0.mlp"}
    assert fused.layer == 0


def test_transposed_products_keep_both_origins(llama: SmallLlama) -> None:
    for entry in llama.imported.plan.entries.values():
        products = [c for c in entry.calls if "matmul_transposed" in c.operator]
        assert len(products) == 2 * 7 + 1
        for call in products:
            operations = [origin.operation for origin in call.origins]
            product = operations.index("aten.mm.default")
            assert operations[product - 1] == "aten.permute.default"
            (weight,) = (name for name in call.arguments if name.endswith(".weight"))
            both = call.origins[product - 1 : product + 1]
            assert {origin.module_path for origin in both} == {weight.removesuffix(".weight")}


def test_site_names_say_where_and_what(llama: SmallLlama) -> None:
    sites = [c.site for entry in llama.imported.plan.entries.values() for c in entry.calls]
    assert len(set(sites)) == len(sites)
    assert "prefill/layers.0.self_attn/softmax" in sites
    assert any(site.startswith("decode/layers.1.mlp/fused_silu_multiply") for site in sites)


def test_reshapes_cost_nothing(llama: SmallLlama) -> None:
    for entry in llama.imported.plan.entries.values():
        for step in entry.steps:
            if isinstance(step, ViewStep):
                source, result = entry.values[step.source], entry.values[step.result]
                assert source.storage == result.storage


def test_cache_updates_are_state_and_may_be_written_in_place(llama: SmallLlama) -> None:
    plan = llama.imported.plan
    for entry in plan.entries.values():
        donated = [pair for call in entry.calls for pair in call.donates]
        assert donated == [(b.before, b.after) for b in entry.state]
    writers = {call.operator for e in plan.entries.values() for call in e.calls if call.donates}
    assert {plan.operators[name].output_kinds for name in writers} == {("state",)}


def test_half_precision_stays_half_and_is_summed_in_single(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = load_model(
        make_folder(tmp_path_factory.mktemp("half") / "model", "float16", num_hidden_layers=1)
    )
    imported = import_model(model)
    plan = imported.plan
    assert {tensor.dtype for tensor in plan.weights.values()} == {"float16", "float32"}
    assert {tensor.dtype for tensor in plan.state.values()} == {"float16"}
    products = [op for name, op in plan.operators.items() if "matmul" in name]
    assert products
    for operator in products:
        # The mask that is added to scores is the one that torch would add, in single precision.
        assert {parameter.dtype for parameter in operator.parameters[:2]} == {"float16"}
        assert "float32" in operator.script
    assert root(model, imported).not_comparable == ()


def test_tied_embeddings_are_one_weight(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_folder(tmp_path_factory.mktemp("tied") / "model", "tied", num_hidden_layers=1)
    model = load_model(folder)
    imported = import_model(model)
    assert "lm_head.weight" not in imported.plan.weights
    assert root(model, imported).not_comparable == ()
