"""A Loop without a condition runs no iteration in ONNX's reference implementation, onnx 1.23.2.

The standard: without a condition, the trip count alone ends it. Found by tapml compare on a model
with a loop. Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def value(name: str, kind: int, shape: list[int]) -> object:
    """A value's type and shape."""
    return helper.make_tensor_value_info(name, kind, shape)


body = helper.make_graph(
    [
        helper.make_node("Add", ["before", "before"], ["after"]),
        helper.make_node("Identity", ["goes on"], ["still goes on"]),
    ],
    "body",
    [value("number", INT64, []), value("goes on", BOOL, []), value("before", FLOAT, [2])],
    [value("still goes on", BOOL, []), value("after", FLOAT, [2])],
)
loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
trips = numpy_helper.from_array(np.int64(3), "trips")
graph = helper.make_graph(
    [loop], "alone", [value("x", FLOAT, [2])], [value("y", FLOAT, [2])], [trips]
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
values = np.array([1.0, 2.0], np.float32)
session = onnxruntime.InferenceSession(model.SerializeToString())
print("onnxruntime", session.run(None, {"x": values})[0])
print("reference  ", ReferenceEvaluator(model).run(None, {"x": values})[0])
