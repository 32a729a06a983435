"""Operations in the form of others, and of promoted dtypes, give PyTorch's results."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tapml.importing.exporting import EntryDescription, export_entry
from tapml.importing.importer import import_module
from tapml.importing.translate import translate
from tapml_targets.errors import UnsupportedOperatorError
from tests.importing.modules import Apply, root_module


def of_floats(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows ``[4, 6]``."""
    put = rows.clone()
    put[1:, ::2] += 1
    put[put > 1] = 0
    put[3:3:2] = 0
    put[:, torch.tensor([True, False] * 3)] = torch.ones(4, 1)
    blocks = functional.dropout(rows, training=False).reshape(2, 3, 4).clone()
    blocks[:, torch.tensor([True, False, True])] = torch.ones(2, 1, 4)
    blocks.index_put_((torch.tensor([False, True]),), torch.ones(1, 3, 1), accumulate=True)
    ordered = torch.tensor([-1.0, 0.0, 1.0])
    return (
        put, blocks, functional.selu(rows), rows @ rows.T, functional.avg_pool2d(
            rows[None], 2, divisor_override=3
        ), torch.hypot(rows, rows.flip(0)), rows.copysign(-rows), rows.signbit(), torch.fmax(
            rows, rows.flip(1)
        ), *torch.var_mean(rows, 1), torch.linalg.vector_norm(rows, 0, 1),
        torch.bucketize(rows, ordered), torch.bucketize(rows, ordered, right=True),
        torch.bucketize(rows.log(), ordered), torch.fmax(rows.int(), rows.log()),
        torch.where(rows > 0, rows.half(), rows), rows.slice_scatter(rows[:2].double(), 0, 0, 4, 2),
        functional.avg_pool2d(rows[None], 3, 2, 1, ceil_mode=True, divisor_override=3),
        functional.pdist(rows), *rows.kthvalue(2, 1), *rows.sum().kthvalue(1),
        (rows - 5).any(1), torch.exp2(rows), torch.fmod(rows * 5, 0.7), torch.fmod(
            rows, torch.tensor([math.inf, -0.3] * 3)
        ),
        functional.group_norm(rows[None], 2),
        functional.multilabel_margin_loss(rows, torch.tensor([[1, 4, -1, 0, 0, 0]] * 4)),
    )  # fmt: skip


def of_integers(numbers: Tensor) -> tuple[Tensor, ...]:
    """Integers ``[3, 5]``, of 32 bits."""
    mask, bits = numbers > 0, numbers.to(torch.uint8)
    return (
        numbers / 2, 1 / (numbers + 20), numbers.exp(), numbers**0.5, mask.sigmoid(), -bits,
        torch.heaviside(numbers.float(), torch.tensor(1.0)), numbers.prod(1), numbers.cumprod(1),
        numbers.copysign(-numbers), numbers.copysign(-2), numbers + torch.arange(8, -1, -2),
        mask.amax(1), *mask.max(1), *numbers.max(1), 1 << (numbers & 7), mask.cumsum(1),
        numbers @ numbers.T, torch.clamp(numbers, max=numbers.flip(1)), numbers.sum().cumsum(0),
        torch.addmv(numbers[:, 0], numbers, numbers[0], beta=2), torch.addmm(
            numbers[:, :3], numbers, numbers.T, alpha=2
        ), torch.addbmm(numbers[:, :3], numbers[None], numbers.T[None]),
    )  # fmt: skip


