"""AWQ of four bits, version ``gemm``.

``qweight`` int32 ``[K, N/8]`` and ``qzeros`` int32 ``[K/G, N/8]`` hold eight neighbours along N in
a word, in the order 0 2 4 6 1 3 5 7 from the lowest bits; ``scales`` is ``[K/G, N]``. A weight is
``scale * (code - zero)``. Source: AutoAWQ, ``awq/utils/packing_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from tapml.models.packed.formats.format import Format, Layer, nibbles, require
from tapml.models.packed.weight import PackedWeight, pack
from tapml_targets.errors import InputError

_PER_WORD: Final = 8
# The place in its word of each of eight neighbours.
_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)


def _check(config: Mapping[str, Any], where: str) -> None:
    require(config, where, "bits", 4)
    require(config, where, "version", None, "gemm", "GEMM")


def _read(layer: Layer) -> PackedWeight:
    rows, columns = layer.shape
    size = layer.config.get("group_size", 128)
    size = columns if size == -1 else size
    if not isinstance(size, int) or size < 1 or columns % size:
        raise InputError(
            f"{layer.path} has {columns} columns and a group_size of {size}: expected a divisor"
        )
    groups, words = columns // size, rows // _PER_WORD
    codes = nibbles(layer.tensor("qweight", columns, words, dtype=torch.int32), 1, _PLACES).T
    scales = layer.tensor("scales", groups, rows).to(torch.float32).T
    zeros = nibbles(layer.tensor("qzeros", groups, words, dtype=torch.int32), 1, _PLACES).T
    return pack(codes, 4, scales=scales, zeros=zeros.to(torch.float32), name=layer.path)


FORMAT = Format(
    methods=("awq",),
    codes="qweight",
    suffixes=("qweight", "qzeros", "scales"),
    check=_check,
    read=_read,
)
