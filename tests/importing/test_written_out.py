"""Operations that are written out in others give PyTorch's results."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tapml.importing.exporting import EntryDescription, export_entry
from tapml.importing.importer import import_module
from tapml_targets.errors import UnsupportedOperatorError
from tests.importing.modules import Apply, root_module


class Scattered(nn.Module):
    """Rows added to places, as a layer of a graph network does, and otherwise reduced."""

    def forward(self, rows: Tensor, edges: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[6, 4]``, edges ``[2, 9]``, weights ``[9, 4]``."""
        to = edges[1][:, None].expand(-1, rows.shape[1])
        messages = rows[edges[0]] * weights
        zeros = torch.zeros_like(rows)
        return (
            zeros.scatter_add(0, to, messages),
            rows.scatter_add(1, edges.T[:3].clamp(max=3), weights[:3]),
            rows.index_add(0, edges[1], messages, alpha=2),
            rows.scatter_reduce(0, to, messages, "prod"),
            rows.scatter_reduce(0, to, messages, "mean", include_self=False),
            rows.scatter_reduce(0, to, messages, "amax", include_self=False),
        )


class Placed(nn.Module):
    """Rows put at places, twice at one of them, and patches that overlap."""

    def forward(self, images: Tensor, at: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Images ``[2, 3, 5, 6]``, places ``[4]``, rows ``[4, 2]``."""
        put, added = images.clone(), images.clone()
        put[:, :, at] = 1.5
        put[:, at[:2], :, at[2:]] = rows[0, 0]
        added.index_put_((at.clamp(max=1), at.clamp(min=0)), rows[:, :1, None], accumulate=True)
        patches = functional.unfold(images, 2)
        turned = images.transpose(1, 3).as_strided((2, 4, 3), (90, 7, 2), 5)
        sliced = images[1:].as_strided((2, 4), (7, 2), 95)
        written = images.transpose(1, 3).as_strided_scatter(rows, (4, 2), (9, 4), 3)
        filled = images.masked_scatter(images > 0, torch.arange(180.0))
        strided = turned, sliced, written
        windows = functional.fold(patches, (5, 6), 2), images.unfold(2, 3, 2), *strided
        return put, added, *windows, filled


class Sampled(nn.Module):
    """Images sampled at places within and beyond them."""

    def forward(self, images: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        """Images ``[2, 3, 5, 6]``, grid ``[2, 4, 3, 2]``."""
        return (functional.grid_sample(images, grid, align_corners=False),)


class Turned(nn.Module):
    """The same at places that a map gives, with other ways to read beyond the image."""

    def forward(self, images: Tensor, turn: Tensor) -> tuple[Tensor, ...]:
        """Images ``[2, 3, 5, 6]``, maps ``[2, 2, 3]``."""
        places = functional.affine_grid(turn, [2, 3, 4, 4], align_corners=False)
        return tuple(
            functional.grid_sample(images, places, mode, padding, align_corners=True)
            for mode, padding in (("nearest", "reflection"), ("bicubic", "border"))
        )


class Apart(nn.Module):
    """Distances of rows in several norms, and in float64."""

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[2, 4, 3]`` and ``[2, 5, 3]``."""
        found = [torch.cdist(one, other, p) for p in (1.0, 2.0, 3.0)]
        return *found, torch.cdist(one.double(), other.double(), 3.0)


class SoFar(nn.Module):
    """Extremes of what came before, with ties."""

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[2, 5, 3]``."""
        return (*rows.cummax(1), *torch.cummin(rows, -1))


class Bags(nn.Module):
    """Bags of rows of a table: of equal size, by offsets, with padding and weights."""

    def __init__(self) -> None:
        super().__init__()
        modes = ("mean", "max")
        self.bags = nn.ModuleList(nn.EmbeddingBag(9, 4, mode=mode, padding_idx=2) for mode in modes)
        self.ended = nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=True)

    def forward(self, index: Tensor, flat: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """Places ``[3, 5]`` and ``[8]``, weights ``[8]``."""
        begins = torch.tensor([0, 3, 3, 7])
        ends = torch.tensor([0, 3, 3, 8])
        found = [bag(index) for bag in self.bags] + [bag(flat, begins) for bag in self.bags]
        return (*found, self.ended(flat, ends, weights))


class Waves(nn.Module):
    """Fourier transforms to and fro, in one axis and in several, with sizes and angles."""

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[3, 4, 6]``."""
        fft = torch.fft
        half, both = fft.rfft(rows), fft.fftn(rows, dim=(1, 2), norm="ortho")
        mixed = fft.ifft2(both * both - both.conj() / 2)
        back = fft.irfft(torch.cat([half, -half * 0.5]), n=6)
        return half.abs(), half.angle(), mixed.real, back, fft.irfft(half, n=5)


def edges() -> Tensor:
    return torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4], [1, 1, 0, 3, 3, 3, 4, 1, 0]])


