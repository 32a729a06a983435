"""Data types: a name, the bits one element takes in storage, and how elements are packed.

Not numpy's dtypes: bf16, fp8 and packed int4 exist here, and a device may have no numpy. numpy
appears only at the edges, through :func:`numpy_name`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from tapml_targets.errors import InputError


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes
    ----------
    name
        The field's name, as TVM and torch spell it (``float16``, ``bfloat16``, ``int4``).
    bits
        Bits one element takes in storage.
    packing
        Elements that share one addressable unit; 1 for all but sub-byte types.
    """

    name: str
    bits: int
    packing: int = 1

    @property
    def itemsize(self) -> int:
        """Bytes of the smallest addressable unit."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self.name.startswith(("float", "bfloat"))

    def nbytes(self, elements: int) -> int:
        """Bytes that `elements` elements take, rounded up."""
        return (elements * self.bits + 7) // 8

    @property
    def numpy_name(self) -> str:
        """The numpy dtype that holds the raw bits (bfloat16 travels as uint16)."""
        return _NUMPY_NAMES.get(self.name, self.name)


_NUMPY_NAMES: Final = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "int4": "uint8",
    "uint4": "uint8",
}
_KNOWN: Final = {
    d.name: d
    for d in (
        *(DType(f"float{bits}", bits) for bits in (16, 32, 64)),
        *(DType(f"{sign}int{bits}", bits) for sign in ("", "u") for bits in (8, 16, 32, 64)),
        DType("bfloat16", 16),
        DType("float8_e4m3fn", 8),
        DType("float8_e5m2", 8),
        DType("int4", 4, packing=2),
        DType("uint4", 4, packing=2),
        DType("bool", 8),
    )
}


@cache
def dtype(name: str) -> DType:
    """Look a dtype up by name.

    Raises
    ------
    InputError
        If no dtype has that name; the known ones are listed.
    """
    try:
        return _KNOWN[name]
    except KeyError:
        known = ", ".join(sorted(_KNOWN))
        raise InputError(f"unknown dtype {name!r}; known ones: {known}") from None
