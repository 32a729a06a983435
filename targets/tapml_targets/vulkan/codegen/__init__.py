"""The code generator of the vulkan platform; needs TVM, so only the host's compiler imports it."""

from __future__ import annotations

from tapml_targets.vulkan.codegen.build import DIALECT, generate

__all__ = ["DIALECT", "generate"]
