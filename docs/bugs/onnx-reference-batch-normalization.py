"""ONNX's reference implementation normalizes by the batch where opset 9 to 13 says: by the weights.

A BatchNormalization with one output is in inference mode. ``BatchNormalization_9`` of onnx 1.23.2
tells the mode by whether there is a momentum, and the attribute has a default, so it never is.
Found by tapml compare on PP-OCRv4's text detection (rapidocr-onnxruntime 1.4.4): off by 0.76 of the
output's scale. Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

node = helper.make_node("BatchNormalization", ["x", "one", "zero", "zero", "one"], ["y"])
weights = [
    helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
    helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
]
x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, [1, 1, 1, 4]) for each in ("x", "y"))
graph = helper.make_graph([node], "alone", [x], [y], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
values = np.array([[[[1.0, 2.0, 3.0, 4.0]]]], np.float32)
session = onnxruntime.InferenceSession(model.SerializeToString())
print("onnxruntime", session.run(None, {"x": values})[0].ravel())
print("reference  ", ReferenceEvaluator(model).run(None, {"x": values})[0].ravel())
