"""Any torch module recorded as a model: its folder, and what is said where it does not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tapml as tml
from tapml.models.file_names import PROGRAM
from tapml.models.huggingface import load_any
from tapml.models.recorded_module import RecordedModule
from tapml.rooting.own_forward import root_wrapper
from tapml_targets.errors import InputError, MismatchError, UnsupportedOperatorError


class Several(nn.Module):
    """Constants, buffers, a size in an expression, and a nest of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.register_buffer("ramp", torch.arange(8.0), persistent=False)

    def forward(self, x: Tensor, bias: Tensor) -> dict[str, Any]:
        h = self.inner(x) * self.ramp + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])
        return {"halves": h.reshape(2 * x.shape[0], 4), "more": (bias.sum(), h.argmax(1))}


def recorded(**options: Any) -> RecordedModule:
    torch.manual_seed(0)
    module = Several()
    inputs = [torch.rand(3, 4), torch.ones(3)]
    return tml.from_torch(
        module, inputs, dynamic={"x": {0: "batch"}, "bias": {0: "batch"}}, **options
    )


def test_a_module_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    model = recorded(samples=[[np.ones((5, 4)), torch.zeros(5)]], name="several")
    folder = model.save(tmp_path / "folder").source
    again = load_any(folder)
    assert isinstance(again, RecordedModule)
    assert again.stored == model.stored
    assert [each.name for each in again.stored.outputs] == ["halves", "more.0", "more.1"]
    assert root_wrapper(again) < 1e-6
    x, bias = torch.rand(7, 4), torch.rand(7)
    torch.manual_seed(0)
    own = Several().eval()(x, bias)
    ours = again.module(x, bias)
    assert torch.allclose(ours[0], own["halves"])
    assert torch.equal(ours[2], own["more"][1])
    # Written twice, it is the same folder; anything else there is not replaced.
    again.save(folder)
    (folder / "notes.txt").touch()
    with pytest.raises(InputError, match="holds something else"):
        again.save(folder)


class Nested(nn.Module):
    """Arguments in a dictionary and a list, one that is no tensor, and a result that is None."""

    def forward(
        self, batch: dict[str, Tensor], rows: list[Tensor], mask: Tensor | None = None, *, by: float
    ) -> dict[str, Any]:
        total = batch["x"] * by + rows[0] - rows[1]
        return {"total": total, "mask": mask, "more": (batch["m"].sum(), None)}


def test_arguments_in_dictionaries_and_lists_have_names_by_their_way(tmp_path: Path) -> None:
    given = {"batch": {"x": np.ones((3, 4), np.float32), "m": torch.arange(3.0)},
             "rows": [torch.ones(4), torch.full((4,), 5.0)], "by": 2.0}  # fmt: skip
    other = {**given, "batch": {"x": torch.rand(7, 4), "m": torch.ones(3)}}
    model = tml.from_torch(Nested(), given, dynamic={"batch.x": {0: "n"}}, samples=[other])
    names = [each.name for each in model.stored.inputs]
    assert names == ["batch.x", "batch.m", "rows.0", "rows.1"]
    assert [each.name for each in model.stored.outputs] == ["total", "more.0"]
    again = load_any(model.save(tmp_path / "folder").source)
    assert root_wrapper(again) < 1e-6
    total, _ = again.module(torch.rand(5, 4), torch.ones(3), torch.ones(4), torch.zeros(4))
    assert total.shape == (5, 4)
    with pytest.raises(InputError, match="does not take these inputs: missing a required"):
        tml.from_torch(Nested(), {"batch": {}})
    with pytest.raises(InputError, match=r"other arguments than the inputs: expected batch\.x"):
        tml.from_torch(Nested(), given, samples=[{**given, "mask": torch.ones(1)}])
    with pytest.raises(InputError, match=r"a sample has 3\.5 where the inputs have"):
        tml.from_torch(Nested(), given, samples=[{**given, "by": 3.5}])


