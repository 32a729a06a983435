"""ONNX's reference implementation pools over the channels where there is one spatial axis.

``_global_max_pool`` of onnx 1.23.2 reduces the axes n and n + 1 of n spatial ones: right for n = 2
alone. Found by tapml compare on Magika 1.0.3, whose next node then fails: "axis 2 is out of
bounds". Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 1])
graph = helper.make_graph([helper.make_node("GlobalMaxPool", ["x"], ["y"])], "alone", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
values = np.array([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], np.float32)
session = onnxruntime.InferenceSession(model.SerializeToString())
print("onnxruntime", session.run(None, {"x": values})[0].tolist())
print("reference  ", ReferenceEvaluator(model).run(None, {"x": values})[0].tolist())
