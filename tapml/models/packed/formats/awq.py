"""AWQ of four bits, version ``gemm``.

``qweight`` int32 ``[K, N/8]`` and ``qzeros`` int32 ``[K/G, N/8]`` hold eight neighbours along N in
a word, in the order 0 2 4 6 1 3 5 7 from the lowest bits; ``scales`` is ``[K/G, N]``. A weight is
``scale * (code - zero)``. Source: AutoAWQ, ``awq/utils/packing_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from tapml.models.packed.formats.format import PER_WORD, Format, Layer, codes_of, require
from tapml.models.packed.weight import PackedWeight, pack

# The place in its word of each of eight neighbours.
_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)


def _check(config: Mapping[str, Any], where: str) -> None:
    require(config, where, "bits", 4)
    require(config, where, "version", None, "gemm", "GEMM")


def _read(layer: Layer) -> PackedWeight:
    rows, columns = layer.shape
    size = layer.group_size()
    groups, words = layer.groups(size), rows // PER_WORD
    codes = codes_of(layer.tensor("qweight", columns, words, dtype=torch.int32), 1, order=_PLACES).T
    scales = layer.tensor("scales", groups, rows).to(torch.float32).T
    zeros = codes_of(layer.tensor("qzeros", groups, words, dtype=torch.int32), 1, order=_PLACES).T
    scales, zeros = layer.even(scales, size), layer.even(zeros.to(torch.float32), size)
    return pack(codes, 4, scales=scales, zeros=zeros, name=layer.path)


FORMAT = Format(
    methods=("awq",),
    codes="qweight",
    suffixes=("qweight", "qzeros", "scales"),
    check=_check,
    read=_read,
)
