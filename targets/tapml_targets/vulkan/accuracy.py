"""What Vulkan allows."""

from __future__ import annotations

from typing import Final

from tapml_targets.self_test.shader_accuracy import allowed_ulp

__all__ = ["RULES", "allowed_ulp"]

RULES: Final = "Vulkan"
