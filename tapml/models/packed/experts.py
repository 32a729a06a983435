"""Packed weights of experts: the matrices of those that a token has are unpacked.

A class of transformers holds the matrices of all experts as one tensor ``[E, N, K]``, of which its
batched way takes those that were chosen, ``weights[experts]``. A :class:`PackedExperts` in its
place gives the same. Files have a layer for each expert; which of them become one tensor is what
transformers says of the class.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from tapml.models.packed.modules import Packed
from tapml.models.packed.operation import unpack_weight
from tapml.models.packed.weight import PackedWeight, from_tensors
from tapml_targets.errors import InputError

_MATRICES: Final = ("gate_up_proj", "up_proj", "down_proj")
_NUMBER: Final = re.compile(r"\.experts\.(\d+)\.")
_BATCHED: Final = "batched_mm"
# Of all experts, and of a gate beside what it gates.
_STACKED: Final = (["MergeModulelist"], ["MergeModulelist", "Concatenate"])


class PackedExperts(Packed):
    """Matrices ``[E, N, K]`` as codes.

    Where codes are in another order than the columns (act-order), `places` has the code of each
    column, for each of P parts of an expert's rows: int32 ``[E, P, K]``.
    """

    def __init__(self, weight: PackedWeight, experts: int, dtype: torch.dtype) -> None:
        parts: dict[str, Any] = {
            name: each.reshape(experts, -1, each.shape[-1])
            for name, each in weight.tensors().items()
        }
        order = parts.pop("order", None)
        super().__init__(replace(weight, **parts, order=None))
        self.dtype = dtype
        if order is not None:
            self.held += ("places",)
            self.places = nn.Parameter(order.argsort(-1).to(torch.int32), requires_grad=False)

    @property
    def packed(self) -> PackedWeight:
        """The weight, with the rows of all experts one after another."""
        parts = {name: self.get_parameter(name).flatten(0, 1) for name in self.held}
        if "places" in parts:
            parts["order"] = parts.pop("places").argsort(-1).to(torch.int32)
        return from_tensors(parts, self.bits, self.zero)

    def __getitem__(self, chosen: Tensor) -> Tensor:
        """The matrices ``[S, N, K]`` of experts ``[S]``."""

        def of(name: str) -> Tensor | None:
            part = self._part(name)
            return None if part is None else part[chosen]

        parts = (of("codes"), of("scales"), of("zeros"), of("minimums"))
        matrices: Tensor = unpack_weight(*parts, self.bits, self.zero)
        matrices = matrices.to(self.dtype)
        places = of("places")
        if places is None:
            return matrices
        count, rows, _ = matrices.shape
        # As indices of three axes: an index for every number would take twice the matrices' memory.
        ordered = [
            matrices[torch.arange(count)[:, None, None], part[:, None], places[:, at, None].long()]
            for at, part in enumerate(torch.arange(rows).chunk(places.shape[1]))
        ]
        return ordered[0] if len(ordered) == 1 else torch.cat(ordered, 1)


def stacked_matrices(module: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Every part with the matrices of experts, their name in it, and their path."""
    for path, part in module.named_modules():
        how = getattr(getattr(part, "config", None), "_experts_implementation", None)
        if not hasattr(part, "has_gate") or how != _BATCHED:
            continue
        for name in _MATRICES:
            found = getattr(part, name, None)
            if isinstance(found, nn.Parameter) and found.dim() == 3:
                yield part, name, f"{path}.{name}"


def replace_matrices(part: nn.Module, name: str, weight: PackedWeight) -> None:
    """Put packed matrices, ``[E * N, K]``, in the place of a part's own ``[E, N, K]``."""
    own: Any = getattr(part, name)
    # A parameter's name takes no module.
    delattr(part, name)
    setattr(part, name, PackedExperts(weight, len(own), own.dtype))


@dataclass
class ExpertLayers:
    """Packed layers of single experts, until all of a tensor are there.

    Attributes
    ----------
    module
        Whose layers they are.
    """

    module: Any
    _read: dict[str, dict[tuple[int, int], PackedWeight]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def __post_init__(self) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        mapping = get_model_conversion_mapping(self.module)
        self._renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        self._converters = [
            each
            for each in mapping
            if isinstance(each, WeightConverter)
            and [type(step).__name__ for step in each.operations] in _STACKED
        ]
        found = stacked_matrices(self.module)
        self._places = {path: (part, name) for part, name, path in found}

    def name_here(self, name: str) -> str:
        """What the class calls a stored weight."""
        from transformers.core_model_loading import rename_source_key

        return str(rename_source_key(name, self._renamings, [])[0])

    def shape(self, path: str) -> tuple[int, int] | None:
        """Rows and columns of the expert's layer at a path; None if no layer is there."""
        found = self._place(path)
        if found is None:
            return None
        tensor, _, _, beside = found
        part, name = self._places[tensor]
        _, rows, columns = getattr(part, name).shape
        return int(rows) // beside, int(columns)

    def add(self, path: str, weight: PackedWeight) -> None:
        """Keep a layer that :meth:`shape` knows."""
        found = self._place(path)
        assert found is not None  # noqa: S101 - it has a shape
        tensor, expert, at, _ = found
        self._read[tensor][expert, at] = weight

    def put(self) -> None:
        """Put what was read into the module.

        Raises
        ------
        InputError
            If a layer is missing, or they are not packed alike.
        """
        for tensor, read in self._read.items():
            part, name = self._places[tensor]
            experts = len(getattr(part, name))
            beside = 1 + max(at for _, at in read)
            wanted = [(expert, at) for expert in range(experts) for at in range(beside)]
            if read.keys() != set(wanted):
                raise InputError(
                    f"{tensor} has {len(read)} packed layers: expected {len(wanted)}, of "
                    f"{experts} experts; fetch the folder again"
                )
            replace_matrices(part, name, _joined([read[each] for each in wanted], tensor))

    def _place(self, path: str) -> tuple[str, int, int, int] | None:
        """The tensor that a layer is of, its expert, its place beside others, and their number."""
        from transformers.core_model_loading import rename_source_key

        number = _NUMBER.search(path)
        if number is None:
            return None
        here, pattern = rename_source_key(f"{path}.weight", self._renamings, self._converters)
        if pattern is None or here not in self._places:
            return None
        converter = next(each for each in self._converters if pattern in each.source_patterns)
        sources = list(converter.source_patterns)
        return here, int(number[1]), sources.index(pattern), len(sources)


def _joined(weights: Sequence[PackedWeight], name: str) -> PackedWeight:
    """The rows of all, one after another."""
    first = weights[0]
    if any(each.order is not None for each in weights):
        plain = torch.arange(first.shape[1], dtype=torch.int32)
        orders = (plain if each.order is None else each.order for each in weights)
        weights = [
            replace(each, order=order[None]) for each, order in zip(weights, orders, strict=True)
        ]
    parts: list[Mapping[str, Tensor]] = [each.tensors() for each in weights]
    alike = all(
        (each.bits, each.zero, each.group) == (first.bits, first.zero, first.group)
        and one.keys() == parts[0].keys()
        for each, one in zip(weights, parts, strict=True)
    )
    if not alike:
        raise InputError(
            f"{name}: its experts are packed in more than one way: take the float weights, and "
            "--quantize int4"
        )
    joined = {key: torch.cat([each[key] for each in parts]) for key in parts[0]}
    return from_tensors(joined, first.bits, first.zero)
