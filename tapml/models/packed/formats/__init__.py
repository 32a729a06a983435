"""The quantized checkpoints that tapml reads, a file each; a new format is a new file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.models.packed.formats.format import Format

_REMEDIES: Final = {
    "bitsandbytes": "load it where bitsandbytes runs, dequantize() it and save that",
    "fp8": "take the model's bfloat16 folder, or quantize that (--quantize int8)",
    "mxfp4": "take the model's bfloat16 folder, or quantize that (--quantize int4)",
    "torchao": "take the model's float folder, or quantize that (--quantize int8)",
}


@cache
def formats() -> dict[str, Format]:
    """Every format by the name that ``quant_method`` has in ``config.json``."""
    found: dict[str, Format] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name != "format":
            made: Format = importlib.import_module(f"{__name__}.{module.name}").FORMAT
            found |= dict.fromkeys(made.methods, made)
    return found


def format_of(config: dict[str, Any], where: str) -> Format | None:
    """The format of a checkpoint's ``quantization_config``; None if its weights are floats.

    Raises
    ------
    InputError
        If it is unsupported or false; the message says which it is and what to do.
    """
    given = config.get("quantization_config")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InputError(f"{where} has a quantization_config that is no object: fetch it again")
    method = str(given.get("quant_method", ""))[:60]
    known = formats().get(method)
    if known is None:
        remedy = _REMEDIES.get(method, "take its float weights, and --quantize int8 or int4")
        raise InputError(
            f"{where} is quantized with {method or 'an unnamed method'}: expected one of "
            f"{', '.join(formats())}; {remedy}"
        )
    known.check(given, where)
    return known