class Chosen(nn.Module):
    """A choice by a value, and a distribution that would look at its arguments."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cond(x.sum().reshape(1) > 0, lambda y: y * 2, lambda y: y - 1, (x,))
        normal: Any = torch.distributions.Normal(0.0, 1.0)
        found: Tensor = normal.log_prob(x)
        return found


def test_modules_of_torchscript_and_of_torch_ao_are_refused_by_name() -> None:
    net, untyped = nn.Sequential(nn.Linear(4, 2)), cast("Any", torch)
    with pytest.raises(InputError, match="TorchScript cannot be exported"):
        tml.from_torch(untyped.jit.trace(net, torch.ones(1, 4)), [torch.ones(1, 4)])
    coded = untyped.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InputError, match=r"0 is quantized by torch\.ao"):
        tml.from_torch(coded, [torch.ones(1, 4)])


def test_both_sides_of_a_choice_are_recorded() -> None:
    whole = torch.cond
    model = tml.from_torch(Chosen(), [torch.rand(2, 3)], samples=[[-torch.rand(2, 3)]])
    assert root_wrapper(model) < 1e-6
    assert torch.cond is whole


class Summed(nn.Module):
    def forward(self, scale: Tensor, *rows: Tensor) -> Tensor:
        return scale * (rows[0] + rows[1])


def test_arguments_of_any_number_are_inputs_by_number(tmp_path: Path) -> None:
    inputs = [torch.tensor(2.0), torch.rand(3, 4), torch.rand(3, 4)]
    axes = {"rows.0": {0: "batch"}, "rows.1": {0: "batch"}}
    model = tml.from_torch(Summed(), inputs, dynamic=axes)
    assert [str(each) for each in model.stored.inputs][1] == "rows.0 float32 [batch, 4]"
    again = load_any(model.save(tmp_path / "folder").source)
    assert root_wrapper(again) < 1e-6


def test_a_recording_that_differs_from_its_module_is_not_rooted() -> None:
    model = recorded()
    wrong = tuple(tuple(each + 1 for each in some) for some in model.expected)
    with pytest.raises(MismatchError, match="forward differs"):
        root_wrapper(replace(model, expected=wrong))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded().save(tmp_path_factory.mktemp("recorded") / "folder").source


@pytest.mark.parametrize(
    ("find", "put"),
    [
        ("torch.ops.aten.linear.default", "torch.load"),
        ("torch.ops.aten.linear.default", "_operator.attrgetter"),
        ("Integer(2)", "__import__('os')"),
        ("Integer(2)", "Integer(2).__class__"),
        ('"name": "linear"', '"name": "linear; print(1)"'),
        ('"user_input"', '"user_joke"'),
    ],
)
def test_a_folder_whose_program_was_edited_is_refused(
    tmp_path: Path, saved: Path, find: str, put: str
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "folder"))
    text = (folder / PROGRAM).read_text()
    assert find in text
    (folder / PROGRAM).write_text(text.replace(find, put))
    with pytest.raises(InputError, match="recorded"):
        load_any(folder)


def test_other_weights_than_were_recorded_are_refused(tmp_path: Path, saved: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "folder"))
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(InputError, match="other weights than were recorded"):
        load_any(folder)


class Giving(nn.Module):
    """Gives what it is told to make of its input."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: (x + 1, 3), r"output result\.1 is int: expected a tensor"),
        (lambda x: {"a": x.relu(), "b": "text"}, "output b is str"),
        (lambda x: (), "returns nothing"),
        (lambda x: (x.relu(), x), "is an input"),
        (lambda x: [x.relu()] * 2, "are one tensor"),
        (lambda x: x @ torch.ones(9, 9), r"does not take the inputs float32 \[2, 3\]"),
        (
            lambda x: x.relu() if x.sum() > 0 else x * 2,
            "asks for a number that only a run knows, as a branch",
        ),
        (lambda x: x + torch.randn(3), "differs between two runs of the same inputs"),
        (lambda x: x + torch.randn(3) * 1e-9, r"draws random numbers \(aten.randn.default\)"),
        (lambda x: x.nonzero(), "as many rows as a mask picks"),
        (lambda x: x.double(), "float64"),
    ],
)
def test_what_cannot_be_a_model_is_said_at_once(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tml.from_torch(Giving(make), [torch.ones(2, 3)])


@pytest.mark.parametrize(
    ("inputs", "dynamic", "message"),
    [
        (torch.ones(2, 3), None, "a list of the module's inputs"),
        ([3.0], None, "no input of Giving is a tensor"),
        ([torch.ones(2, 0)], None, r"x is of shape \[2, 0\]: expected extents of at least 1"),
        ([torch.ones(2, 3)] * 2, None, "2 inputs for Giving: expected tensors for x"),
        ([torch.ones(2, 3)], {"y": {0: "n"}}, "dynamic names 'y': expected of x"),
        ([torch.ones(2, 3)], [{2: "n"}], "axis 2 of x: expected 0 to 1"),
        ([torch.ones(2, 3)], [{0: 3}], 'expected a name such as "batch"'),
        ([torch.ones(2, 3)], [{}, {}], "2 items"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs: Any, dynamic: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tml.from_torch(Giving(torch.relu), inputs, dynamic)


def test_an_operator_that_cannot_be_imported_is_named_with_its_line() -> None:
    odd = Giving(lambda t: torch.special.bessel_j0(t) + 1)
    with pytest.raises(UnsupportedOperatorError, match=r"bessel_j0.*test_recording\.py:\d+"):
        tml.from_torch(odd, [torch.ones(2, 3)])


def test_the_folder_has_no_pickle(saved: Path) -> None:
    folder = saved
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] * 2 + [".safetensors"] * 2
    assert json.loads((folder / PROGRAM).read_text())["guards_code"] == []
