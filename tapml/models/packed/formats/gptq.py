"""GPTQ of four or eight bits; version 1 and 2, symmetric or not, in any order (``desc_act``).

``qweight`` int32 ``[K/P, N]`` has the codes of P rows of the transposed matrix in a word, eight of
four bits or four of eight; ``qzeros`` int32 ``[groups, N/P]``, ``scales`` ``[groups, N]`` and
``g_idx`` ``[K]``, the group of each column. A weight is ``scale * (code - zero)``, where version 1
stores ``zero - 1``. Source: AutoGPTQ, ``qlinear_cuda_old.py``; GPTQModel for version 2.
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

# Begins a pattern of layers that are not quantized.
_FLOATS: Final = "-:"


def _check(config: Mapping[str, Any], where: str) -> None:
    require(config, where, "bits", *CODE_BITS)
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
    bits = int(settings["bits"])
    groups, per_word = layer.groups(size), WORD_BITS // bits
    words = layer.tensor("qweight", columns // per_word, rows, dtype=torch.int32)
    packed_zeros = layer.tensor("qzeros", groups, rows // per_word, dtype=torch.int32)
    scales = layer.tensor("scales", groups, rows).to(torch.float32).T
    codes = codes_of(words, 0, bits).T
    zeros = codes_of(packed_zeros, 1, bits).T
    if layer.config.get("checkpoint_format") != "gptq_v2":
        # A zero of 0 is stored as the largest code.
        zeros = zeros + 1 & (1 << bits) - 1
    order = layer.order("g_idx", size)
    if order is not None:
        codes = codes[:, order]
    scales, zeros = layer.even(scales, size), layer.even(zeros.to(torch.float32), size)
    return pack(codes, bits, scales=scales, zeros=zeros, order=order, name=layer.path)


def _settings(layer: Layer) -> Mapping[str, Any]:
    """The configuration with what GPTQModel's ``dynamic`` changes of this layer.

    A key is a pattern of paths, behind ``+:`` or nothing; ``-:`` names layers that stay floats.
    """
    for key, changes in (layer.config.get("dynamic") or {}).items():
        if not key.startswith(_FLOATS) and matches(key.removeprefix("+:"), layer.path):
            settings = {**layer.config, **changes}
            require(settings, layer.path, "bits", *CODE_BITS)
            return settings
    return layer.config


FORMAT = Format(
    methods=("gptq",),
    codes="qweight",
    suffixes=("qweight", "qzeros", "scales", "g_idx"),
    check=_check,
    read=_read,
)
