"""Makes packed weights from float weights: ``--quantize``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from tapml.models.packed.experts import replace_matrices, stacked_matrices
from tapml.models.packed.modules import PackedEmbedding, PackedLinear
from tapml.models.packed.operation import BRAIN, HALF, WORD_BITS
from tapml.models.packed.weight import PackedWeight, pack
from tapml_targets.errors import InputError

GROUP: Final = 32
_EIGHT_ZERO: Final = 128
_MOST_OF_EIGHT: Final = 127
_LEVELS_OF_FOUR: Final = 15


class Scheme(NamedTuple):
    """A way to quantize: of matrices, and of tables of which single rows are read."""

    matrix: Callable[[Tensor, str], PackedWeight]
    table: Callable[[Tensor, str], PackedWeight]
    bits: int


def int8(matrix: Tensor, name: str) -> PackedWeight:
    """Eight bits, symmetric: one scale for each group of 32 columns."""
    grouped = _grouped(matrix)
    scales = grouped.abs().amax(-1) / _MOST_OF_EIGHT
    codes = torch.round(grouped / _divisor(scales).unsqueeze(-1)).clamp(
        -_MOST_OF_EIGHT, _MOST_OF_EIGHT
    )
    codes = (codes.to(torch.int32) + _EIGHT_ZERO).flatten(-2)
    return pack(codes, 8, _EIGHT_ZERO, scales=scales, name=name)


def int4(matrix: Tensor, name: str) -> PackedWeight:
    """Four bits with a scale and a zero point, itself a code, for each group of 32 columns."""
    grouped = _grouped(matrix)
    low, high = (each.clamp(*b) for each, b in zip(grouped.aminmax(dim=-1), _SIDES, strict=True))
    scales = (high - low) / _LEVELS_OF_FOUR
    zeros = torch.round(-low / _divisor(scales)).clamp(0, _LEVELS_OF_FOUR)
    codes = torch.round(grouped / _divisor(scales).unsqueeze(-1)) + zeros.unsqueeze(-1)
    codes = codes.clamp(0, _LEVELS_OF_FOUR).to(torch.int32).flatten(-2)
    return pack(codes, 4, scales=scales, zeros=zeros, name=name)


_SIDES: Final = ((None, 0.0), (0.0, None))


def fp16(matrix: Tensor, name: str) -> PackedWeight:
    """Each weight as the nearest float16."""
    return _sixteen(matrix, torch.float16, HALF, name)


def bf16(matrix: Tensor, name: str) -> PackedWeight:
    """Each weight as the nearest bfloat16."""
    return _sixteen(matrix, torch.bfloat16, BRAIN, name)


def _sixteen(matrix: Tensor, dtype: torch.dtype, kind: int, name: str) -> PackedWeight:
    rounded = matrix.to(dtype)
    if not bool(torch.isfinite(rounded).all()):
        raise InputError(f"{name} has weights beyond {dtype}: expected smaller ones; use bf16")
    codes = rounded.view(torch.int16).to(torch.int32) & 0xFFFF
    return pack(codes, 16, kind, name=name)


SCHEMES: Final = {
    "int8": Scheme(int8, int8, 8),
    # Four bits are too few for rows that are read alone, and for the head that shares them.
    "int4": Scheme(int4, int8, 4),
    "fp16": Scheme(fp16, fp16, 16),
    "bf16": Scheme(bf16, bf16, 16),
}


def _grouped(matrix: Tensor) -> Tensor:
    """``[N, groups, columns of a group]``, float32."""
    columns = int(matrix.shape[1])
    size = GROUP if columns % GROUP == 0 else columns
    return matrix.to(torch.float32).reshape(len(matrix), -1, size)


def _divisor(scales: Tensor) -> Tensor:
    """Scales to divide by; a group of zeros has none."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))


def quantize_module(module: nn.Module, name: str) -> str:
    """Replace linear layers, embeddings and matrices of experts by packed ones, in place.

    Layers that share a weight share its codes.

    Returns
    -------
    str
        A sentence for the user.

    Raises
    ------
    InputError
        If there is no such scheme, or the module has nothing to quantize.
    """
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise InputError(f"--quantize {name[:40]!r}: expected one of {', '.join(SCHEMES)}")
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    made: dict[int, PackedWeight] = {}
    kept: list[str] = []
    count = 0
    for path, part in list(module.named_modules(remove_duplicate=False)):
        if type(part) not in (nn.Linear, nn.Embedding) and _scale_of(part) is None:
            continue
        weight: Any = part.weight
        if int(weight.shape[1]) % (WORD_BITS // scheme.bits):
            kept.append(path)
            continue
        if id(weight) not in made:
            is_table = id(weight) in tables
            made[id(weight)] = (scheme.table if is_table else scheme.matrix)(weight.detach(), path)
        replace_part(module, path, packed_part(part, made[id(weight)]))
        count += 1
    for part, own, path in list(stacked_matrices(module)):
        matrices: Tensor = getattr(part, own).detach()
        if int(matrices.shape[-1]) % (WORD_BITS // scheme.bits):
            kept.append(path)
            continue
        replace_matrices(part, own, scheme.matrix(matrices.flatten(0, 1), path))
        count += 1
    if not count:
        raise InputError(
            f"--quantize {name}: the model has no linear layer whose rows fill 32-bit words; run "
            "it as it is"
        )
    left = f"; {len(kept)} with other widths stay as they are, first {kept[0]}" if kept else ""
    return f"weights of {count} layers are quantized to {name}{left}"


def packed_part(part: nn.Module, weight: PackedWeight) -> nn.Module:
    """The packed layer that takes the place of a linear layer or an embedding."""
    if isinstance(part, nn.Embedding):
        return PackedEmbedding(weight, part.weight.dtype, _scale_of(part))
    bias: Any = part.bias
    return PackedLinear(weight, None if bias is None else bias.detach())


def _scale_of(part: nn.Module) -> float | None:
    """What an embedding multiplies its vectors by, as Gemma's; None if they stay as they are."""
    scale: Any = getattr(part, "embed_scale", None)
    if not isinstance(part, nn.Embedding) or scale is None:
        return None
    # The class rounds it to the type of its weights.
    return float(torch.as_tensor(scale).to(part.weight.dtype))


def replace_part(module: nn.Module, path: str, part: nn.Module) -> None:
    """Put a layer in the place of another."""
    parent, _, own = path.rpartition(".")
    setattr(module.get_submodule(parent), own, part)
