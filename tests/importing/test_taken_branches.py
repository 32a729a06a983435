"""A class that asks for numbers moves with the branches of its example inputs, and never others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tapml.importing.exporting import EntryDescription, ExportedEntry, export_entry
from tapml.importing.loop_trials import check_loops
from tapml.importing.picked_rows import Loops
from tapml_targets.errors import InputError, UnsupportedOperatorError


def _exported(module: nn.Module, *inputs: Tensor, takes: bool = True) -> ExportedEntry:
    names = tuple(f"x{number}" for number in range(len(inputs)))
    return export_entry(EntryDescription("main", module, inputs, names, takes_branches=takes))


class _Padded(nn.Module):
    """As FSMT looks for padding, and BART for the last token."""

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        padding = tokens.eq(1)
        if padding.any():
            values = values.masked_fill(padding[..., None], 0.0)
        ends = tokens.eq(2)
        if len(torch.unique_consecutive(ends.sum(1))) > 1:
            raise ValueError("as many ends in each")
        rows: Tensor = values[ends, :].view(tokens.shape[0], -1, values.shape[-1])
        return rows[:, -1]


def test_outputs_are_nan_where_a_run_takes_another_branch() -> None:
    tokens, values = torch.tensor([[5, 6, 2], [7, 8, 2]]), torch.randn(2, 3, 4)
    exported = _exported(_Padded(), tokens, values)
    assert [line.rpartition(":")[0] for line in exported.branches] == [
        "tests/importing/test_taken_branches.py"
    ] * 3
    program = exported.program.module()
    other = values + 1
    assert torch.equal(program(tokens, other), _Padded()(tokens, other))
    padded = torch.tensor([[5, 1, 2], [7, 8, 2]])
    assert torch.isnan(program(padded, values)).all()
    moved = torch.tensor([[5, 2, 6], [7, 8, 2]])
    assert torch.isnan(program(moved, values)).all()


def test_what_follows_from_no_input_is_a_constant_and_of_a_fraction_refused() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scaled: Tensor = x * sum(torch.linspace(0, 0.5, 3).tolist())
            return scaled

    exported = _exported(Constant(), torch.ones(3))
    assert not exported.branches
    assert torch.equal(exported.program.module()(torch.ones(3)), torch.full((3,), 0.75))

    class Fraction(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.mean().item() > 0 else x

    with pytest.raises(InputError, match="asks for a number that only a run knows"):
        _exported(Fraction(), torch.ones(3))


@torch.jit.script
def _above(x: Tensor) -> Tensor:
    return x > 0


class _Asking(nn.Module):
    """Asks more in a run than in an export, of a scripted function, and for a whole part."""

    def __init__(self) -> None:
        super().__init__()
        self.flag: Any = nn.Buffer(torch.zeros(2))

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and self.flag.any():
            raise ValueError("a flag")
        if tokens.eq(1).any():
            x = -x
        if _above(x).any():
            x = x * 2
        return x + int(x.mean())


def test_no_answer_is_taken_for_that_of_another_question() -> None:
    tokens, x = torch.tensor([5, 6]), torch.tensor([2.25, 3.0])
    exported = _exported(_Asking(), tokens, x)
    assert len(exported.branches) == len(("tokens", "scripted", "whole part"))
    program = exported.program.module()
    assert torch.equal(program(tokens, x), _Asking()(tokens, x))
    for others in ((torch.tensor([5, 1]), x), (tokens, -x), (tokens, x + 1)):
        assert torch.isnan(program(*others)).all()


def test_extents_of_tensors_are_numbers() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size: Any = nn.Buffer(torch.tensor(3))

        def forward(self, x: Tensor) -> Tensor:
            padded = nn.functional.pad(x, (0, self.size))
            return padded[:, : self.size + 1]

    x = torch.randn(2, 2)
    assert torch.equal(_exported(Windows(), x).program.module()(x), Windows()(x))


def test_numbers_of_a_list_that_are_extents_are_those_of_the_example() -> None:
    """As Siglip 2 resizes its positions to the shape of each image."""

    class Resized(nn.Module):
        def forward(self, shapes: Tensor, x: Tensor) -> Tensor:
            sizes = (shapes[at].tolist() for at in range(2))
            resized = (nn.functional.interpolate(x, size=size, mode="bilinear") for size in sizes)
            return torch.cat([each.flatten() for each in resized])

    shapes, x = torch.tensor([[2, 3], [4, 1]]), torch.randn(1, 1, 4, 4)
    program = _exported(Resized(), shapes, x).program.module()
    torch.testing.assert_close(program(shapes, x), Resized()(shapes, x))
    assert torch.isnan(program(shapes.flip(0), x)).all()


def test_a_module_of_the_user_is_refused() -> None:
    tokens, values = torch.tensor([[5, 2]]), torch.randn(1, 2, 4)
    with pytest.raises(InputError, match=r"asks for a number|only a run knows how many"):
        _exported(_Padded(), tokens, values, takes=False)


class _Experts(nn.Module):
    """As DBRX runs the experts that any token has."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:
        result = torch.zeros_like(rows)
        mask = nn.functional.one_hot(chosen, 3).permute(2, 1, 0)
        for place in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            expert = place[0]
            _, token = torch.where(mask[expert])
            if token.numel() == 0:
                continue
            result.index_add_(0, token, rows[token] @ self.weights[expert].T)
        return result


