"""OpenVINO rounds QuantizeLinear after the zero point is added, 2026.4.1 on a processor.

ONNX rounds x / scale to even, and adds the zero point then: with an odd zero point each number in
the middle of two codes becomes the other of them. Found by tapml compare on a tensor of such
numbers. Needs onnx, onnxruntime and openvino.
"""

import io

import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

model = helper.make_model(
    helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"])],
        "quantize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("codes", TensorProto.INT8, [6])],
        [
            numpy_helper.from_array(np.array(1, np.float32), "scale"),
            numpy_helper.from_array(np.array(3, np.int8), "zero"),
        ],
    ),
    opset_imports=[helper.make_opsetid("", 21)],
    ir_version=10,
)
x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 3.0], np.float32)
content = model.SerializeToString()
session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
for name, found in {
    "ONNX's reference": ReferenceEvaluator(model).run(None, {"x": x})[0],
    "ONNX Runtime": session.run(None, {"x": x})[0],
    "OpenVINO": openvino.compile_model(openvino.Core().read_model(io.BytesIO(content)), "CPU")(
        {"x": x}
    )[0],
}.items():
    print(f"{name}: {found.tolist()}")
