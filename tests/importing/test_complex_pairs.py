"""Complex numbers inside a program become pairs of real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tapml.compiler.reference import compile_reference
from tapml.execute.executor import Executor
from tapml.importing.exporting import EntryDescription
from tapml.importing.importer import import_entries, import_module
from tapml.rooting.rooting import root_runs
from tapml_targets.errors import UnsupportedOperatorError
from tests.importing.modules import root_module


class Turned(nn.Module):
    """Rotary positions as DeepSeek-V2 and Llama 4 write them."""

    def forward(self, rows: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].double() * torch.tensor([1.0, 0.1, 0.01]).double()
        turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64) * 0.5
        pairs = torch.view_as_complex(rows.reshape(*rows.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, None, :]).flatten(2)


class Joined(nn.Module):
    """Complex rows behind real ones, and those of one imaginary part."""

    def forward(self, rows: Tensor) -> Tensor:
        pairs = torch.view_as_complex(rows)
        made = torch.complex(rows[..., 1], rows[0, 0, 0])
        return torch.view_as_real(torch.cat([rows[..., 0], pairs * 2.0, made]))


class Parts(nn.Module):
    """Of complex numbers whose parts have two shapes."""

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        one, other = torch.complex(rows, rows[0, 0]), torch.complex(rows[0], rows)
        return one.real, one.imag, other.real, other.imag, one.abs()


class Conjugated(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(rows).sinh())


def test_a_product_of_complex_numbers_is_pytorchs() -> None:
    inputs = (torch.randn(4, 2, 6), torch.arange(4, dtype=torch.int32))
    imported = import_module(Turned(), inputs)
    (entry,) = imported.plan.entries.values()
    arrays = dict(zip(entry.inputs, (each.numpy() for each in inputs), strict=True))
    report = root_runs(imported, [(entry.name, arrays)])
    assert report.sites == len(entry.calls)
    assert entry.values[entry.outputs[0]].dtype == "float32"


def test_real_rows_are_joined_with_complex_ones() -> None:
    given = torch.randn(4, 3, 2)
    imported = import_module(Joined(), (given,))
    report = root_module(imported, [given.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)


@pytest.mark.parametrize("any_length", [False, True])
def test_parts_of_two_shapes_have_that_of_the_pair(any_length: bool) -> None:
    given, module = torch.randn(4, 3), Parts()
    extents = {0: torch.export.Dim("rows", min=2, max=99)} if any_length else {}
    entry = EntryDescription("main", module, (given,), ("rows",), dynamic_shapes=(extents,))
    made = import_entries("main", [entry])
    executor = Executor(made.plan, made.weights, compile_reference(made.plan))
    found = executor.run("main", {"rows": given.numpy()}).values()
    for ours, own in zip(found, module(given), strict=True):
        torch.testing.assert_close(torch.from_numpy(np.array(ours)), own)


def test_an_operation_without_a_real_form_is_named_with_its_line() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"view_as_complex.*test_complex_pairs.py"):
        import_module(Conjugated(), (torch.from_numpy(np.ones((3, 2), np.float32)),))
