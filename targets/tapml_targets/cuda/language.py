"""CUDA C, as hand-written kernels use it."""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.kernel_language import KernelLanguage
from tapml_targets.threaded_c.language import threaded_c

# A Library comes over the wire, so its text never reaches the compiler's command line: these are
# fields of cuda-core's ProgramOptions.
_OPTIONS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "fast-math": ({"use_fast_math": True}, "estimates of division, roots and functions"),
    "no-contraction": ({"fma": False}, "products and sums round separately"),
    "no-optimiser": ({"ptxas_options": "-O0"}, "the assembler does not optimise"),
}
BUILD_OPTIONS: Final = {name: fields for name, (fields, _) in _OPTIONS.items()}
"""What NVRTC is told for each option."""

LANGUAGE: Final[KernelLanguage] = threaded_c(
    dialect="cuda-c",
    extension="cu",
    options={name: purpose for name, (_, purpose) in _OPTIONS.items()},
    needs={"float16": "#include <cuda_fp16.h>\n"},
    # "kernels.cu(6): error: identifier "x" is undefined"
    message=r"\S*?\((?P<line>\d+)\): (?P<kind>(?:catastrophic )?error|warning)(?: #\S+)?: "
    r"(?P<text>.*)",
)