def test_a_loop_over_places_runs_over_all_of_them() -> None:
    module, rows = _Experts(), torch.randn(5, 4)
    all_of_one = torch.tensor([[1]] * 5)
    exported = _exported(module, rows, all_of_one)
    assert not exported.branches
    mixed = torch.tensor([[2], [0], [2], [0], [0]])
    for chosen in (all_of_one, mixed):
        torch.testing.assert_close(
            exported.program.module()(rows, chosen), module(rows, chosen), equal_nan=True
        )
    with pytest.raises(InputError, match="unbind of rows that a mask picks"):
        _exported(module, rows, all_of_one, takes=False)


class _Counted(nn.Module):
    """Adds one for each expert that any token has: the others may not add theirs."""

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:
        counts = nn.functional.one_hot(chosen, 3).sum(dim=(0, 1))
        for _ in (counts > 0).nonzero():
            rows = rows + 1
        return rows


class _Noted(nn.Module):
    """Runs each expert alike, and adds one where one of them has no token."""

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:
        for expert in range(3):
            (token,) = torch.where((chosen == expert).any(dim=-1))
            rows = rows + 1 if token.numel() == 0 else rows.index_add(0, token, rows[token])
        return rows


@pytest.mark.parametrize("module", [_Counted(), _Noted()], ids=["counts", "asks"])
@pytest.mark.parametrize("numbers", [[1, 1, 1, 1], [0, 1, 2, 1]], ids=["one", "all"])
def test_a_loop_that_does_something_for_other_places_is_that_of_the_example(
    module: nn.Module, numbers: list[int]
) -> None:
    rows, chosen = torch.randn(4, 4), torch.tensor(numbers)[:, None]
    exported = _exported(module, rows, chosen)
    assert exported.branches
    program = exported.program.module()
    torch.testing.assert_close(program(rows, chosen), module(rows, chosen))
    assert torch.isnan(program(rows, torch.tensor([[0], [2], [2], [0]]))).all()


def test_a_loop_whose_masks_leave_nothing_out_is_not_known_to_do_nothing() -> None:
    class Always(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            for place in (rows.abs() >= 0).all(dim=0).nonzero():
                rows = rows + place
            return rows

    loops = Loops()
    loops.left_out["modules.py:1"] = False
    with pytest.raises(UnsupportedOperatorError, match="none of the inputs tried leaves a place"):
        check_loops(Always(), (torch.randn(3, 2),), loops)


def test_a_look_for_padding_of_which_a_class_only_warns_is_no_branch() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.PretrainedConfig(pad_token_id=1)

    class Warned(transformers.PreTrainedModel):  # type: ignore[misc, name-defined]
        def forward(self, tokens: Tensor) -> Tensor:
            if transformers.utils.import_utils.is_tracing(tokens):
                raise ValueError("a class that is exported as it runs")
            self.warn_if_padding_and_no_attention_mask(tokens, None)
            halves: Tensor = tokens / 2
            return halves

    program = _exported(Warned(config), torch.tensor([[5, 6]]))
    assert program.branches == ()
    padded = torch.tensor([[5, 1]])
    assert torch.equal(program.program.module()(padded), padded / 2)


class _Listed(nn.Module):
    """An output for each expert that any token has: how many there are, only a run knows."""

    def forward(self, rows: Tensor, chosen: Tensor) -> list[Tensor]:
        counts = nn.functional.one_hot(chosen, 3).sum(dim=(0, 1))
        return [rows + 0 * place[0] for place in (counts > 0).nonzero()]


class _Stacked(_Listed):
    """The same as one output."""

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:  # type: ignore[override]
        return torch.stack(super().forward(rows, chosen))


@pytest.mark.parametrize("module", [_Listed(), _Stacked()], ids=["outputs", "rows"])
def test_a_loop_that_makes_an_output_of_each_place_is_that_of_the_example(
    module: nn.Module,
) -> None:
    rows, chosen = torch.randn(4, 4), torch.ones((4, 1), dtype=torch.int64)
    exported = _exported(module, rows, chosen)
    assert exported.branches
    found, own = exported.program.module()(rows, chosen), module(rows, chosen)
    assert len(found) == len(own)
    torch.testing.assert_close(found, own)


def test_places_may_be_taken_apart_by_axis() -> None:
    class Apart(nn.Module):
        def forward(self, rows: Tensor, weights: Tensor) -> Tensor:
            token, expert = (weights > 0).nonzero().unbind(dim=1)
            shares = weights[token, expert, None]
            return torch.zeros_like(rows).index_add_(0, token, rows[token] * shares)

    rows, weights = torch.randn(2, 4), torch.tensor([[0.5], [-1.0]])
    exported = _exported(Apart(), rows, weights)
    assert not exported.branches
    for given in (weights, weights.flip(0)):
        torch.testing.assert_close(exported.program.module()(rows, given), Apart()(rows, given))
