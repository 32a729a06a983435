"""Keras on OpenVINO computes in float32, also on processors for which OpenVINO prefers bfloat16."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: where OpenVINO is loaded, its threading library keeps Intel's OpenCL
# driver from loading, and other tests need that.
_CODE = """
import numpy as np, openvino
from openvino import opset13
from tapml.backends.keras_openvino import runner
runner._compile_in_float32()
given = opset13.parameter([1, 8], np.float32)
model = openvino.Model([opset13.relu(given)], [given])
for config in (None, {"PERFORMANCE_HINT": "THROUGHPUT"}):
    compiled = openvino.compile_model(model, "CPU", config)
    print(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
"""


def test_a_model_is_compiled_in_float32() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.stdout.split() == ["f32", "f32"], ended.stderr
