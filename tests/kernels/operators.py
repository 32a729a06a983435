"""Operators and kernels to test with, as small as they get."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tapml.plan.graph_plan import Operator
from tapml_targets.library import Parameter
from tapml_targets.limits import Limits
from tapml_targets.target import Target

TARGET: Final = Target("opencl", limits=Limits(max_threads_per_block=256, max_block=(256, 256, 64)))

SCALE: Final = Operator(
    name="scale",
    hash="5ca1e5ca1e5ca1e5",
    parameters=(
        Parameter("input_0", (1, "S", 128), "float32", "input"),
        Parameter("input_1", (128,), "float32", "input"),
        Parameter("output_0", (1, "S", 128), "float32", "output"),
    ),
    symbols=(),
    function="",
    script="scale",
    output_kinds=("value",),
)

SOURCE: Final = """\
// scale: one work-item per element
__kernel void scale_kernel(
    __global const float* restrict input_0, __global const float* restrict input_1,
    __global float* restrict output_0, const long S) {
  const long i = get_global_id(0);
  if (i < S * 128) output_0[i] = input_0[i] * input_1[i % 128];
}
"""

MANIFEST: Final = """\
format = 1
operator = "scale"
target = "opencl"
source = "scale.cl"

[[launches]]
entry = "scale_kernel"
arguments = [
  "input_0",
  "input_1",
  "output_0",
  { scalar = "S", dtype = "int64" },
]
grid = ["ceildiv(output_0.size, 64)"]
block = [64]
"""


def put_kernel(
    folder: Path, manifest: str = MANIFEST, source: str = SOURCE, name: str = "scale"
) -> Path:
    """Write a kernel of `name` below a folder of kernels; its manifest's path."""
    place = folder / name / "opencl"
    place.mkdir(parents=True, exist_ok=True)
    (place / "scale.cl").write_text(source)
    (place / "kernel.toml").write_text(manifest)
    return place / "kernel.toml"