def of_infinities(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows ``[4, 6]``, of which one is of minus infinities."""
    image = rows[None, None]
    return (
        rows.amax(1), *rows.max(1), rows.argmax(1), rows.argmax(), rows.argmin(keepdim=True),
        (-rows).amin(1), (-rows).argmin(1), torch.hypot(rows, rows.T.reshape(4, 6)),
        rows.logsumexp(1), functional.max_pool2d(image, 3, 1, 1), *rows.cummax(1),
        *functional.adaptive_max_pool2d(image, (2, 4), return_indices=True),
    )  # fmt: skip


def of_bytes(numbers: Tensor) -> tuple[Tensor, ...]:
    """Bytes ``[3, 4]``, of which a row has zeros alone."""
    places = numbers[:, :2].long() % 4
    first, floats = places[0, 0], numbers.float()
    return (
        *numbers.max(1), *numbers.min(1), numbers.argmax(1), (numbers * 0).argmax(),
        floats.scatter(1, places, 2.0, reduce="add"), torch.tril_indices(3, 4) + first,
        floats.scatter(1, places, 2.0, reduce="multiply"), torch.triu_indices(4, 3, 1) + first,
    )  # fmt: skip


def rows() -> Tensor:
    return torch.randn(4, 6)


def of_rarer(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows ``[3, 5]`` with NaN, infinities and a number below the least normal one."""
    whole = torch.tensor([[3, 1, 3, 1, 2], [0, 0, 7, 7, 7], [-1, -1, -1, 5, 5]])
    index, put = torch.tensor([0, 2, 0]), torch.tensor([[0, -1]])
    small = rows.nan_to_num(0, 1, -1)
    return (
        small.logcumsumexp(1), small[:, 0].logcumsumexp(0), *torch.frexp(rows), torch.ldexp(
            rows, torch.tensor([3, -2, 200, -200, 0])
        ), torch.nextafter(
            rows, rows.flip(1)
        ), rows.nanmedian(), rows.nanmedian(1)[0], whole.nanmedian(0, keepdim=True)[0],
        rows.median(1)[0], small.median(), whole.median(0, keepdim=True)[0],
        *whole.mode(1), *whole.double().mode(0, keepdim=True), torch.diagonal_scatter(
            rows, torch.tensor([4.0, 5, 6]), 1
        ), small.index_reduce(1, index, small[:, :3], "amax"), small.index_reduce(
            1, index, small[:, :3], "mean", include_self=False
        ), small.put(put, torch.tensor([[8.0, 9]])), small.put(put, small[:1, :2], True),
        torch.lerp(small, small.flip(0), small.sigmoid()), torch.conv_tbc(
            small[..., None], torch.ones(3, 1, 2), torch.ones(2), 1
        ), rows.view(torch.int32), small.double().view(torch.int64), whole.view(torch.float64),
        rows.relu(), rows.clamp(-1, 1), rows.amax(1), rows.argmax(1), rows.argmin(0),
        rows.minimum(rows.flip(0)), torch.log1p(small / 9), torch.expm1(small * 1e-6),
        functional.softplus(small * 30), functional.elu(small * 1e-5, 0.5),
    )  # fmt: skip


def rare() -> Tensor:
    given = torch.randn(3, 5)
    given[0, 1], given[1, 3], given[2, 0], given[2, 4] = math.nan, math.inf, -math.inf, 1e-40
    given[1, 0] = -0.0
    return given


def infinite() -> Tensor:
    return rows().index_fill(0, torch.tensor([1, 2]), -math.inf)


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (of_floats, rows),
        (of_integers, lambda: torch.arange(-7, 8, dtype=torch.int32).reshape(3, 5)),
        (of_infinities, infinite),
        (of_rarer, rare),
        (of_bytes, lambda: torch.tensor([[0] * 4, [1, 2, 3, 3], [7, 0, 7, 9]], dtype=torch.uint8)),
    ],
)
def test_they_are_pytorchs(
    function: Callable[[Tensor], tuple[Tensor, ...]], make: Callable[[], Tensor]
) -> None:
    torch.manual_seed(5)
    given = make()
    imported = import_module(Apply(function), (given,))
    # What is rooted is the program that was written out, so it is compared with the function, too.
    program = imported.exported["main"].program  # type: ignore[union-attr]
    torch.testing.assert_close(program.module()(given), function(given), equal_nan=True)
    report = root_module(imported, [given.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "places of volumes": (nn.MaxPool3d(2, return_indices=True), "return_indices"),
    "numbers at random": (Apply(functional.gumbel_softmax), "aten.exponential"),
    "coins": (Apply(lambda t: torch.bernoulli(t, 0.5)), "aten.bernoulli"),
    "what training drops": (Apply(functional.dropout), "aten.native_dropout.*evaluation mode"),
    "what the run alone counts": (Apply(lambda t: t.masked_select(t > 0)), "aten.masked_select"),
    "a mask beside places": (
        Apply(lambda t: t.index_put((torch.tensor([0]), torch.tensor([True, False])), t[0, 0])),
        "a mask beside other indices",
    ),
    "means of a norm": (
        Apply(lambda t: torch.native_layer_norm(t, [5], None, None, 0.1)[1]), "the means"
    ),
    "means of integers": (Apply(lambda t: functional.avg_pool2d(t.long(), 2)), "a mean of windows"),
    "convolutions of integers": (
        Apply(lambda t: functional.conv2d(t.long(), t.long())), "a convolution is imported"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_made_up_is_refused(name: str) -> None:
    module, words = REFUSED[name]
    description = EntryDescription("main", module, (torch.randn(1, 2, 5, 5),), ("image",))
    with pytest.raises(UnsupportedOperatorError, match=words):
        translate(export_entry(description))
