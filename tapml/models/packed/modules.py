"""Torch modules over packed weights: a linear layer and an embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapml.models.packed.operation import unpack_weight
from tapml.models.packed.weight import PackedWeight, from_tensors
from tapml_targets.errors import InputError


class Packed(nn.Module):
    """Holds a packed weight as parameters: TVM's importer folds what is computed from buffers.

    `held` are their names.
    """

    def __init__(self, weight: PackedWeight) -> None:
        super().__init__()
        self.bits, self.zero = weight.bits, weight.zero
        self.held = tuple(weight.tensors())
        for name, tensor in weight.tensors().items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    @property
    def packed(self) -> PackedWeight:
        """The weight."""
        return from_tensors(
            {name: self.get_parameter(name) for name in self.held}, self.bits, self.zero
        )

    def _part(self, name: str) -> Tensor | None:
        return self.get_parameter(name) if name in self.held else None


class PackedLinear(Packed):
    """``y = x W^T + b`` with W packed; `order` permutes the columns of x before the product."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None) -> None:
        super().__init__(weight)
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """The matrix, float32 ``[N, K]``; for those who look, not for the forward pass."""
        return self.packed.unpacked()

    def forward(self, x: Tensor) -> Tensor:
        """Rows of x times the unpacked matrix."""
        order = self._part("order")
        if order is not None:
            x = x.index_select(-1, order)
        parts = (self._part(name) for name in ("codes", "scales", "zeros", "minimums"))
        matrix: Tensor = unpack_weight(*parts, self.bits, self.zero)
        return functional.linear(x, matrix.to(x.dtype), self.bias)


class PackedEmbedding(Packed):
    """Rows of a packed table, times a number; only the rows of the tokens are unpacked."""

    def __init__(
        self, weight: PackedWeight, dtype: torch.dtype, scale: float | None = None
    ) -> None:
        super().__init__(weight)
        if weight.order is not None:
            raise InputError("a packed embedding has its columns in order")
        self.num_embeddings, self.embedding_dim = weight.shape
        self.dtype = dtype
        self.scale = scale

    def forward(self, token_ids: Tensor) -> Tensor:
        """Vectors ``[..., K]`` of tokens ``[...]``."""

        def rows(name: str) -> Tensor | None:
            table = self._part(name)
            return None if table is None else functional.embedding(token_ids, table)

        parts = (rows("codes"), rows("scales"), rows("zeros"), rows("minimums"))
        vectors: Tensor = unpack_weight(*parts, self.bits, self.zero)
        vectors = vectors.to(self.dtype)
        return vectors if self.scale is None else vectors * self.scale
