"""The code generator of the metal platform; needs TVM, so only the host's compiler imports it."""

from __future__ import annotations

from tapml_targets.metal.codegen.build import DIALECT, generate

__all__ = ["DIALECT", "generate"]
