"""GPTQ of four bits: version 1 and 2, symmetric or not, with columns in any order (``desc_act``).

``qweight`` int32 ``[K/8, N]`` has the codes of eight rows of the transposed matrix in a word;
``qzeros`` int32 ``[groups, N/8]``, ``scales`` ``[groups, N]`` and ``g_idx`` ``[K]``, the group of
each column. A weight is ``scale * (code - zero)``, where version 1 stores ``zero - 1``. Source:
AutoGPTQ, ``qlinear_cuda_old.py``; GPTQModel for version 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tapml.models.packed.formats.format import PER_WORD, Format, Layer, nibbles, require
from tapml.models.packed.weight import PackedWeight, pack
from tapml_targets.errors import InputError


def _check(config: Mapping[str, Any], where: str) -> None:
    require(config, where, "bits", 4)
    require(config, where, "checkpoint_format", None, "gptq", "gptq_v2")


def _read(layer: Layer) -> PackedWeight:
    rows, columns = layer.shape
    size = layer.group_size()
    groups = columns // size
    words = layer.tensor("qweight", columns // PER_WORD, rows, dtype=torch.int32)
    packed_zeros = layer.tensor("qzeros", groups, rows // PER_WORD, dtype=torch.int32)
    scales = layer.tensor("scales", groups, rows).to(torch.float32).T
    codes = nibbles(words, 0).T
    zeros = nibbles(packed_zeros, 1).T
    if layer.config.get("checkpoint_format") != "gptq_v2":
        # A zero of 0 is stored as 15.
        zeros = zeros + 1 & 15
    order = _order(layer, columns, size)
    if order is not None:
        codes = codes[:, order]
    return pack(
        codes, 4, scales=scales, zeros=zeros.to(torch.float32), order=order, name=layer.path
    )


def _order(layer: Layer, columns: int, size: int) -> torch.Tensor | None:
    """The columns sorted by group; None if they are."""
    if "g_idx" not in layer.tensors:
        return None
    group_of = layer.tensor("g_idx", columns).long()
    order = torch.argsort(group_of, stable=True)
    expected = torch.arange(columns) // size
    if not torch.equal(group_of[order], expected):
        raise InputError(
            f"{layer.path}.g_idx does not give every group {size} columns: expected what "
            "desc_act writes; quantize the float weights (--quantize int4)"
        )
    return None if torch.equal(group_of, expected) else order


FORMAT = Format(
    methods=("gptq",),
    codes="qweight",
    suffixes=("qweight", "qzeros", "scales", "g_idx"),
    check=_check,
    read=_read,
)
