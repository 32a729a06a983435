"""ONNX's reference implementation cannot run BatchNormalization of opset 7 and 8, onnx 1.23.2.

``is_test`` left with opset 7, so ``BatchNormalization_6`` always takes the statistics of the batch,
and returns a tuple in a tuple: a TypeError. Found by tapml compare on a small network of opset 7.
Needs onnx and onnxruntime.
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
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=4)
values = np.array([[[[1.0, 2.0, 3.0, 4.0]]]], np.float32)
session = onnxruntime.InferenceSession(model.SerializeToString())
print("onnxruntime", session.run(None, {"x": values})[0].ravel())
try:
    print("reference  ", ReferenceEvaluator(model).run(None, {"x": values})[0].ravel())
except TypeError as error:
    print("reference  ", f"TypeError: {str(error)[:100]}")
