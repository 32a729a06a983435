"""GPTQ of four bits: version 1 and 2, symmetric or not, with columns in any order (``desc_act``).

``qweight`` int32 ``[K/8, N]`` has the codes of eight rows of the transposed matrix in a word;
``qzeros`` int32 ``[groups, N/8]``, ``scales`` ``[groups, N]`` and ``g_idx`` ``[K]``, the group of
each column. A weight is ``scale * (code - zero)``, where version 1 stores ``zero - 1``. Source:
AutoGPTQ, ``qlinear_cuda_old.py``; GPTQModel for version 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from tapml.models.packed.formats.format import PER_WORD, Format, Layer, nibbles, require
from tapml.models.packed.path_pattern import check_pattern, matches
from tapml.models.packed.weight import PackedWeight, pack
from tapml_targets.errors import InputError

# Begins a pattern of layers that are not quantized.
_FLOATS: Final = "-:"


def _check(config: Mapping[str, Any], where: str) -> None:
    require(config, where, "bits", 4)
    require(config, where, "checkpoint_format", None, "gptq", "gptq_v2")
    dynamic = config.get("dynamic") or {}
    if not isinstance(dynamic, dict):
        raise InputError(
            f"{where} has dynamic = {str(dynamic)[:60]!r} in its quantization_config: expected an "
            "object of patterns of layers' paths"
        )
    for key, changes in dynamic.items():
        if key.startswith(_FLOATS):
            continue
        if not isinstance(changes, dict):
            raise InputError(
                f"{where} has {str(changes)[:60]!r} for {key[:60]!r} in dynamic of its "
                "quantization_config: expected an object of settings, or a key that begins with -:"
            )
        check_pattern(key.removeprefix("+:"), where)


def _read(layer: Layer) -> PackedWeight:
    rows, columns = layer.shape
    settings = _settings(layer)
    size = layer.group_size(settings)
    groups = layer.groups(size)
    words = layer.tensor("qweight", columns // PER_WORD, rows, dtype=torch.int32)
    packed_zeros = layer.tensor("qzeros", groups, rows // PER_WORD, dtype=torch.int32)
    scales = layer.tensor("scales", groups, rows).to(torch.float32).T
    codes = nibbles(words, 0).T
    zeros = nibbles(packed_zeros, 1).T
    if layer.config.get("checkpoint_format") != "gptq_v2":
        # A zero of 0 is stored as 15.
        zeros = zeros + 1 & 15
    order = layer.order("g_idx", size)
    if order is not None:
        codes = codes[:, order]
    scales, zeros = layer.even(scales, size), layer.even(zeros.to(torch.float32), size)
    return pack(codes, 4, scales=scales, zeros=zeros, order=order, name=layer.path)


def _settings(layer: Layer) -> Mapping[str, Any]:
    """The configuration with what GPTQModel's ``dynamic`` changes of this layer.

    A key is a pattern of paths, behind ``+:`` or nothing; ``-:`` names layers that stay floats.
    """
    for key, changes in (layer.config.get("dynamic") or {}).items():
        if not key.startswith(_FLOATS) and matches(key.removeprefix("+:"), layer.path):
            settings = {**layer.config, **changes}
            require(settings, layer.path, "bits", 4)
            return settings
    return layer.config


FORMAT = Format(
    methods=("gptq",),
    codes="qweight",
    suffixes=("qweight", "qzeros", "scales", "g_idx"),
    check=_check,
    read=_read,
)
