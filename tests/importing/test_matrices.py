"""Linear algebra is written out in steps of a column, which the importer takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tapml.importing.exporting import EntryDescription, export_entry
from tapml.importing.importer import import_module
from tapml.importing.matrices import matrix_functions
from tapml_targets.errors import UnsupportedOperatorError
from tests.importing.modules import Apply, root_module

_linalg, _aten = torch.linalg, torch.ops.aten


def test_a_plan_gives_what_the_module_gives() -> None:
    torch.manual_seed(2)
    matrices = torch.randn(3, 2, 2)
    of = Apply(lambda each: (_linalg.solve(each, each[0]), _linalg.tensorinv(each[0], ind=1)))
    imported = import_module(of, (matrices,))

    report = root_module(imported, [matrices.numpy()])

    assert all(each.ratio <= 1 for each in report.compared)


def functions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's function by the operation that ours is written for."""
    return {
        _aten.linalg_solve.default: _linalg.solve,
        _aten._linalg_det.default: lambda each: [_linalg.det(each)],
        _aten._linalg_slogdet.default: lambda each: list(_linalg.slogdet(each)),
        _aten.linalg_cholesky.default: _linalg.cholesky,
        _aten.cholesky_solve.default: torch.cholesky_solve,
        _aten.cholesky_inverse.default: torch.cholesky_inverse,
        _aten.linalg_solve_triangular.default: _linalg.solve_triangular,
        _aten.linalg_qr.default: _linalg.qr,
        _aten.linalg_matrix_exp.default: _linalg.matrix_exp,
        _aten.linalg_tensorinv.default: _linalg.tensorinv,
        _aten.linalg_tensorsolve.default: _linalg.tensorsolve,
    }


def test_each_function_has_the_values_of_pytorch() -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, 5, 5).double()
    right = torch.randn(3, 5, 2).double()
    definite = matrices @ matrices.mT + torch.eye(5)
    ones = torch.ones(2, 2).double()
    upper, lower = {"upper": True}, {"upper": False}
    from_right = {"upper": True, "left": False, "unitriangular": True}
    for operation, operands, options in (
        (_aten.linalg_solve, (matrices, right[..., 0]), {}),
        (_aten.linalg_solve, (matrices, right.mT), {"left": False}),
        (_aten._linalg_det, (torch.stack([ones, -ones.triu()]),), {}),
        (_aten._linalg_slogdet, (matrices,), {}),
        (_aten.linalg_cholesky, (definite,), upper),
        (_aten.cholesky_solve, (right, definite.tril()), {}),
        (_aten.cholesky_inverse, (definite.triu(),), upper),
        (_aten.linalg_solve_triangular, (definite.triu(), right), upper),
        (_aten.linalg_solve_triangular, (definite.tril(), right), lower),
        (_aten.linalg_solve_triangular, (matrices.triu(), right.mT), from_right),
        (_aten.linalg_qr, (right,), {"mode": "complete"}),
        (_aten.linalg_qr, (right.mT,), {"mode": "r"}),
        (_aten.linalg_matrix_exp, (matrices * 3,), {}),
        (_aten.linalg_matrix_exp, (matrices * 0.01,), {}),
        (_aten.linalg_tensorinv, (torch.randn(6, 2, 3).double(),), {"ind": 1}),
        (_aten.linalg_tensorsolve, (matrices[0].reshape(5, 5, 1), right[0, :, 0]), {}),
    ):
        found = matrix_functions()[operation.default](*operands, **options)
        wanted = functions()[operation.default](*operands, **options)
        pairs = (
            [(found, wanted)] if isinstance(wanted, Tensor) else zip(found, wanted, strict=False)
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_matrix_without_a_result_is_counted() -> None:
    matrices = torch.stack([torch.eye(2), -torch.ones(2, 2)])
    sides = torch.ones(3, 2, 2, 4)
    ours = matrix_functions()

    for info in (
        ours[_aten.linalg_inv_ex.default](matrices)[1],
        ours[_aten.linalg_cholesky_ex.default](matrices)[1],
        ours[_aten._linalg_solve_ex.default](matrices, torch.ones(2, 2))[3],
        ours[_aten._linalg_solve_ex.default](matrices, sides)[3],
    ):
        assert info.dtype == torch.int32
        assert info.tolist() == [0, 1]
    assert ours[_aten._linalg_solve_ex.default](matrices[:1], sides)[3].tolist() == [0]


def test_an_exponential_is_of_large_numbers_or_no_number() -> None:
    exponential = matrix_functions()[_aten.linalg_matrix_exp.default]
    large = torch.diag(torch.tensor([-1e5, -1.0], dtype=torch.float64))

    torch.testing.assert_close(exponential(large), _linalg.matrix_exp(large), rtol=1e-9, atol=0)
    assert exponential(large * 1e4).isnan().all()


def test_an_exponential_is_few_operators_of_little_text() -> None:
    """In one that reads the step before it twice, a device's kernel would double with each."""
    imported = import_module(Apply(_linalg.matrix_exp), (torch.ones(3, 3),))
    sizes = [len(each.function) for each in imported.plan.operators.values()]
    assert len(sizes) < 30 and max(sizes) < 60_000


@pytest.mark.parametrize(
    ("function", "shape", "words"),
    [
        (_linalg.det, (40, 40), "det is imported .* extents up to 32, this one has 40"),
        (_linalg.qr, (600, 2), "qr is imported of matrices of up to 512 rows, this one has 600"),
    ],
)
def test_what_is_too_large_is_refused_by_its_extent(
    function: Callable[..., Any], shape: tuple[int, ...], words: str
) -> None:
    described = EntryDescription("large", Apply(function), (torch.zeros(shape),), ("x",))

    with pytest.raises(UnsupportedOperatorError, match=words):
        export_entry(described)
