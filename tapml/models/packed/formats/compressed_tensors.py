"""Packed integers of four or eight bits as the library compressed-tensors writes them.

``weight_packed`` int32 ``[N, K/8]`` (of eight bits ``[N, K/4]``) has the first code in the lowest
bits, ``weight_scale`` is ``[N, K/G]`` and ``weight_shape`` holds N and K. Codes are signed integers
with the middle added, 8 or 128, and a weight is ``scale * (code - middle - zero)``.
``weight_zero_point``, of an asymmetric scheme, is packed
along N. Source: compressed-tensors, ``compressors/quantized_compressors/pack_quantized.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from tapml.models.packed.formats.format import CODE_BITS, Format, Layer, codes_of, require
from tapml.models.packed.operation import WORD_BITS
from tapml.models.packed.path_pattern import check_pattern, matches
from tapml.models.packed.weight import PackedWeight, pack
from tapml_targets.errors import InputError

_PATTERN: Final = "re:"


def _check(config: Mapping[str, Any], where: str) -> None:
    require(config, where, "format", "pack-quantized")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise InputError(f"{where} has no config_groups in its quantization_config: fetch it again")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise InputError(f"{where} has the group {str(name)[:40]!r} without weights")
        require(weights, where, "num_bits", *CODE_BITS)
        require(weights, where, "type", "int")
        if group.get("input_activations"):
            raise InputError(
                f"{where} quantizes activations, too: expected weights alone (W4A16, W8A16)"
            )
        targets = group.get("targets", [])
        if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
            raise InputError(
                f"{where} has targets = {str(targets)[:60]!r} of the group {str(name)[:40]!r}: "
                "expected a list of layers' names, classes, or patterns behind re:"
            )
        for target in targets:
            if target.startswith(_PATTERN):
                check_pattern(target.removeprefix(_PATTERN), where)


def _read(layer: Layer) -> PackedWeight:
    rows, columns = layer.shape
    bits = _bits(layer)
    per_word, middle = WORD_BITS // bits, 1 << bits - 1
    words = layer.tensor("weight_packed", rows, -(-columns // per_word), dtype=torch.int32)
    given = layer.tensors.get("weight_scale")
    groups = int(given.shape[1]) if given is not None and given.dim() > 1 else 1
    scales = layer.tensor("weight_scale", rows, groups)
    size = _group_size(layer, groups, bits)
    if "weight_shape" in layer.tensors:
        stored = tuple(int(each) for each in layer.tensors["weight_shape"].tolist())
        if stored != layer.shape:
            raise InputError(
                f"{layer.path}.weight_shape is {stored}: expected {layer.shape}; config.json and "
                "the weights belong to different models"
            )
    zeros = None
    if "weight_zero_point" in layer.tensors:
        packed = layer.tensor("weight_zero_point", -(-rows // per_word), groups, dtype=torch.int32)
        zeros = (codes_of(packed, 0, bits)[:rows] - middle).to(torch.float32)
        zeros = layer.even(zeros, size)
    codes = codes_of(words, 1, bits)[:, :columns]
    order = layer.order("weight_g_idx", size)
    if order is not None:
        codes = codes[:, order]
    scales = layer.even(scales, size)
    return pack(codes, bits, middle, scales=scales, zeros=zeros, order=order, name=layer.path)


def _bits(layer: Layer) -> int:
    """The bits, of the configuration's groups that have this layer, that its words show."""
    given = sorted({int(each["weights"]["num_bits"]) for each in _groups_of(layer)})
    words = layer.tensors["weight_packed"].shape[-1:]
    fitting = (bits for bits in given if words == (-(-layer.shape[1] * bits // WORD_BITS),))
    return next(fitting, given[0])


def _group_size(layer: Layer, groups: int, bits: int) -> int:
    """The size, of the configuration's group that has this layer, that gives so many groups.

    Raises
    ------
    InputError
        If none does, or two do.
    """
    named = [each["weights"] for each in _groups_of(layer)]
    given = [each.get("group_size") for each in named if each["num_bits"] == bits]
    sizes = sorted(
        {layer.group_size({"group_size": -1 if each is None else each}) for each in given}
    )
    fitting = [size for size in sizes if layer.groups(size) == groups]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(
            f"{layer.path} may have groups of {' or '.join(map(str, fitting))} columns: expected "
            "one group of config_groups in config.json whose targets name it"
        )
    raise InputError(
        f"{layer.path}.weight_scale has {groups} groups for {layer.shape[1]} columns: expected "
        f"groups of {' or '.join(map(str, sizes))} columns, as config.json says"
    )


def _groups_of(layer: Layer) -> list[Mapping[str, Any]]:
    """The groups that name a layer most closely: by its path, a pattern or its class; else all."""
    every: list[Mapping[str, Any]] = list(layer.config["config_groups"].values())
    for named in (
        lambda target: target == layer.path,
        lambda target: (
            target.startswith(_PATTERN) and matches(target.removeprefix(_PATTERN), layer.path)
        ),
        lambda target: target in layer.classes,
    ):
        found = [group for group in every if any(map(named, group.get("targets", [])))]
        if found:
            return found
    return every


FORMAT = Format(
    methods=("compressed-tensors",),
    codes="weight_packed",
    suffixes=(
        *("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    ),
    check=_check,
    read=_read,
)
