"""The input of a code generator: one operator as plain data, for another process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tapml_targets.library import Parameter

SEGMENT_START: Final = "segment_start"
"""The symbol of the first row of a segment (:mod:`.segments`)."""


@dataclass(frozen=True)
class OperatorSource:
    """One operator, target-neutral.

    Attributes
    ----------
    name
        Name of the operator in its plan.
    function
        The PrimFunc as TVM JSON. Its parameters are one buffer per entry of `parameters`, then one
        integer per entry of `symbols`.
    parameters
        Tensors in calling order; the symbols in their shapes name the PrimFunc's variables.
    symbols
        Integers passed beside the tensors.
    """

    name: str
    function: str
    parameters: tuple[Parameter, ...]
    symbols: tuple[str, ...] = ()

    @property
    def identifier(self) -> str:
        """The name as an identifier of C, for the functions generated from it."""
        return re.sub(r"\W", "_", f"op_{self.name}" if self.name[:1].isdigit() else self.name)
