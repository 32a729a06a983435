"""The search for models on which backends part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.cli.main import main
from tapml.comparing.fuzzing import mutants
from tapml.comparing.fuzzing.search import fuzz
from tapml.comparing.fuzzing.stacks import LAYERS, stack
from tapml_targets.errors import InputError
from tests.comparing.small_cnn import make_images

EDITS = st.tuples(st.sampled_from(mutants.KINDS), st.integers(0, 99), st.integers(0, 99))


def operators(model: onnx.ModelProto) -> list[str]:
    return [each.op_type for each in model.graph.node]


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_every_setting_of_every_layer_is_a_valid_model(kind: str) -> None:
    for choice in range(len(LAYERS[kind])):
        assert operators(stack([(kind, choice)])) == [kind]


def test_each_kind_of_edit_does_what_it_says(cnn: Path) -> None:
    model = onnx.load(cnn)
    plain = operators(model)
    relu = plain.index("Relu")
    swapped = operators(mutants.mutated(model, [("activation", 0, 1)]))
    assert swapped[relu] == "Tanh" and swapped[:relu] == plain[:relu]
    removed = operators(mutants.mutated(model, [("removed", 2, 0)]))
    assert removed == [each for each in plain if each != "Relu"]
    doubled = operators(mutants.mutated(model, [("doubled", 2, 0)]))
    assert doubled == [*plain[: relu + 1], *plain[relu:]]
    moved = operators(mutants.mutated(model, [("reordered", 2, 0)]))
    assert moved == ["Conv", "Relu", *[each for each in plain[1:] if each != "Relu"]]
    assert operators(model) == plain


@settings(max_examples=60, deadline=None)
@given(edits=st.lists(EDITS, max_size=6))
def test_a_mutant_reads_only_what_it_has_and_keeps_inputs_and_outputs(
    cnn: Path, edits: list[mutants.Edit]
) -> None:
    model = onnx.load(cnn)
    mutant = mutants.mutated(model, edits)
    assert list(mutant.graph.input) == list(model.graph.input)
    assert list(mutant.graph.output) == list(model.graph.output)
    # Checks order, names and that every value is made once.
    onnx.checker.check_model(mutant)


@pytest.mark.usefixtures("planted")
def test_a_planted_fault_is_found_once_shrunk_and_not_looked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "--fuzz", str(tmp_path / "found"), "--cases", "12", "--seed", "4",
               "--backends", "onnx-reference,planted:error", "--json"]  # fmt: skip
    assert main(command) == 1
    found = json.loads(capsys.readouterr().out)
    ((cause,), cases) = found["causes"], found["cases"]
    assert cause["cause"] == "error at Relu by planted:error"
    assert cause["case"] == [["Relu", 0]]
    folder = Path(cause["folder"])
    assert operators(onnx.load(folder / "model.onnx")) == ["Relu"]
    compile((folder / "show.py").read_text("utf-8"), "show.py", "exec")
    journal = (tmp_path / "found" / "journal.sqlite").read_bytes()
    assert main(command) == 1
    again = json.loads(capsys.readouterr().out)
    assert (again["causes"], again["cases"]) == ([cause], cases)
    assert len((tmp_path / "found" / "journal.sqlite").read_bytes()) == len(journal)


@pytest.mark.usefixtures("planted")
def test_a_model_is_mutated_on_its_own_data(cnn: Path, tmp_path: Path) -> None:
    from tapml.comparing.data import make_data

    data = make_data(make_images(4))
    found = fuzz(tmp_path / "found", ["onnx-reference", "planted:epsilon"], model=cnn, data=data,
                 cases=6)  # fmt: skip
    assert {each.cause for each in found.causes} == {
        "inconsistent at BatchNormalization of onnx-reference and planted:epsilon"
    }
    arrays = np.load(Path(found.causes[0].folder) / "data.npz")
    assert arrays["image"].shape == (4, 1, 8, 8)


def test_what_cannot_be_mutated_is_refused(cnn: Path, tmp_path: Path) -> None:
    names = ["onnxruntime", "onnx-reference"]
    with pytest.raises(InputError, match=r"expected an \.onnx or \.keras file"):
        fuzz(tmp_path / "found", names, model=tmp_path / "model.keras")
    with pytest.raises(InputError, match="need --data"):
        fuzz(tmp_path / "found", names, model=cnn)
