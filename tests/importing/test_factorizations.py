"""LU, singular values and eigenvalues of small matrices give their matrix back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tapml.importing.exporting import EntryDescription, export_entry
from tapml.importing.factorizations import factorizations
from tapml.importing.fixed_results import decided_results
from tapml.importing.importer import import_module
from tapml.importing.matrices import orthogonal
from tapml_targets.errors import UnsupportedOperatorError
from tests.importing.modules import Apply, root_module

_own_name_of_eigh = torch.linalg.eigh
_linalg, _aten = torch.linalg, torch.ops.aten
_of = factorizations()


def matrices(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 3, 3)])
@pytest.mark.parametrize("full", [False, True])
def test_singular_values_are_pytorchs_and_vectors_give_the_matrix(
    shape: tuple[int, ...], full: bool
) -> None:
    given = matrices(*shape)
    left, sizes, right = _of[_aten._linalg_svd.default](given, full)
    wanted = _linalg.svd(given, full_matrices=full)
    assert (left.shape, right.shape) == (wanted.U.shape, wanted.Vh.shape)
    torch.testing.assert_close(sizes, wanted.S)
    count = sizes.shape[-1]
    back = (left[..., :count] * sizes.unsqueeze(-2)) @ right[..., :count, :]
    torch.testing.assert_close(back, given)
    product = left.mT @ left
    torch.testing.assert_close(product, torch.eye(left.shape[-1]).to(left).expand_as(product))


def test_vectors_of_a_singular_value_of_zero_are_orthogonal_to_the_others() -> None:
    given = torch.tensor([[1.0, 2, 0], [2, 4, 0], [0, 0, 0]], dtype=torch.float64)
    left, sizes, right = _of[_aten._linalg_svd.default](given)
    torch.testing.assert_close(sizes, torch.tensor([5.0, 0, 0]).double())
    torch.testing.assert_close(left.mT @ left, torch.eye(3).double())
    torch.testing.assert_close(right @ right.mT, torch.eye(3).double())


@pytest.mark.parametrize("half", ["L", "U"])
def test_eigenvalues_of_either_sign_are_told_apart(half: str) -> None:
    given = torch.tensor([[0.0, 2, 9], [2, 0, 9], [0, 0, 1]], dtype=torch.float64)
    given = given if half == "U" else given.mT
    values, vectors = _of[_aten._linalg_eigh.default](given, half)
    torch.testing.assert_close(values, _linalg.eigvalsh(given, UPLO=half))
    whole = given.triu() + given.triu(1).mT if half == "U" else given.tril() + given.tril(-1).mT
    torch.testing.assert_close(whole @ vectors, vectors * values)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)])
def test_lu_is_lapacks(shape: tuple[int, ...]) -> None:
    given = matrices(*shape)
    found = _of[_aten.linalg_lu_factor_ex.default](given)
    wanted = _linalg.lu_factor_ex(given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(
        (*_of[_aten.linalg_lu.default](given), *_of[_aten.lu_unpack.default](*wanted[:2])),
        (*_linalg.lu(given), *torch.lu_unpack(*wanted[:2])),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_singular_matrix_has_the_step_of_its_first_zero_pivot() -> None:
    given = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]], dtype=torch.float64)
    assert int(_of[_aten.linalg_lu_factor_ex.default](given)[2]) == 3


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solutions_by_lu_are_pytorchs(adjoint: bool, left: bool) -> None:
    parts = _linalg.lu_factor(matrices(2, 4, 4))
    right = matrices(2, 4, 3) if left else matrices(2, 3, 4)
    found = _of[_aten.linalg_lu_solve.default](*parts, right, left=left, adjoint=adjoint)
    torch.testing.assert_close(found, _linalg.lu_solve(*parts, right, left=left, adjoint=adjoint))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_solutions_of_a_triangle_are_pytorchs(upper: bool, transpose: bool) -> None:
    given = matrices(3, 3) + 3 * torch.eye(3)
    right = matrices(3, 2)
    found = _of[_aten.triangular_solve.default](right, given, upper, transpose)
    wanted = torch.triangular_solve(right, given, upper, transpose)
    torch.testing.assert_close(found[0], wanted[0])


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_least_squares_and_pseudo_inverses_are_pytorchs(shape: tuple[int, int]) -> None:
    given, right = matrices(*shape), matrices(shape[0], 2)
    found, _, rank, _ = _of[_aten.linalg_lstsq.default](given, right)
    wanted = _linalg.lstsq(given, right)
    torch.testing.assert_close(found, wanted.solution)
    assert int(rank) == int(wanted.rank)
    inverse = _of[_aten.linalg_pinv.atol_rtol_tensor](given, rtol=torch.tensor(1e-10))
    torch.testing.assert_close(inverse, _linalg.pinv(given))
    low = given[:, :2] @ given[:2]
    assert int(_of[_aten.linalg_matrix_rank.atol_rtol_float](low)) == 2


def test_a_plan_gives_what_the_program_gives() -> None:
    given = matrices(2, 3, 3).float()
    of = Apply(
        lambda each: (
            _linalg.svdvals(each[:, :2]),
            *_linalg.eigh(each[0] + each[0].mT),
            *_linalg.lu_factor(each[:, :2, :2]),
        )
    )
    imported = import_module(of, (given,))
    assert "orthogonal_columns" in imported.plan.operators
    report = root_module(imported, [given.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)


def test_signs_of_vectors_of_whole_numbers_are_decided() -> None:
    """Weights of 1 and 1/2 would add (1, -2) up to zero; a value of zero leaves both signs open."""
    symmetric = torch.tensor([[5.0, 2], [2, 2]])
    singular = torch.arange(1.0, 10).reshape(3, 3)
    for module, given in (
        (Apply(lambda each: torch.linalg.eigh(each)), symmetric),  # noqa: PLW0108 - looked up late
        (Apply(lambda each: torch.linalg.svd(each)), singular),  # noqa: PLW0108
    ):
        report = root_module(import_module(module, (given,)), [given.numpy()])
        assert all(each.ratio <= 1 for each in report.compared)


def test_signs_are_decided_of_a_function_by_any_name() -> None:
    given = matrices(3, 3)
    found = given @ given.mT
    with decided_results():
        wanted = torch.linalg.eigh(found)[1]
        torch.testing.assert_close(_own_name_of_eigh(found)[1], wanted, rtol=0, atol=0)
    module = Apply(lambda x: _own_name_of_eigh(x)[1])
    exported = export_entry(EntryDescription("main", module, (found,), ("x",)))
    vectors = exported.program.module()(found)
    torch.testing.assert_close(vectors, wanted)


def test_vectors_of_complex_matrices_are_refused_by_name() -> None:
    given = torch.eye(2, dtype=torch.complex64)
    for function in (_linalg.eigh, _linalg.svd):
        with decided_results(), pytest.raises(UnsupportedOperatorError, match="of real matrices"):
            function(given)


@pytest.mark.parametrize("some", [False, True])
def test_vectors_that_are_left_out_have_pytorchs_shapes(some: bool) -> None:
    given = matrices(4, 2)
    wanted = torch.svd(given, some, compute_uv=False)
    with decided_results():
        found = torch.svd(given, some, compute_uv=False)
    for ours, own in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, own)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4), (3, 1), (1, 3)])
def test_reflections_are_lapacks_and_so_are_their_products(shape: tuple[int, ...]) -> None:
    given = matrices(*shape)
    packed = torch.geqrf(given)
    for ours, own in zip(_of[_aten.geqrf.default](given), packed, strict=True):
        torch.testing.assert_close(ours, own)
    if shape[-2] < shape[-1]:
        return
    product = _of[_aten.linalg_householder_product.default](*packed)
    torch.testing.assert_close(product, _linalg.householder_product(*packed))
    right = matrices(*shape[:-1], 2)
    for transpose in (False, True):
        for left, other in ((True, right), (False, right.mT)):
            ours = _of[_aten.ormqr.default](*packed, other, left, transpose)
            torch.testing.assert_close(ours, torch.ormqr(*packed, other, left, transpose))


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_no_square_of_what_is_given_overflows_or_vanishes(size: float) -> None:
    """float32 has numbers up to 3e38: their squares are left from 1.9e19 on."""
    given = matrices(5, 3).float() * size
    for ours, function in ((_of[_aten.geqrf.default], torch.geqrf), (orthogonal, _linalg.qr)):
        for one, own in zip(ours(given), function(given), strict=True):
            torch.testing.assert_close(one, own, rtol=1e-4, atol=1e-5 * float(own.abs().max()))
    left, sizes, right = _of[_aten._linalg_svd.default](given)
    torch.testing.assert_close(sizes, _linalg.svdvals(given), rtol=1e-5, atol=0)
    torch.testing.assert_close(left * sizes @ right, given, rtol=1e-4, atol=1e-5 * size)
    whole = given[:3] + given[:3].mT
    values, _ = _of[_aten._linalg_eigh.default](whole)
    torch.testing.assert_close(values, _linalg.eigvalsh(whole), rtol=1e-4, atol=1e-5 * size)


def test_larger_matrices_are_refused() -> None:
    description = EntryDescription("main", Apply(_linalg.svdvals), (torch.zeros(40, 40),), ("a",))
    with pytest.raises(UnsupportedOperatorError, match=r"svd is imported of matrices .* up to 32"):
        export_entry(description)


def test_counts_have_as_many_bins_as_are_asked_for() -> None:
    numbers, weights = torch.tensor([0, 3, 3, 1, 5]), torch.tensor([1.0, 2, 3, 4, 5])
    module = Apply(lambda each: (each.bincount(minlength=8), torch.bincount(each, weights, 8)))
    program = export_entry(EntryDescription("main", module, (numbers,), ("numbers",))).program
    for one, other in zip(program.module()(numbers), module(numbers), strict=True):
        torch.testing.assert_close(one, other)
    unknown = EntryDescription(
        "main", Apply(lambda each: each.bincount()), (numbers,), ("numbers",)
    )
    with pytest.raises(UnsupportedOperatorError, match="give the number of bins"):
        export_entry(unknown)


def test_covariances_and_correlations_are_pytorchs() -> None:
    given = matrices(3, 7)
    module = Apply(
        lambda each: (
            each.cov(),
            torch.cov(each[0], correction=0),
            each.corrcoef(),
            (9 * each).to(torch.int32).cov(),
        )
    )
    program = export_entry(EntryDescription("main", module, (given,), ("rows",))).program
    for one, other in zip(program.module()(given), module(given), strict=True):
        torch.testing.assert_close(one, other)
