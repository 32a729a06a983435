"""What torch.export cannot prove of a length is tried for every length of the range."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tapml.importing.exporting import EntryDescription, ExportedEntry, export_entry
from tapml_targets.errors import InputError, UnsupportedOperatorError


class Experts(nn.Module):
    """All experts for all tokens, as in Llama 4: its guard holds for every length."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[1, S, 8]``."""
        rows = rows.reshape(-1, 8)
        first = rows[:, :1].long().clamp(0, 2)
        scores = torch.zeros_like(rows[:, :3]).scatter_(1, first, 1.0)
        routed = rows.repeat(3, 1) * scores.transpose(0, 1).reshape(-1, 1)
        routed = torch.bmm(routed.view(3, -1, 8), self.weight).view(-1, 8).reshape(3, -1, 8)
        out = rows * 2
        out.add_(routed.sum(dim=0))
        return out


class Masked(Experts):
    """Experts behind a layer of `nn.Transformer`, whose look at its mask depends on data."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 1, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[1, S, 8]``."""
        return super().forward(self.encoder(rows, rows[0] @ rows[0].T))


class Halves(nn.Module):
    """Both halves of the rows: there are none of an odd number."""

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[1, S, 8]``."""
        return rows.reshape(2, rows.shape[1] // 2, 8).sum(0)


class Checked(nn.Module):
    """Rows whose numbers are asked for what they have to be, as classes of transformers do."""

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[1, S, 8]``."""
        check: Any = torch._check_tensor_all
        check(rows.abs() < 100)
        return rows * 2


def exported(module: nn.Module) -> ExportedEntry:
    description = EntryDescription(
        name="main",
        module=module.eval(),
        example_inputs=(torch.randn(1, 6, 8),),
        input_names=("rows",),
        dynamic_shapes=({1: torch.export.Dim("S", min=2, max=64)},),
    )
    return export_entry(description)


def test_a_guard_that_holds_for_every_length_is_no_reason_to_refuse() -> None:
    module = Experts()
    entry = exported(module)
    targets = {str(node.target) for node in entry.program.graph.nodes}
    assert "aten._assert_scalar.default" not in targets
    rows = torch.randn(1, 9, 8)
    with torch.no_grad():
        torch.testing.assert_close(entry.program.module()(rows), module(rows))


def test_one_whose_guard_is_tried_may_have_a_mask(capsys: pytest.CaptureFixture[str]) -> None:
    module = Masked()
    entry = exported(module)
    rows = torch.randn(1, 9, 8)
    with torch.no_grad():
        torch.testing.assert_close(entry.program.module()(rows), module(rows))
    assert capsys.readouterr().err == ""


def test_a_program_that_asserts_what_fails_for_a_length_is_refused() -> None:
    dynamic = ({1: torch.export.Dim("S", min=2, max=64)},)
    program = torch.export.export(
        Halves(), (torch.randn(1, 6, 8),), dynamic_shapes=dynamic, strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )  # fmt: skip
    description = EntryDescription(
        "main", Halves(), (torch.randn(1, 6, 8),), ("rows",), program=program,
        dynamic_shapes=dynamic,
    )  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match="'main' asserts Eq"):
        export_entry(description)


def test_what_is_asked_of_numbers_is_left_out() -> None:
    graph = exported(Checked()).program.graph
    assert [str(each.target) for each in graph.nodes if each.op == "call_function"] == [
        "aten.mul.Tensor"
    ]


def test_one_that_fails_for_a_length_is() -> None:
    with pytest.raises(InputError, match=r"torch\.export refuses the module of 'main'"):
        exported(Halves())
