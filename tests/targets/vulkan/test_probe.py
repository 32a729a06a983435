"""The probe's SPIR-V is what glslang makes of its text.

``python -m tests.targets.vulkan.test_probe`` writes it again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml_targets.vulkan import probe
from tapml_targets.vulkan.glslang import compile_glsl

FOLDER = Path(probe.__file__).parent / "kernels"
DTYPES = ("float16", "float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kept_spirv_is_that_of_the_text(dtype: str) -> None:
    made = compile_glsl(probe.probe_text(dtype), "probe")
    assert (FOLDER / f"probe_{dtype}.spv").read_bytes() == made


if __name__ == "__main__":
    for each in DTYPES:
        code = compile_glsl(probe.probe_text(each), "probe")
        (FOLDER / f"probe_{each}.spv").write_bytes(code)
