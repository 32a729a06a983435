"""Functions that leave their result open, in a form that decides it; the recorded program has it.

- A plan's tensors have extents that its inputs' extents tell. ``torch.bincount`` counts up to its
  ``minlength`` so: larger numbers, for which PyTorch's result is longer, are not counted.
  ``torch.linalg.lstsq`` takes its matrix to have full rank.
- ``torch.cov`` and ``torch.corrcoef`` do not look at numbers.
- An eigenvector or a singular vector is one as well with the other sign, and no two libraries take
  the same. Here the sum of its elements, each divided by its place from 1 on to the power 0.9, is
  not below zero. Of singular vectors that is the right one, and of a singular value of zero each of
  the two; ``full_matrices`` adds those of a QR decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tapml.importing.alignments import ctc_loss
from tapml.importing.factorizations import least_squares
from tapml.importing.written_terms import refuse_many
from tapml_targets.errors import UnsupportedOperatorError

# No weights of vectors of small whole numbers, such as (1, -2), add up to zero.
_POWER: Final = 0.9


class _Solution(NamedTuple):
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class _Eigen(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class _Singular(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


class _SingularOfOld(NamedTuple):
    U: Tensor
    S: Tensor
    V: Tensor


class _Decided(TorchFunctionMode):
    """Calls one function in place of another, by whatever name a program has it."""

    def __init__(self, functions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions
        self.written: set[Any] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in self._functions and func not in _DECIDED:
            self.written.add(func)
        return self._functions.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def decided_results(*, exported: bool = False) -> Iterator[set[Any]]:
    """These functions in place of PyTorch's, and of an export those that it has no form for.

    Yields the latter's, as they are called.
    """
    with _Decided(_EXPORTED if exported else _DECIDED) as decided:
        yield decided.written


def _signs(vectors: Tensor) -> Tensor:
    """Of the columns, ``[..., 1, columns]``."""
    if vectors.is_complex():
        raise UnsupportedOperatorError("eigh and svd are imported of real matrices alone")
    places = torch.arange(1, vectors.shape[-2] + 1, dtype=vectors.dtype).unsqueeze(-1)
    total = (vectors / places**_POWER).sum(-2, keepdim=True)
    return torch.where(total < 0, -1.0, 1.0).to(vectors.dtype)


def _eigen(A: Tensor, UPLO: str = "L", **_: Any) -> _Eigen:
    values, vectors = torch.linalg.eigh(A, UPLO)
    return _Eigen(values, vectors * _signs(vectors))


def _singular(A: Tensor, full_matrices: bool = True, **_: Any) -> _Singular:
    left, sizes, right = torch.linalg.svd(A, full_matrices=False)
    rows, columns = A.shape[-2:]
    signs = _signs(right.mT)
    # Of a singular value of zero, the sign of one vector says nothing of the other's.
    none = sizes <= torch.finfo(A.dtype).eps * (rows + columns) * sizes[..., :1]
    left = left * torch.where(none.unsqueeze(-2), _signs(left), signs)
    right = right * signs.mT
    if full_matrices and rows > columns:
        left = _completed(left)
    if full_matrices and columns > rows:
        right = _completed(right.mT).mT
    return _Singular(left, sizes, right)


def _completed(vectors: Tensor) -> Tensor:
    """With further columns, which are orthogonal to these and to each other."""
    every, _ = torch.linalg.qr(vectors, mode="complete")
    return torch.cat([vectors, every[..., vectors.shape[-1] :]], -1)


def _singular_of_old(
    input: Tensor, some: bool = True, compute_uv: bool = True, **_: Any
) -> _SingularOfOld:
    left, sizes, right = _singular(input, full_matrices=not (some and compute_uv))
    if not compute_uv:
        left, right = torch.zeros_like(left), torch.zeros_like(right)
    return _SingularOfOld(left, sizes, right.mH)


def _covariance(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    if fweights is not None or aweights is not None:
        raise UnsupportedOperatorError(
            "cov is imported without weights alone: leave fweights and aweights out"
        )
    rows = input.reshape(-1, input.shape[-1] if input.dim() else 1)
    if not (rows.dtype.is_floating_point or rows.dtype.is_complex):
        rows = rows.to(torch.get_default_dtype())
    apart = rows - rows.mean(1, keepdim=True)
    found = apart @ apart.mH / max(rows.shape[1] - correction, 0)
    return found if input.dim() == 2 else found.reshape(())


def _correlation(input: Tensor) -> Tensor:
    found = _covariance(input)
    if found.dim() == 0:
        return found / found
    spread = found.diagonal().sqrt()
    return (found / spread[:, None] / spread).clamp(-1, 1)


def _solved(*arguments: Any, **options: Any) -> Any:
    return _Solution(*least_squares(*arguments, **options))


def _counts(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if minlength <= 0:
        raise UnsupportedOperatorError(
            "bincount is imported with a minlength alone, which is the length of its result in a "
            "plan: give the number of bins, as in torch.bincount(x, minlength=10)"
        )
    refuse_many("bincount", minlength, *input.shape)
    bins = torch.arange(minlength, dtype=torch.int32).unsqueeze(1)
    hit = input.to(torch.int32).unsqueeze(0) == bins
    if weights is None:
        return hit.sum(1)
    weights = weights if weights.dtype == torch.float32 else weights.double()
    return torch.where(hit, weights.unsqueeze(0), torch.zeros((), dtype=weights.dtype)).sum(1)


_DECIDED: Final[Mapping[Any, Callable[..., Any]]] = {
    torch.bincount: _counts,
    torch.Tensor.bincount: _counts,
    torch.cov: _covariance,
    torch.Tensor.cov: _covariance,
    torch.corrcoef: _correlation,
    torch.Tensor.corrcoef: _correlation,
    torch.linalg.lstsq: _solved,
    torch.linalg.eigh: _eigen,
    torch.linalg.svd: _singular,
    torch.svd: _singular_of_old,
    torch.Tensor.svd: _singular_of_old,
}


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    kind = ("none", "mean", "sum").index(reduction)
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, kind, zero_infinity)


# A function that is written in Python is taken as it is, with those that it calls.
_EXPORTED: Final[Mapping[Any, Callable[..., Any]]] = {
    **_DECIDED,
    torch.ctc_loss: ctc_loss,
    torch.nn.functional.ctc_loss: _ctc_loss,
}
