"""OpenVINO's Relu makes 0 of NaN, 2026.4.1 on a processor.

ONNX Runtime and the reference keep it: a model that overflowed looks healthy on OpenVINO.
Found by tapml compare on data with a NaN. Needs onnx, onnxruntime and openvino.
"""

import io

import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

shape = [2, 4, 3, 3]
model = helper.make_model(
    helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["y"]),
        ],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
)
x = np.full(shape, np.nan, np.float32)
content = model.SerializeToString()
session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
for name, found in {
    "ONNX's reference": ReferenceEvaluator(model).run(None, {"x": x})[0],
    "ONNX Runtime": session.run(None, {"x": x})[0],
    "OpenVINO": openvino.compile_model(openvino.Core().read_model(io.BytesIO(content)), "CPU")(
        {"x": x}
    )[0],
}.items():
    print(f"{name}: {np.isnan(found).sum()} of {found.size} are NaN")
