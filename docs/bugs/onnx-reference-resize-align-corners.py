"""ONNX's reference implementation does not align the corners where a scale gives a fraction.

The operator's text: ``x_original = x_resized * (length_original - 1) / (length_resized - 1)`` with
the length of the resized tensor, so that the last pixel is the last one of the original.
``_interpolate_1d_with_x`` of onnx 1.23.2 divides by ``scale * length_original - 1`` instead: 4
pixels by 0.6 become 2, and it divides by 1.4. ONNX's own node test
``resize_downsample_scales_linear_align_corners`` holds the reference's values. Found by
``tapml compare --fuzz``. Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

scales = np.array([1, 1, 1, 0.6], np.float32)
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 4])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
resize = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear",
                          coordinate_transformation_mode="align_corners")  # fmt: skip
graph = helper.make_graph([resize], "alone", [x], [y], [numpy_helper.from_array(scales, "scales")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
values = np.array([[[[1.0, 2.0, 3.0, 4.0]]]], np.float32)
session = onnxruntime.InferenceSession(model.SerializeToString())
print("the text   ", [1.0, 4.0])
print("onnxruntime", session.run(None, {"x": values})[0].ravel().tolist())
print("reference  ", ReferenceEvaluator(model).run(None, {"x": values})[0].ravel().tolist())
