"""HIP C, as hand-written kernels use it."""

from __future__ import annotations

from typing import Final

from tapml_targets.kernel_language import KernelLanguage
from tapml_targets.threaded_c.language import threaded_c

# A Library comes over the wire, so its text never reaches the compiler's command line.
_OPTIONS: Final = {
    "fast-math": ("-ffast-math", "the compiler trades accuracy for speed"),
    "no-contraction": ("-ffp-contract=off", "products and sums round separately"),
    "no-optimiser": ("-O0", "the compiler does not optimise"),
}
BUILD_OPTIONS: Final = {name: flag for name, (flag, _) in _OPTIONS.items()}
"""The compiler's flag for each option."""

LANGUAGE: Final[KernelLanguage] = threaded_c(
    dialect="hip-c",
    extension="hip",
    options={name: purpose for name, (_, purpose) in _OPTIONS.items()},
    needs={"float16": "#define half _Float16\n"},
)
