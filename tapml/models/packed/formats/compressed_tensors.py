"""Packed integers of four bits as the library compressed-tensors writes them.

``weight_packed`` int32 ``[N, K/8]`` has the first code in the lowest bits, ``weight_scale`` is
``[N, K/G]`` and ``weight_shape`` holds N and K. Codes are integers from -8 to 7 with 8 added, and a
weight is ``scale * (code - 8 - zero)``. ``weight_zero_point``, of an asymmetric scheme, is packed
along N. Source: compressed-tensors, ``compressors/quantized_compressors/pack_quantized.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from tapml.models.packed.formats.format import PER_WORD, Format, Layer, nibbles, require
from tapml.models.packed.weight import PackedWeight, pack
from tapml_targets.errors import InputError

_MIDDLE: Final = 8


def _check(config: Mapping[str, Any], where: str) -> None:
    require(config, where, "format", "pack-quantized")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise InputError(f"{where} has no config_groups in its quantization_config: fetch it again")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise InputError(f"{where} has the group {str(name)[:40]!r} without weights")
        require(weights, where, "num_bits", 4)
        require(weights, where, "type", "int")
        if group.get("input_activations"):
            raise InputError(f"{where} quantizes activations, too: expected weights alone (W4A16)")


def _read(layer: Layer) -> PackedWeight:
    rows, columns = layer.shape
    words = layer.tensor("weight_packed", rows, -(-columns // PER_WORD), dtype=torch.int32)
    given = layer.tensors.get("weight_scale")
    groups = int(given.shape[1]) if given is not None and given.dim() > 1 else 1
    scales = layer.tensor("weight_scale", rows, groups)
    size = _group_size(layer, groups)
    if "weight_shape" in layer.tensors:
        stored = tuple(int(each) for each in layer.tensors["weight_shape"].tolist())
        if stored != layer.shape:
            raise InputError(
                f"{layer.path}.weight_shape is {stored}: expected {layer.shape}; config.json and "
                "the weights belong to different models"
            )
    zeros = None
    if "weight_zero_point" in layer.tensors:
        packed = layer.tensor("weight_zero_point", -(-rows // PER_WORD), groups, dtype=torch.int32)
        zeros = (nibbles(packed, 0)[:rows] - _MIDDLE).to(torch.float32)
        zeros = layer.even(zeros, size)
    codes = nibbles(words, 1)[:, :columns]
    order = layer.order("weight_g_idx", size)
    if order is not None:
        codes = codes[:, order]
    scales = layer.even(scales, size)
    return pack(codes, 4, _MIDDLE, scales=scales, zeros=zeros, order=order, name=layer.path)


def _group_size(layer: Layer, groups: int) -> int:
    """The one of the configuration's sizes that gives so many groups.

    Raises
    ------
    InputError
        If none does.
    """
    given = [each["weights"].get("group_size") for each in layer.config["config_groups"].values()]
    sizes = [layer.group_size({"group_size": -1 if each is None else each}) for each in given]
    for size in sizes:
        if layer.groups(size) == groups:
            return size
    raise InputError(
        f"{layer.path}.weight_scale has {groups} groups for {layer.shape[1]} columns: expected "
        f"groups of {' or '.join(map(str, sizes))} columns, as config.json says"
    )


FORMAT = Format(
    methods=("compressed-tensors",),
    codes="weight_packed",
    suffixes=(
        *("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    ),
    check=_check,
    read=_read,
)