CASES: dict[str, tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]] = {
    "scattered": (Scattered(), lambda: (torch.randn(6, 4), edges(), torch.randn(9, 4))),
    "placed": (
        Placed(),
        lambda: (torch.randn(2, 3, 5, 6), torch.tensor([0, 2, -1, 0]), torch.randn(4, 2)),
    ),
    "sampled": (Sampled(), lambda: (torch.randn(2, 3, 5, 6), torch.randn(2, 4, 3, 2))),
    "turned": (Turned(), lambda: (torch.randn(2, 3, 5, 6), torch.randn(2, 2, 3))),
    "apart": (Apart(), lambda: (torch.randn(2, 4, 3), torch.randn(2, 5, 3))),
    "so far": (SoFar(), lambda: (torch.randint(4, (2, 5, 3)).float(),)),
    "waves": (Waves(), lambda: (torch.randn(3, 4, 6),)),
    "bags": (
        Bags().eval(),
        lambda: (torch.randint(9, (3, 5)), torch.randint(9, (8,)), torch.randn(8)),
    ),
}


# The others compile many kernels (exhaustive/test_written_out.py).
SHORT = ("scattered", "sampled", "apart", "so far", "bags")


@pytest.mark.parametrize("case", SHORT)
def test_they_are_pytorchs(case: str) -> None:
    check(case)


ROWS = torch.arange(12.0).reshape(4, 3)
PLACES = torch.tensor([2, 0, 2, 1])
FORMS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "in place": (lambda rows: (rows * 2).scatter_add_(0, PLACES[:, None].expand(4, 3), rows), True),
    "in place, of a copy": (lambda rows: rows.clone().index_add_(0, PLACES, rows), True),
    "real waves": (lambda rows: torch.fft.rfft(rows).abs(), True),
    "put by masks, which TVM has": (lambda rows: rows.masked_fill(rows > 3, 0.5), False),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_them_is_noticed(form: str) -> None:
    function, expected = FORMS[form]
    description = EntryDescription("main", Apply(function), (ROWS,), ("rows",))
    assert export_entry(description).written_out is expected


class Infinite(nn.Module):
    """Largest values of masked scores, as a graph's attention has them."""

    def forward(self, scores: Tensor) -> tuple[Tensor, ...]:
        """Scores ``[4, 3]``."""
        to, none = PLACES[:, None].expand(4, 3), torch.full((4, 3), -math.inf)
        offsets = torch.tensor([0, 2])
        return (
            none.scatter_reduce(0, to, scores, "amax"),
            torch.zeros(4, 3).scatter_reduce(0, to, -scores, "amin", include_self=False),
            functional.embedding_bag(PLACES, scores, offsets, mode="max"),
        )


def test_what_is_infinite_stays_so() -> None:
    scores = ROWS.index_fill(0, torch.tensor([0, 2]), -math.inf)
    scores[3, 1] = -math.inf
    imported = import_module(Infinite(), (scores,))
    report = root_module(imported, [scores.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)


BEYOND: dict[str, Callable[[Tensor], Tensor]] = {
    "scatter_reduce": lambda rows: rows.scatter_add(0, torch.zeros(30000, 1).long(), rows),
    "a Fourier transform": lambda rows: torch.fft.rfft(rows[:, 0]).abs(),
}


@pytest.mark.parametrize("operation", BEYOND)
def test_too_many_terms_are_refused_by_name(operation: str) -> None:
    rows = torch.zeros(40000, 1)
    description = EntryDescription("main", Apply(BEYOND[operation]), (rows,), ("rows",))
    expected = f"{operation}.* is written out as .* x .*rows$"
    with pytest.raises(UnsupportedOperatorError, match=expected):
        export_entry(description)


def check(case: str) -> None:
    torch.manual_seed(4)
    module, make = CASES[case]
    given = make()
    imported = import_module(module, given)
    # What is rooted is the program that was written out, so it is compared with the module, too.
    program = imported.exported["main"].program  # type: ignore[union-attr]
    with torch.no_grad():
        for ours, own in zip(program.module()(*given), module(*given), strict=True):
            torch.testing.assert_close(ours, own)
    report = root_module(imported, [each.numpy() for each in given])
    assert all(each.ratio <= 1 for each in report.compared)
