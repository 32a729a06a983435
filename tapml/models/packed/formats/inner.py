"""tapml's own layout in a folder, as a GGUF file or an mlc folder is converted to.

``<layer>.codes``, ``.scales``, ``.zeros``, ``.minimums`` and ``.order`` are the tensors of
:class:`~tapml.models.packed.weight.PackedWeight`; the ``quantization_config`` has bits and zero of
each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from tapml.models.packed.formats.format import Format, Layer
from tapml.models.packed.operation import WORD_BITS
from tapml.models.packed.weight import BITS, PackedWeight
from tapml_targets.errors import InputError

METHOD: Final = "tapml"
LAYERS: Final = "layers"
_GROUPED: Final = ("scales", "zeros", "minimums")


def _check(config: Mapping[str, Any], where: str) -> None:
    layers = config.get(LAYERS)
    entries = layers.values() if isinstance(layers, dict) else [None]
    if not all(isinstance(each, dict) and each.get("bits") in BITS for each in entries):
        raise InputError(f"{where} has no bits for its packed layers: convert the model again")


def _read(layer: Layer) -> PackedWeight:
    rows, columns = layer.shape
    facts = layer.config[LAYERS].get(layer.path)
    if facts is None:
        raise InputError(f"{layer.path} is packed, but config.json has no bits for it")
    bits = int(facts["bits"])
    codes = layer.tensor("codes", rows, columns * bits // WORD_BITS, dtype=torch.int32)
    given = layer.tensors.get("scales")
    groups = int(given.shape[-1]) if given is not None and given.dim() else 0
    parts = {
        name: layer.tensor(name, rows, groups, dtype=torch.float32)
        for name in _GROUPED
        if name in layer.tensors
    }
    if "order" in layer.tensors:
        order = layer.tensor("order", columns, dtype=torch.int32)
        if not torch.equal(order.long().sort().values, torch.arange(columns)):
            raise InputError(f"{layer.path}.order is no order of {columns} columns")
        parts["order"] = order
    if (bits < 16 and not groups) or (groups and columns % groups):
        raise InputError(f"{layer.path} has {groups} groups for {columns} columns")
    return PackedWeight(codes, bits, int(facts.get("zero", 0)), **parts)


FORMAT = Format(
    methods=(METHOD,),
    codes="codes",
    suffixes=("codes", *_GROUPED, "order"),
    check=_check,
    read=_read,
    in_place=True,
)
